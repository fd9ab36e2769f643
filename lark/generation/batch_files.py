"""The OpenAI batch format: a file of requests for one teacher, and files of their results.

Batch APIs, which cost less, take such files, and so does `vllm run-batch` on another machine. A line is one
sample of one question, which its `custom_id` names.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from lark import config
from lark.errors import LarkError
from lark.generation import checks, refusals
from lark.generation.chat_requests import InvalidAnswerError, body, replies
from lark.generation.client import HttpAnswer
from lark.generation.conversation import Ask, AskSampling, Failure, Reply
from lark.generation.refusals import Again
from lark.reading.fields import Fields
from lark.reading.rows import Row, rows
from lark.store.store import atomic

REQUESTS = "requests-*.jsonl"
"""Names of the files of requests."""
URL = "/v1/chat/completions"
MOST_LINES = 50_000
MOST_BYTES = 190_000_000
"""What a file may contain at OpenAI, with some room: 50,000 requests and 200 MB."""
ADVICE = "Give the output of the batch API, or of `vllm run-batch`."


@dataclass(frozen=True)
class BatchResult:
    """The result of one line."""

    key: str
    sample: int
    outcome: Reply | Failure | Again
    """`Again`: the request can be sent again, because the server failed."""


def write(
    folder: Path,
    teacher: config.Teacher,
    asks: Iterable[tuple[str, int, Ask]],
    sampling: AskSampling,
    most_lines: int = MOST_LINES,
    most_bytes: int = MOST_BYTES,
) -> list[Path]:
    """Write requests as `requests-1.jsonl`, `requests-2.jsonl`, …; return these files. `asks`: key of the
    question, number of its first sample, and what is asked.
    """
    lines = (line for key, first, ask in asks for line in _lines(key, first, ask, teacher, sampling))
    files: list[Path] = []
    waiting = next(lines, None)
    for number in count(1):
        if waiting is None:
            return files
        path = folder / REQUESTS.replace("*", str(number))
        written = 0
        size = 0
        with atomic(path) as draft, draft.open("wb") as out:
            while waiting is not None and written < most_lines and size + len(waiting) <= most_bytes:
                out.write(waiting)
                written += 1
                size += len(waiting)
                waiting = next(lines, None)
        files.append(path)
    return files


def _lines(key: str, first: int, ask: Ask, teacher: config.Teacher, sampling: AskSampling) -> Iterator[bytes]:
    """A line per sample."""
    for number in range(ask.samples):
        single = replace(ask, samples=1, seed=ask.seed + number)
        line = {
            "custom_id": f"{key}/{first + number}",
            "method": "POST",
            "url": URL,
            "body": body(teacher, single, sampling),
        }
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def read(files: Sequence[Path], name: str, teacher: config.Teacher) -> Iterator[BatchResult]:
    """The results in files, in the order of their lines. `name`: the teacher's."""
    for file in files:
        for row in rows(file):
            yield _result(row, name, teacher)


def _result(row: Row, name: str, teacher: config.Teacher) -> BatchResult:
    fields = Fields(row.values, row.where, ADVICE)
    key, is_ours, sample = fields.text("custom_id").rpartition("/")
    if not is_ours or not sample.isascii() or not sample.isdigit():
        raise LarkError(
            f"{row.where}: {row.values['custom_id']!r} is not the custom_id of a request that LARK wrote."
            f" {ADVICE}"
        )
    response = row.values.get("response")
    values = response if isinstance(response, dict) else {}
    return BatchResult(key, int(sample), _outcome(values, row.values.get("error"), name, teacher))


def _outcome(
    response: dict[str, Any], error: Any, name: str, teacher: config.Teacher
) -> Reply | Failure | Again:
    status = response.get("status_code")
    answer = response.get("body")
    if status in (None, 200) and isinstance(answer, dict) and answer.get("choices"):
        try:
            outcome = replies(answer, name, teacher)
        except InvalidAnswerError as problem:
            return Again("invalid_answer", f"the answer is not a chat completion: {problem}")
        return outcome if isinstance(outcome, Failure) else outcome[0]
    # The error is in the body (OpenAI), or beside an empty response (vLLM; requests that have expired).
    reported = answer if isinstance(answer, dict) else error
    values = reported if isinstance(reported, dict) else {"message": reported or "no answer"}
    code = status if isinstance(status, int) and status >= 400 else 500
    refused = refusals.outcome(HttpAnswer(code, json.dumps(values).encode()), {}, name, teacher)
    if isinstance(refused, Failure | Again):
        return refused
    return Failure(refusals.REFUSED, checks.shown(str(values)))
