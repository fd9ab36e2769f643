"""The check of ZeRO-2: the gradient that the optimizer receives, compared with the direct formula in float64.

Run as: torchrun --nproc_per_node=2 -m lark.gpu_check.gradients cuda|cpu <folder>     (by the check below)
"""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from lark.errors import LarkError
from lark.gpu_check.arithmetic import relative
from lark.gpu_check.check import CheckPlace, within
from lark.gpu_check.expectations import expect_liger
from lark.gpu_check.settings import composed
from lark.models.chat import Encoded
from lark.models.head import PLAIN
from lark.models.liger import apply_liger
from lark.models.varlen import VARLEN
from lark.training.packing import collate_packed
from lark.training.trainer import return_weighted_loss
from lark.training.zero import connect, deepspeed_config
from lark.work.devices import use_device
from lark.work.launch import ROOT, die_with_parent

TRAJECTORY_WEIGHTS = (0.2, 1.7, 0.9, 3.1, 1.0, 0.4, 2.2, 0.05)
SGD_RATE = 1024.0
"""Learning rate of SGD: a power of two, so large that the change of the weights is the gradient."""
SMALL_BUCKET = 20_000
"""Numbers: the model has several buckets, and an embedding larger than one."""
GRADIENTS_FILE = "gradients.safetensors"
ERROR_FILE = "error.txt"


def zero2(place: CheckPlace) -> str:
    """On a GPU in bf16 with Liger's kernels; on the CPU in float32 without."""
    gradients = _measure(place)
    exact = _direct(_model(place.device))
    error = max(relative(gradients[name], gradient) for name, gradient in exact.items())
    limit = 5e-2 if place.cuda else 1e-5
    kernels = "Liger, bf16" if place.cuda else "float32, without Liger (needs a GPU)"
    return f"{within('gradient', error, limit)}, {kernels}"


def _measure(place: CheckPlace) -> dict[str, Tensor]:
    """The gradients, from processes that torchrun starts."""
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={place.processes}", "--standalone"]
    arguments = ["-m", "lark.gpu_check.gradients", place.device, str(place.folder)]
    command = [sys.executable, *torchrun, *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False, preexec_fn=die_with_parent).returncode
    if code != 0:
        file = place.folder / ERROR_FILE
        reason = file.read_text(encoding="utf-8") if file.exists() else f"exit code {code}"
        raise LarkError(f"DeepSpeed's processes failed: {reason}")
    return load_file(place.folder / GRADIENTS_FILE)


def _model(device: str) -> PreTrainedModel:
    """A small Llama with random weights, in the precision of training."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=VARLEN, trust_remote_code=False
    )
    return model.to(torch.bfloat16 if device == "cuda" else torch.float32)  # type: ignore[arg-type]


def _trajectories() -> list[Encoded]:
    generator = torch.Generator().manual_seed(1)
    lengths = [12 + 17 * k % 60 for k in range(len(TRAJECTORY_WEIGHTS))]
    trajectories = []
    for length in lengths:
        ids = torch.randint(512, (length,), generator=generator).tolist()
        trajectories.append(Encoded(tuple(ids), 4 + length // 8, truncated=False))
    return trajectories


def _direct(model: PreTrainedModel) -> dict[str, Tensor]:
    """∇ 1/N Σ w_i ℓ_i, one trajectory at a time, from full logits."""
    model = copy.deepcopy(model).double()
    for trajectory, weight in zip(_trajectories(), TRAJECTORY_WEIGHTS, strict=True):
        ids = torch.tensor([list(trajectory.ids)])
        start = trajectory.prompt_length
        logits = model(input_ids=ids, use_cache=False).logits[0]
        loss = functional.cross_entropy(logits[start - 1 : -1], ids[0, start:])
        (weight * loss / len(TRAJECTORY_WEIGHTS)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _settings(device: str, world: int) -> dict[str, Any]:
    """DeepSpeed's configuration as training has it, with one step per batch."""
    bf16 = str(device == "cuda").lower()
    settings = deepspeed_config(composed([f"training.bf16={bf16}"]), 2, device)
    settings["zero_optimization"] |= {
        "reduce_bucket_size": SMALL_BUCKET,
        "allgather_bucket_size": SMALL_BUCKET,
    }
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "train_batch_size": world}
    return settings | batch | {"gradient_clipping": 0.0, "zero_allow_untested_optimizer": True}


def _gradients(device: str, rank: int, world: int) -> dict[str, Tensor]:
    """One step in two micro-batches; the change of the weights is the gradient. A collective."""
    import deepspeed  # noqa: PLC0415  # after `connect`
    from deepspeed.utils import safe_get_full_fp32_param  # noqa: PLC0415

    model = _model(device).to(f"cuda:{rank}" if device == "cuda" else "cpu")  # type: ignore[arg-type]
    before = {name: p.detach().float().cpu().clone() for name, p in model.named_parameters()}
    if device == "cuda":
        expect_liger(apply_liger(model, device))
    return_weighted_loss(model, PLAIN)
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD_RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=_settings(device, world))
    pairs = list(zip(_trajectories(), TRAJECTORY_WEIGHTS, strict=True))[rank::world]
    middle = len(pairs) // 2
    for part, last in ((pairs[:middle], False), (pairs[middle:], True)):
        micro = collate_packed([t for t, _ in part], [w for _, w in part]).to(engine.device)
        engine.set_gradient_accumulation_boundary(last)
        loss, *_ = engine(micro, len(TRAJECTORY_WEIGHTS))
        engine.backward(loss * world, scale_wrt_gas=False)  # the engine averages over processes
    engine.step()
    after = {name: safe_get_full_fp32_param(p).float().cpu() for name, p in model.named_parameters()}
    return {name: ((before[name] - value) / SGD_RATE).contiguous() for name, value in after.items()}


def main(device: str, folder: Path) -> None:
    die_with_parent()
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    try:
        use_device(f"cuda:{rank}" if device == "cuda" else "cpu")
        torch.set_num_threads(1)
        connect(device, deepspeed=True)
        gradients = _gradients(device, rank, world)
        if rank == 0:
            save_file(gradients, folder / GRADIENTS_FILE)
    except Exception as error:
        file = folder / ERROR_FILE
        if not file.exists():  # the first one counts: the others fail because they lose it
            name = "" if isinstance(error, LarkError) else f"{type(error).__name__}: "
            file.write_text(f"{name}{error}", encoding="utf-8")
        raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
