"""LLM-judged quality (paper, App. C.2): the judge's prompt, the schema of its answers, and where its
verdicts are stored.

A verdict depends only on the judge, the question and the response. It is stored under their hash in a
folder of this judge, so that neither another pool nor a resumed run asks for it twice. Imports no model
code; the judge runs in `lark.scoring.judge_worker`.
"""

import hashlib
import json
import logging
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lark.generation.journal import read
from lark.models.dialogue import response_text
from lark.pool import trajectories as pools
from lark.printing import some
from lark.scoring import judge_prompts as prompts
from lark.scoring.checks import check_verdicts
from lark.scoring.sources import JUDGE_TABLE
from lark.store.store import atomic
from lark.work.operation import Counts, Job

log = logging.getLogger(__name__)

CRITERIA = (
    "Factual Accuracy", "Logical Rigor", "Solution Completeness", "Reasoning Efficiency",
    "Presentation Quality",
)  # fmt: skip
TENTHS = [round(i / 10, 1) for i in range(11)]
NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
BARE_SCORE = re.compile(rf"""(?<!\\)(["'])overall_score\1\s*:\s*(["']?)(?P<number>{NUMBER})\2\s*[,}}\n]""")
"""The score in broken JSON. Something must follow the number: at the end of an answer, its last digits may
be cut off.
"""
INVALID = (
    "          %(invalid)d of %(trajectories)d answers of the judge were not valid and count as missing; "
    "%(cut)d responses were cut to fit its context"
)
LONGEST_VERDICT = 20_000
"""Characters of an answer that are searched for JSON."""


def user_turn(style: str, question: str, response: str) -> str:
    """The judge's prompt."""
    template = prompts.PAPER_PROMPT if style == "paper" else prompts.BRIEF_PROMPT
    before, _, rest = template.partition("{question}")
    between, _, after = rest.partition("{reasoning_to_evaluate}")
    return f"{before}{question.strip()}{between}{response.strip()}{after}"


def schema(style: str, longest_text: int = 400) -> dict[str, Any]:
    """The JSON that the prompt asks for. `longest_text` limits a justification (in characters), so that
    every answer ends.
    """
    if style == "brief":
        return _object({"overall_score": {"enum": TENTHS}})
    # A pattern instead of `maxLength`: with the latter, xgrammar allows control characters in a string, which
    # JSON does not.
    text = {"type": "string", "pattern": rf'^[^\x00-\x1f"\\]{{0,{longest_text}}}$'}
    score = {"type": "number", "minimum": 0, "maximum": 1}
    criterion = _object({"score": score, "justification": text})
    return _object(
        {
            "dimensional_evaluation": _object(dict.fromkeys(CRITERIA, criterion)),
            "overall_score": score,
            "overall_reason": text,
        }
    )


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def overall_score(answer: str) -> float | None:
    """s_judge in [0, 1] (App. C.2) from the first JSON object that has one, ignoring the text around it.
    None if not valid.

    If there is no such object, because LaTeX's backslashes, quotes or commas break it or its end is cut
    off, the score is the number after its key, provided that the number is complete and all such places
    agree.
    """
    before, end, after = answer.partition("</think>")
    answer = (after if end else before)[:LONGEST_VERDICT]
    if answer.lstrip().startswith("<think>"):
        return None  # it never reached an answer
    for brace in re.finditer(r"\{", answer):
        try:
            value, _ = json.JSONDecoder(strict=False).raw_decode(answer, brace.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "overall_score" in value:
            return _in_range(value["overall_score"])
    start = answer.find("{")
    if start < 0:
        return None
    numbers = {match["number"] for match in BARE_SCORE.finditer(answer, start)}
    return _in_range(numbers.pop()) if len(numbers) == 1 else None


def _in_range(score: Any) -> float | None:
    if isinstance(score, str) and re.fullmatch(NUMBER, score.strip()):
        score = float(score)
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return float(score) if is_number and 0 <= score <= 1 else None


def key(question: str, response: str) -> str:
    """Identifies a verdict among those of one judge."""
    lengths = f"{len(question)},{len(response)};"
    return hashlib.sha256((lengths + question + response).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def verdicts_folder(artifact: Path) -> Path:
    """Folder of this judge's verdicts: next to the artifacts, named after everything that its artifact
    depends on.
    """
    config = yaml.safe_load((artifact / "config.yaml").read_text(encoding="utf-8"))
    identity = {"version": config["version"], **config["depends"]}
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    return artifact.parents[1] / ".cache" / f"judge-{name}"


def known_verdicts(folder: Path, report: bool = False) -> dict[str, Mapping[str, Any]]:
    """All verdicts of this judge so far, by `key`. Answers are parsed again: newer code may understand more
    of them.

    `report`: log which lines are left out.
    """
    lost: list[str] = []
    verdicts: dict[str, Mapping[str, Any]] = {}
    for row in read(folder.glob("*.jsonl"), folder.name, _problem, lost):
        verdicts.setdefault(row["key"], {**row, "score": overall_score(row["answer"])})
    if lost and report:
        log.warning(
            "%s: %s. The judge is asked again for this verdict if it is needed.", folder, some(lost, 1)
        )
    return verdicts


def _problem(row: Mapping[str, Any]) -> str | None:
    types = {"key": str, "answer": str, "cut": bool}
    is_verdict = all(isinstance(row.get(name), kind) for name, kind in types.items())
    return None if is_verdict else "this is not a verdict"


def forget(artifact: Path) -> None:
    """Drop this judge's verdicts (`force=[judge]`)."""
    shutil.rmtree(verdicts_folder(artifact), ignore_errors=True)


def collect(job: Job, asked: Counts) -> Counts:
    """`judge.parquet`: question_id, candidate_id, judge (NaN where the judge gave no valid answer), valid,
    cut.
    """
    folder = verdicts_folder(job.folder)
    verdicts = known_verdicts(folder)
    columns: defaultdict[str, list[Any]] = defaultdict(list)
    for rows in pools.row_groups(job.inputs["pool"] / pools.FILE, pools.TEXT_COLUMNS):
        keys = [key(row["question"], response_text(row)) for row in rows]
        missing = [row["question_id"] for row, name in zip(rows, keys, strict=True) if name not in verdicts]
        check_verdicts(folder, missing)
        for row, name in zip(rows, keys, strict=True):
            score = verdicts[name]["score"]
            columns["question_id"].append(row["question_id"])
            columns["candidate_id"].append(row["candidate_id"])
            columns["judge"].append(math.nan if score is None else score)
            columns["valid"].append(score is not None)
            columns["cut"].append(verdicts[name]["cut"])
    table = pd.DataFrame(columns)
    with atomic(job.folder / JUDGE_TABLE.file) as draft:
        table.to_parquet(draft, index=False)
    counts = {
        "trajectories": len(table),
        "invalid": int((~table["valid"]).sum()),
        "cut": int(table["cut"].sum()),
    }
    if counts["invalid"] or counts["cut"]:
        log.warning(INVALID, counts)
    return {**asked, **counts}
