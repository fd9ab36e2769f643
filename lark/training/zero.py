"""DeepSpeed's settings from ours: ZeRO-2 as in the paper (App. C.3, `zero2_bf16.json`), ZeRO-3 if needed."""

import importlib
import os
import warnings
from typing import Any

from lark.config import Config
from lark.training.constants import BUCKET
from lark.work.sharding import TIMEOUT


def zero_stage(config: Config, device: str, world: int) -> int:
    """The ZeRO stage in effect. By default, several GPUs in bf16 use the paper's 2."""
    stage = config.hardware.zero
    if config.hardware.offload != "none" and (world == 1 or stage != 0):
        # Always 3. DeepSpeed 0.19.8 with ZeRO-2 leaves fp32 gradients on the GPU when it offloads the
        # optimizer, and does not clear them after a step that is not finite: all later steps are skipped too.
        return 3
    if world == 1:  # nothing to shard
        return 0
    if stage is None:
        return 2 if device == "cuda" and config.training.bf16 else 0
    return stage


def half_weights(config: Config, zero: int) -> bool:
    """True if weights are loaded in bf16: DeepSpeed has fp32 copies of them, and frozen ones need none."""
    frozen = config.training.lora.rank > 0 and config.student.dtype == "bfloat16"
    return config.training.mixed and (zero > 0 or frozen)


def deepspeed_config(config: Config, stage: int, device: str) -> dict[str, Any]:
    """DeepSpeed's configuration; `auto` is filled in from the TrainingArguments.

    It does not include accumulation: our trainer marks the last micro-batch of a step. Gradients are summed
    over micro-batches, and over processes, in fp32.
    """
    sharding: dict[str, Any] = {
        "stage": stage,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
        "contiguous_gradients": True,
    }
    if stage == 2:
        # Off on GPUs too. It would save about 2% of a step on one node. But the gradient of a parameter
        # larger than the bucket, such as a 7B student's embedding, is reduced on another CUDA stream and
        # freed without waiting for it (DeepSpeed 0.19.8, stage_1_and_2.py: no `record_stream` in processes
        # that own no part of it), so its memory may be overwritten before.
        sharding["overlap_comm"] = False
    if stage == 3:
        # All three limit the weights that are gathered at a time, as the planner counts them.
        limits = ("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance")
        sharding |= dict.fromkeys(limits, BUCKET) | {"stage3_gather_16bit_weights_on_model_save": True}
    if config.hardware.offload != "none":
        sharding["offload_optimizer"] = {"device": "cpu", "pin_memory": device == "cuda"}
    return {
        "zero_optimization": sharding,
        # An offloaded optimizer stays PyTorch's AdamW, which is fused on CPU too. DeepSpeed's own would have
        # to be compiled.
        "zero_force_ds_cpu_optimizer": False,
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


def connect(device: str, deepspeed: bool) -> None:
    """Connect the processes of a run. Comes before a model is loaded: ZeRO-3 shards it while loading."""
    backend = "gloo" if device == "cpu" else "nccl"
    if "RANK" not in os.environ:  # one process that torchrun has not started; port 0: any that is free
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if not deepspeed:
        distributed = importlib.import_module("torch.distributed")
        if not distributed.is_initialized():
            distributed.init_process_group(backend, timeout=TIMEOUT)
        return
    # DeepSpeed uses deprecated names of torch, and torch warns at every call.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    library = importlib.import_module("deepspeed")
    if device == "cpu":
        # DeepSpeed would compile a kernel for sums in shared memory; gloo works too, without a compiler.
        library.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    library.init_distributed(backend, verbose=False, timeout=TIMEOUT)
