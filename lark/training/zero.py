"""DeepSpeed's settings, from ours: ZeRO-2 as in the paper (App. C.3, `zero2_bf16.json`), ZeRO-3 where a student needs it."""

import importlib
import warnings
from typing import Any

from lark.config import Config
from lark.training.limits import BUCKET, TIMEOUT


def zero_stage(config: Config, device: str, world: int) -> int:
    """The ZeRO stage in effect. One process has nothing to shard; by default, several GPUs in bf16 use the paper's 2."""
    if world == 1:
        return 0
    if config.hardware.zero is None:
        return 2 if device == "cuda" and config.training.bf16 else 0
    return config.hardware.zero


def half_weights(config: Config, zero: int) -> bool:
    """Whether weights are loaded in bf16: DeepSpeed's optimizer has fp32 master weights, and frozen weights need none."""
    frozen = config.training.lora.rank > 0 and config.student.dtype == "bfloat16"
    return config.training.bf16 and (zero > 0 or frozen)


def deepspeed_config(config: Config, stage: int, device: str) -> dict[str, Any]:
    """DeepSpeed's configuration; `auto` is filled in from the TrainingArguments.

    It does not include accumulation: our trainer marks the last micro-batch of a step. Gradients are summed over
    micro-batches, and over processes, in fp32.
    """
    sharding: dict[str, Any] = {
        "stage": stage,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
        "contiguous_gradients": True,
    }
    if stage == 2:
        sharding["overlap_comm"] = device == "cuda"  # reduce one bucket while the next is computed; needs CUDA's streams
    if stage == 3:
        sharding |= {"stage3_prefetch_bucket_size": BUCKET, "stage3_gather_16bit_weights_on_model_save": True}
    return {
        "zero_optimization": sharding,
        # Non-finite gradients skip the step on every process, as they do without DeepSpeed.
        "bf16": {"enabled": config.training.bf16, "check_grad_overflow": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "gradient_clipping": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "steps_per_print": 2**31,
    }


def connect(device: str, stage: int) -> None:
    """Connect the processes of a run. This comes before a model is loaded, because ZeRO-3 shards it while loading."""
    backend = "gloo" if device == "cpu" else "nccl"
    if not stage:
        distributed = importlib.import_module("torch.distributed")
        if not distributed.is_initialized():
            distributed.init_process_group(backend, timeout=TIMEOUT)
        return
    # DeepSpeed uses deprecated names of torch, and torch warns at every call.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    deepspeed = importlib.import_module("deepspeed")
    if device == "cpu":
        # DeepSpeed would compile a kernel for sums in shared memory; gloo works as well and needs no compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(backend, verbose=False, timeout=TIMEOUT)
