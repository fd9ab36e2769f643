"""Generation with SGLang's offline engine, the paper's fallback. Written against SGLang 0.5.23 (Engine,
GenerateReqInput, SamplingParams). It needs a GPU and packages that exclude vLLM (environment-sglang.yml),
so the test suite runs it against a stand-in for its engine.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lark import config
from lark.errors import LarkError, first_line
from lark.generation.checks import require_finished, require_gpu
from lark.generation.engine import Generation, Request, Sampling, constraint, decode
from lark.generation.vllm import leave_launcher

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SGLangEngine:
    def __init__(
        self,
        engine: config.EngineSettings,
        student: config.Student,
        model: str,
        tokenizer: "PreTrainedTokenizerBase",
        device: str,
    ) -> None:
        require_gpu(device)
        leave_launcher()
        import sglang  # noqa: PLC0415

        self.tokenizer = tokenizer
        try:
            self.engine: Any = sglang.Engine(
                model_path=model,
                revision=student.revision,
                dtype=student.dtype,
                context_length=student.max_length,
                tp_size=engine.tensor_parallel,
                random_seed=0,
                load_format="safetensors",
                trust_remote_code=False,
                # Without CUDA graphs and activations. None: SGLang's own estimate.
                mem_fraction_static=engine.memory,
                disable_cuda_graph=engine.is_eager(device),
                # Otherwise the seed of a request is ignored.
                enable_deterministic_inference=True,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise LarkError(f"engine=sglang cannot start with {model} ({first_line(error)}).") from error

    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> Iterator[tuple[int, list[Generation]]]:
        """All requests are queued at once, and SGLang batches them continuously. Each is returned when it
        is complete.
        """
        loop: asyncio.AbstractEventLoop = self.engine.loop
        done: asyncio.Queue[asyncio.Task[tuple[int, list[dict[str, Any]]]]] = asyncio.Queue()
        tasks = []
        for index, request in enumerate(requests):
            task = loop.create_task(self._answer(index, request, sampling))
            task.add_done_callback(done.put_nowait)
            tasks.append(task)
        try:
            for _ in tasks:
                finished = loop.run_until_complete(done.get())
                error = finished.exception()
                if error is not None:
                    raise LarkError(f"engine=sglang refused a request ({first_line(error)}).") from error
                index, outputs = finished.result()
                yield index, self._decoded(outputs, sampling)
        finally:
            # If the caller stopped early, cancelling a task aborts its request.
            unfinished = [task for task in tasks if not task.done()]
            for task in unfinished:
                task.cancel()
            if unfinished:
                loop.run_until_complete(asyncio.wait(unfinished))

    async def _answer(
        self, index: int, request: Request, sampling: Sampling
    ) -> tuple[int, list[dict[str, Any]]]:
        """All samples of a request. Each is a separate request to SGLang, because a seed belongs to one;
        the prompt is cached.
        """
        samples = []
        wanted = {"return_logprob": True} if sampling.logprobs else {}
        for sample in range(sampling.samples):
            settings = parameters(request, sample, sampling)
            samples.append(
                self.engine.async_generate(input_ids=list(request.prompt), sampling_params=settings, **wanted)
            )
        return index, list(await asyncio.gather(*samples))

    def _decoded(self, outputs: Sequence[dict[str, Any]], sampling: Sampling) -> list[Generation]:
        reasons = [output["meta_info"]["finish_reason"] for output in outputs]
        for reason in reasons:
            require_finished(reason)
        tokens = [list(output["output_ids"]) for output in outputs]
        finished = [reason["type"] for reason in reasons]
        logprobs = None
        if sampling.logprobs:
            logprobs = [_logprobs(output["meta_info"]) for output in outputs]
        return decode(self.tokenizer, tokens, finished, sampling.stop_ids, logprobs)

    def close(self) -> None:
        self.engine.shutdown()


def _logprobs(meta_info: dict[str, Any]) -> list[float]:
    """The log-probability of each generated token. SGLang gives it with the token's id and text."""
    return [float(logprob) for logprob, *_ in meta_info["output_token_logprobs"]]


def parameters(request: Request, sample: int, sampling: Sampling) -> dict[str, Any]:
    """SGLang's parameters for one sample. As in vLLM, sample i has the request's seed + i."""
    return {
        "sampling_seed": request.seed + sample,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "max_new_tokens": request.max_new_tokens,
        "stop_token_ids": list(sampling.stop_ids),
        "no_stop_trim": True,
        **_constraint(sampling),
    }


def _constraint(sampling: Sampling) -> dict[str, str]:
    """SGLang has no option for a list of answers, so it is passed as a regular expression."""
    allowed = constraint(sampling.schema)
    if allowed is None:
        return {}
    if isinstance(allowed, dict):
        return {"json_schema": json.dumps(allowed)}
    # Not `re.escape`: it also escapes characters that have no meaning in SGLang's grammar, such as spaces.
    escaped = [re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", text) for text in allowed]
    return {"regex": "|".join(escaped)}
