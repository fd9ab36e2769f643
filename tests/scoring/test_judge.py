"""The judge: the paper's prompt, answers that are valid or missing, and no question asked twice."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.config import Judge
from lark.errors import LarkError
from lark.generation.engine import Generation, Request, Sampling
from lark.generation.journal import CHECK, Journal, read
from lark.models.students import DEMO
from lark.pool import trajectories as pools
from lark.scoring import judge, judge_worker
from lark.scoring import judge_prompts as prompts
from lark.scoring.judge_worker import Asker, judge_pool, load_tokenizer
from lark.scoring.sources import JUDGE_TABLE
from lark.work.operation import Job
from tests.conftest import ROOT, composed, job_of

BRIEF = Judge(path="demo", style="brief", dtype="float32", max_length=512, max_new_tokens=24)


def test_the_judge_prompt_is_the_papers_word_for_word() -> None:
    paper = ROOT.parent / "shared" / "paper" / "lark.tex"
    if not paper.is_file():
        pytest.skip("no ../shared/paper beside the repository")
    text = paper.read_text(encoding="utf-8")
    text = text[text.index("title={Judge Prompt") :]
    text = text[text.index("]") + 1 : text.index(r"\end{prompt}")]
    text = re.sub(r"\\(begin|end)\{verbatim\}", "", text)
    text = re.sub(r"\\texttt\{\\\{(.*?)\\\}\}", r"{\1}", text).replace(r"\_", "_")
    assert prompts.PAPER_PROMPT.split() == text.split()


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (
            (
                '{"dimensional_evaluation": {"Logical Rigor": {"score": 0.2}}, "overall_score": 0.7,'
                ' "overall_reason": "x"}'
            ),
            0.7,
        ),
        ('Here it is:\n```json\n{"overall_score": 1}\n```', 1.0),
        ('{"a": {"b": 1}} {"overall_score": 0}', 0.0),
        ('{"overall_score": 1.2}', None),
        ('{"overall_score": -0.1}', None),
        ('{"overall_score": "0.5"}', 0.5),
        ('{"overall_score": "high"}', None),
        (
            (
                r'{"a": {"justification": "$\frac{1}{2}$ is \(right\)"}, "overall_score": 0.4,'
                r' "overall_reason": "\x"}'
            ),
            0.4,
        ),
        ('{"a": {"justification": "two\nlines\tand a tab"}, "overall_score": 0.6}', 0.6),
        ('{"a": {"score": 0.1,}, "overall_score": 0.9,}', 0.9),
        ("{'a': {'score': 0.1}, 'overall_score': 0.3, 'overall_reason': 'it\\'s fine'}", 0.3),
        ("{'overall_score': '0.8'}", 0.8),
        ('{"a": {"score": 0.1}, "overall_score": 0.2, "overall_reason": "The rea', 0.2),
        ('{"a": 1, "overall_score": 0.2\n', 0.2),
        ('<think>{"overall_score": 0.1}, or {x}?</think>\n{"overall_score": 0.8}', 0.8),
        ('{"overall_score": 0.1} I guess.</think>{"overall_score": 0.8}', 0.8),
        ('<think>Perhaps {"overall_score": 0.1}', None),
        ('{"overall_score": 0.1}</think>', None),
        (r'{"a": "it says \"overall_score\": 1.0, \(wrong\)", "overall_score": 0.1}', 0.1),
        (r'{"a": "\(x\)", "overall_score": 0.1, "overall_score": 0.9}', None),
        (r'{"a": "\(x\)", "overall_score": 1.2}', None),
        (r'{"a": "\(x\)", "overall_score": 0.8/1.0}', None),
        (r'{"a": "\(x\)", "overall_score": 0.', None),
        ('"overall_score": 0.5,', None),
        (prompts.PAPER_PROMPT, None),
        (prompts.BRIEF_PROMPT, None),
        (prompts.PAPER_PROMPT + '\n{"overall_score": 0.7}', 0.7),
        ('{"overall_score": true}', None),
        ('{"overall_score": NaN}', None),
        ('{"overall_score": null}', None),
        ('{"overall_score": 0.5', None),
        ("0.5", None),
        ("", None),
    ],
)
def test_a_verdict_is_valid_or_missing(answer: str, score: float | None) -> None:
    assert judge.overall_score(answer) == score


PIECES = ['{"overall_score":', "'overall_score':", "{", "}", "0.3", "[", '"', "'", "\\", "1e999", "-1", ",",
          "\n",
          "<think>", "</think>", "\ud83d", "9" * 400]  # fmt: skip


@settings(deadline=None)
@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_answer_breaks_the_reader(answer: str) -> None:
    score = judge.overall_score(answer)
    assert score is None or 0 <= score <= 1


def test_no_answer_takes_long_to_read() -> None:
    assert judge.overall_score('{"a":' * 10**6) is None
    assert judge.overall_score("[" * 10**6 + "{" * 10**6) is None


@given(st.text(), st.text(), st.text(), st.text())
def test_a_key_tells_question_and_response_apart(a: str, b: str, c: str, d: str) -> None:
    assert (judge.key(a, b) == judge.key(c, d)) == ((a, b) == (c, d))


@pytest.fixture(scope="module")
def asker() -> Asker:
    return Asker(BRIEF, *load_tokenizer(str(DEMO), BRIEF))


def test_a_response_is_cut_from_the_right_to_fit(asker: Asker) -> None:
    whole, cut = asker.prompt("What is 3 + 4?", "It is 7.")
    assert not cut
    assert "3 + 4" in asker.tokenizer.decode(whole)
    tokens, cut = asker.prompt("What is 3 + 4?", "BEGIN " + "It is 7. " * 500)
    assert cut
    assert len(tokens) <= 512 - 24
    assert "BEGIN" in asker.tokenizer.decode(tokens)
    assert "overall_score" in asker.tokenizer.decode(tokens)
    with pytest.raises(LarkError, match=r"style=brief or raise max_length"):
        asker.prompt("What? " * 500, "It is 7.")


def test_braces_in_a_question_stay_as_they_are() -> None:
    turn = judge.user_turn("paper", "{reasoning_to_evaluate} {x}", "{question}")
    assert "<Problem>\n{reasoning_to_evaluate} {x}\n</Problem>" in turn
    assert "<Reasoning>\n{question}\n</Reasoning>" in turn


def test_thinking_is_turned_off_where_a_template_knows_it(asker: Asker) -> None:
    own = asker.tokenizer.chat_template
    try:
        asker.tokenizer.chat_template = (
            "{% if enable_thinking is defined and enable_thinking is false %}quiet{% endif %}"
        )
        assert asker.tokenizer.decode(asker.prompt("q", "r")[0]) == "quiet"
    finally:
        asker.tokenizer.chat_template = own


class Scripted:
    """An engine with fixed answers: every first attempt at an odd seed is not JSON."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float]] = []

    def generate(self, requests: list[Request], sampling: Sampling) -> Any:
        self.calls.append((len(requests), sampling.temperature))
        for i, request in enumerate(requests):
            valid = request.seed % 2 == 0
            yield i, [Generation('{"overall_score": 0.5}' if valid else "I would say 0.5", "stop", 5)]

    def close(self) -> None: ...


def pool_job(folder: Path, rows: list[tuple[str, str]], rank: int = 0, world: int = 1) -> Job:
    """A pool of (question, response) and the job of judging it, as the pipeline creates it."""
    artifact, pool = folder / "judge" / "test", folder / "pool" / "test"
    for path in (artifact, pool):
        path.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows, columns=["question", "response"])
    table["question_id"], table["candidate_id"] = table["question"], [f"c{i}" for i in range(len(table))]
    table.to_parquet(pool / pools.FILE)
    (artifact / "config.yaml").write_text(yaml.safe_dump({"version": 3, "depends": {"judge": asdict(BRIEF)}}))
    config = composed("method=llm_judge")
    return job_of(config, artifact, inputs={"pool": pool}, rank=rank, world=world)


ROWS = [(f"What is {a} + {b}?", f"It is {a + b + d}.") for a in range(4) for b in range(3) for d in range(2)]


def test_an_answer_that_is_not_valid_is_asked_for_again_and_then_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Scripted()
    monkeypatch.setattr(judge_worker.engines, "start", lambda *_: engine)
    job = pool_job(tmp_path, ROWS)
    job.config.method.judge.retries = 0
    judge_pool(job)
    counts = judge.collect(job, {})
    table = pd.read_parquet(job.folder / JUDGE_TABLE.file)
    assert list(table.columns) == ["question_id", "candidate_id", "judge", "valid", "cut"]
    assert 0 < counts["invalid"] < 24
    assert table["judge"].isna().sum() == (~table["valid"]).sum() == counts["invalid"]
    judge.forget(job.folder)
    job.config.method.judge.retries = 1
    judge_pool(job)
    assert judge.collect(job, {})["invalid"] == 0
    assert engine.calls[1:] == [(24, 0.0), (counts["invalid"], judge_worker.RETRY_TEMPERATURE)]


def test_the_demos_student_judges_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    job = pool_job(tmp_path, ROWS[:10])
    assert judge_pool(job) == {"asked": 10}
    counts = judge.collect(job, {})
    assert counts == {"trajectories": 10, "invalid": 0, "cut": 0}
    first = pd.read_parquet(job.folder / JUDGE_TABLE.file)
    assert first["judge"].isin(judge.TENTHS).all()
    assert judge_pool(job) == {"asked": 0}
    # Another pool with the same ten, one of them twice, by two processes; and a torn line, as after a kill.
    folder = judge.verdicts_folder(job.folder)
    (next(folder.glob("*.jsonl"))).open("ab").write(b'{"key": "to')
    asked = [judge_pool(pool_job(tmp_path, [*ROWS[:14], ROWS[3]], rank, 2))["asked"] for rank in range(2)]
    assert sum(asked) == 4
    judge.collect(job, {})
    again = pd.read_parquet(job.folder / JUDGE_TABLE.file)
    pd.testing.assert_frame_equal(again.head(10), first)
    assert again["judge"].iloc[14] == first["judge"].iloc[3]
    keys = [row["key"] for row in read(folder.glob("*.jsonl"), folder.name, lambda row: None)]
    assert len(keys) == len(set(keys)) == 14


@pytest.mark.parametrize(
    "harm", ["score", "answer", "key", "broken", "blank", "binary", "list", "foreign", "unchecked", "removed"]
)
def test_a_damaged_line_of_the_verdict_cache_is_asked_again(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(judge_worker.engines, "start", lambda *_: Scripted())
    job = pool_job(tmp_path, ROWS)
    judge_pool(job)
    judge.collect(job, {})
    before = (job.folder / JUDGE_TABLE.file).read_bytes()
    folder = judge.verdicts_folder(job.folder)
    (path,) = folder.glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    row = json.loads(lines[5])
    changed = {
        "score": {**row, "cut": True},
        "answer": {**row, "answer": '{"overall_score": 0.9}'},
        "key": {**row, "key": "0" * 32},
        "list": [row],
        "unchecked": {key: value for key, value in row.items() if key != CHECK},
    }
    raw = {"broken": lines[5][:30] + b"\n", "blank": b"\n", "binary": b"\xff\x00\n", "removed": b""}
    if harm == "foreign":
        (tmp_path / "other").touch()
        with Journal(tmp_path / "other", "judge-of-another-model") as other:
            other.append({key: value for key, value in row.items() if key != CHECK})
        raw["foreign"] = (tmp_path / "other").read_bytes()
    lines[5] = raw.get(harm) if harm in raw else json.dumps(changed[harm]).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(LarkError, match="verdicts are missing or damaged"):
        judge.collect(job, {})
    path.rename(folder / "earlier.jsonl")  # the resumed run has another process number
    caplog.clear()
    assert judge_pool(job) == {"asked": 1}
    assert harm == "removed" or "earlier.jsonl, line 6: " in caplog.text
    judge.collect(job, {})
    assert (job.folder / JUDGE_TABLE.file).read_bytes() == before


def test_the_paper_schema_is_strict() -> None:
    text = json.dumps(judge.schema("paper"))
    assert text.count('"additionalProperties": false') == 7
    assert judge.schema("paper")["required"] == ["dimensional_evaluation", "overall_score", "overall_reason"]
