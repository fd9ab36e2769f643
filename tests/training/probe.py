"""What training actually does with its settings, on as many processes as this is started with.

Run as: torchrun --nproc_per_node=2 -m tests.training.probe <folder> <folder>/cases.json has, by name, the
student and training set to use and the settings; <folder>/results.json has the results. One step of plain
SGD with a large rate turns the gradient that the optimizer is given into the change of the weights.
"""

import contextlib
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from safetensors.torch import save_file
from torch import Tensor, distributed
from torch.distributed.elastic.multiprocessing.errors import record
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.trainer_utils import SaveStrategy

from lark.errors import LarkError
from lark.models.attention import separate_segments
from lark.training import zero as zero_module
from lark.training.sequence import SequenceParallel
from lark.training.worker import Run, prepare, train
from lark.work.devices import leave_group
from lark.work.worker import leave
from tests.training.tiny import CrashAt, make_job
from tests.training.waiting import group_timeout

BUCKET = zero_module.BUCKET
RATE = 1024.0
"""A power of two, so large that the weights before the step are only rounding in comparison."""
SGD = [
    f"training.learning_rate={RATE}",
    "training.schedule=constant",
    "training.warmup=0",
    "training.max_grad_norm=1e9",
]


def fresh() -> None:
    """Reset global state: one process trains in several ways."""
    AcceleratorState._reset_state(reset_partial_state=True)
    unset_hf_deepspeed_config()


def trained(student: Path, selection: Path, folder: Path, *overrides: str) -> Run:
    """A finished run, with SGD instead of AdamW. It writes no checkpoint: the runs that are resumed do."""
    fresh()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    run = prepare(make_job(student, selection, folder, *SGD, *overrides, rank=rank, world=world))
    run.trainer.args.optim = "sgd"
    run.trainer.args.save_strategy = SaveStrategy.NO
    run.trainer.train()
    return run


def gradients(before: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
    """The gradients that the optimizer received, on the main process."""
    after = run.exporter.state(needed=run.trainer.is_world_process_zero())
    return {name: (before[name] - value).contiguous() / RATE for name, value in after.items()}


def crashed_and_resumed(student: Path, selection: Path, folder: Path, *overrides: str) -> dict[str, Any]:
    """The same AdamW run twice: complete, and stopped after step 3 of 4, with a last checkpoint at step 2."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    settings = [
        "training.global_batch=4",
        "training.checkpoints=2",
        "training.learning_rate=0.01",
        *overrides,
    ]
    for name in ("whole", "crashed"):
        job = make_job(student, selection, folder / name, *settings, rank=rank, world=world)
        if name == "crashed":
            fresh()
            run = prepare(job)
            run.trainer.add_callback(CrashAt(3))
            with contextlib.suppress(KeyboardInterrupt):
                run.trainer.train()
            run.trainer.accelerator.wait_for_everyone()
            resumed_from = sorted(path.name for path in (folder / name).glob("checkpoints/*"))
            weights = [
                p for end in ("pt", "safetensors") for p in (folder / name).glob(f"checkpoints/*/**/*.{end}")
            ]
            size = sum(path.stat().st_size for path in weights)
            files = sorted(path.name for path in weights)
            run.trainer.accelerator.wait_for_everyone()
        fresh()
        train(job)
    return {"resumed_from": resumed_from, "bytes": size, "files": files}


def stopped(student: Path, selection: Path, folder: Path, *overrides: str) -> dict[str, Any]:
    """The error that stops a run, in each process; None in a process that finishes it."""
    error = None
    try:
        trained(student, selection, folder, *overrides)
    except LarkError as refusal:
        error = str(refusal)
    errors: list[str | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(errors, error)
    return {"errors": errors}


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
ARCHITECTURES = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "sliding window": MistralConfig(**SIZES, sliding_window=8),
    "masked window": Qwen2MoeConfig(  # its layers do not pass their window to the attention function
        **SIZES,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
}


def refusals(parts: int) -> dict[str, str | None]:
    """Whether each architecture can share a sequence; if not, why."""
    sequence, said = SequenceParallel(parts), {}
    for name, config in ARCHITECTURES.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        separate_segments(model)
        try:
            sequence.attach_checked(model, packed=True)
            said[name] = None
        except LarkError as error:
            said[name] = str(error)
    return said


def held(run: Run) -> dict[str, int]:
    """Bytes that ZeRO-3 keeps between passes with an offloaded optimizer without moments (SGD)."""
    sharded = run.trainer.model_wrapped.optimizer
    host = [*sharded.fp32_partitioned_groups_flat, sharded.grad_partitions_flat_buffer]
    host += [part.grad for part in sharded.fp32_partitioned_groups_flat]
    buckets = [bucket.buffer for bucket in sharded.ipg_buckets.values()]
    tensors = {"host": host, "weights": [sharded.lp_param_buffer], "buckets": buckets}
    return {name: sum(t.numel() * t.element_size() for t in parts) for name, parts in tensors.items()}


def answer(folder: Path, name: str, case: dict[str, Any], before: dict[str, Tensor]) -> dict[str, Any]:
    zero_module.BUCKET = case.get("bucket", BUCKET)
    if "parts" in case:
        return refusals(case["parts"])
    if name.endswith("resumed"):
        return crashed_and_resumed(
            folder / case["student"], folder / case["selection"], folder / name, *case["overrides"]
        )
    if name.endswith("stopped"):
        return stopped(
            folder / case["student"], folder / case["selection"], folder / name, *case["overrides"]
        )
    run = trained(folder / case["student"], folder / case["selection"], folder / name, *case["overrides"])
    if case["student"] == "student" and not run.exporter.config.training.lora.rank:
        found = {
            key: value.clone() for key, value in gradients(before, run).items() if key != "lm_head.weight"
        }
        if found:
            save_file(found, folder / f"{name}.safetensors")
    else:
        run.exporter.export()
    schedule = run.trainer.lr_scheduler
    model = run.exporter.student
    return {
        "frozen": [name for name, weight in model.named_parameters() if not weight.requires_grad],
        "recomputed": [layer.gradient_checkpointing for layer in model.get_decoder().layers],
        "zero": run.trainer.sharding.zero,
        "held": held(run) if "offload" in name else None,
        "micro_steps": len(run.trainer.batches.steps[0].micro[0]),
        "wrapper": type(run.trainer.model_wrapped).__name__,
        "views": getattr(run.trainer.model_wrapped, "gradient_as_bucket_view", None),
        "skipped": run.trainer.skipped,
        "scheduled": schedule.last_epoch,
        "timeout": group_timeout(),
    }


@record  # torchrun's report of a failure ends with the error of the process that failed first
def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # every run ends with a collection, which would visit all that was imported
    before = AutoModelForCausalLM.from_pretrained(folder / "student").state_dict()
    cases = json.loads((folder / "cases.json").read_text())
    results = {name: answer(folder, name, case, before) for name, case in cases.items()}
    if os.environ.get("RANK", "0") == "0":
        (folder / f"results-{os.environ.get('WORLD_SIZE', '1')}.json").write_text(json.dumps(results))
    leave_group()


if __name__ == "__main__":
    main()
    leave(0)
