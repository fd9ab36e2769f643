"""Generation with SGLang's offline engine, the paper's fallback. Written against its documented interface (Engine,
GenerateReqInput, SamplingParams). It needs a GPU, so the test suite checks only the requests, not the answers.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lark import config
from lark.errors import LarkError
from lark.generation.engine import Generation, Request, Sampling, constraint, decode
from lark.generation.vllm import leave_launcher

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AT_ONCE = 64
"""Requests per call. SGLang batches within a call and returns when all answers are complete."""


class SGLangEngine:
    def __init__(
        self, engine: config.Engine, student: config.Student, model: str, tokenizer: "PreTrainedTokenizerBase", device: str
    ) -> None:
        if device == "cpu":
            raise LarkError("engine=sglang needs a GPU: use engine=hf or engine=vllm on a machine without one.")
        leave_launcher()
        import sglang  # noqa: PLC0415

        self.tokenizer = tokenizer
        self.engine: Any = sglang.Engine(
            model_path=model, revision=student.revision, dtype=student.dtype, context_length=student.max_length,
            tp_size=engine.tensor_parallel, mem_fraction_static=engine.memory,
            disable_cuda_graph=engine.is_eager(device), random_seed=0,
            enable_deterministic_inference=True,  # otherwise the seed of a request is ignored
        )  # fmt: skip

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, list[Generation]]]:
        for start in range(0, len(requests), AT_ONCE):
            chunk = requests[start : start + AT_ONCE]
            # Each sample is a separate request, because a seed belongs to a request. Their prompt is cached.
            outputs = self.engine.generate(
                input_ids=[list(request.prompt) for request in chunk for _ in range(sampling.samples)],
                sampling_params=[parameters(request, i, sampling) for request in chunk for i in range(sampling.samples)],
            )
            tokens = [list(output["output_ids"]) for output in outputs]
            reasons = [output["meta_info"]["finish_reason"]["type"] for output in outputs]
            done = decode(self.tokenizer, tokens, reasons, sampling.stop_ids)
            for i in range(len(chunk)):
                yield start + i, done[i * sampling.samples : (i + 1) * sampling.samples]

    def close(self) -> None:
        self.engine.shutdown()


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
    return {"regex": "|".join(re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", text) for text in allowed)}
