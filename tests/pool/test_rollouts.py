"""Rollouts, evaluation logs and agent sessions are read whole, with the verdicts that they bring."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lark.config import Pool
from lark.errors import LarkError
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.identity import pool_identity
from lark.pool.layouts import LAYOUTS
from lark.pool.read import read
from lark.pool.summary_text import pool_summary
from lark.pool.trajectory import Trajectory
from lark.store.store import Checksums
from tests.pool.rollouts import TWICE, lm_eval, write_published
from tests.pool.rows import QUESTIONS, boxed, chat, write_jsonl

PUBLISHED = {
    "nemo_gym": "nemo_gym",
    "verifiers": "prompt_completion",
    "openai_batch": "openai_batch",
    "atif": "atif",
    "lm_eval": "lm_eval",
    "inspect": "inspect",
    "every_eval": "every_eval",
    "swe_smith": "messages",
    "reasoning_gym": "reasoning_gym",
    "claude_session": "session",
    "codex_session": "session",
}
TEACHERS = {
    "nemo_gym": {"qwen3"},
    "verifiers": {"unknown"},
    "openai_batch": {"gpt-5"},
    "atif": {"qwen3"},
    "lm_eval": {"qwen/qwen3"},
    "inspect": {"openai/gpt-5"},
    "every_eval": {"qwen/qwen3-0", "qwen/qwen3-1"},
    "swe_smith": {"model 0", "model 1"},
    "reasoning_gym": {"openai/o3-mini"},
    "claude_session": {"claude-x"},
    "codex_session": {"gpt-5-codex"},
}
WITHOUT_VERDICTS = {"openai_batch", "claude_session", "codex_session"}


def published(name: str, folder: Path, **settings: Any) -> tuple[Pool, list[Trajectory], Tally]:
    folder.mkdir(exist_ok=True)
    path = write_published(name, folder)
    if name == "openai_batch":
        settings["requests"] = f"{folder}/requests/requests.jsonl"
    pool = Pool(name="files", format="rows", path=path, **settings)
    tally = Tally()
    return pool, list(read(pool, tally)), tally


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_shapes_are_read_whole_with_teachers_and_verdicts(name: str, tmp_path: Path) -> None:
    _, trajectories, tally = published(name, tmp_path)
    assert list(tally.layouts) == [PUBLISHED[name]]
    assert sorted({t.question for t in trajectories}) == QUESTIONS
    assert len({(t.question_id, t.candidate_id) for t in trajectories}) == 8
    assert {t.teacher for t in trajectories} == TEACHERS[name]
    answers = [str(n + 1) for n, _, _ in TWICE]
    assert sorted(t.final_answer(["box", "tags"])[0] for t in trajectories) == sorted(answers)  # type: ignore[type-var]
    verdicts = [t.correct for t in trajectories]
    if name in WITHOUT_VERDICTS:
        assert verdicts == [None] * 8
    elif name == "lm_eval":  # one metric for both answers of a document, by the first of two filters
        assert verdicts == [True] * 8
    else:
        assert (verdicts.count(True), verdicts.count(False)) == (4, 4)
        assert all(("Way 0" in t.spoken) is t.correct for t in trajectories)


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_published_layout_that_is_named_is_the_one_that_is_detected(name: str, tmp_path: Path) -> None:
    _, detected, _ = published(name, tmp_path / "a")
    _, by_name, _ = published(name, tmp_path / "b", layout=PUBLISHED[name])
    assert by_name == detected
    assert PUBLISHED[name] in LAYOUTS


def test_agents_keep_reasoning_calls_and_results(tmp_path: Path) -> None:
    for name in ("atif", "claude_session", "codex_session"):
        _, trajectories, _ = published(name, tmp_path / name)
        roles = [message["role"] for message in json.loads(str(trajectories[0].conversation))["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant"], name
        assert "H" in trajectories[0].spoken or "One more." in trajectories[0].spoken


def test_a_second_filter_of_lm_eval_is_counted_and_not_read_again(tmp_path: Path) -> None:
    _, trajectories, tally = published("lm_eval", tmp_path)
    assert len(trajectories) == 8
    assert tally.without == {"another filter of lm-eval on the same answers": 4}


def test_likelihoods_of_lm_eval_are_no_trajectories(tmp_path: Path) -> None:
    row = {**lm_eval(0, "A?", "none"), "resps": [[[-1.5, False]]]}
    with pytest.raises(LarkError, match="has no text, only likelihoods"):
        list(read(write_jsonl(tmp_path / "a.jsonl", [row])))


def test_a_batch_output_without_its_requests_says_where_they_belong(tmp_path: Path) -> None:
    path = write_published("openai_batch", tmp_path)
    with pytest.raises(LarkError, match=r"pool\.requests=<file>"):
        list(read(Pool(name="files", format="rows", path=path)))


@pytest.mark.parametrize(("name", "beside"), [("openai_batch", "requests.jsonl"), ("atif", "result.json")])
def test_files_that_are_read_beside_the_rows_are_part_of_the_identity(
    name: str, beside: str, tmp_path: Path
) -> None:
    pool, _, _ = published(name, tmp_path)
    before = pool_identity(pool, Checksums(tmp_path))
    file = next(tmp_path.rglob(beside))
    file.write_text(file.read_text() + "\n")
    assert pool_identity(pool, Checksums(tmp_path)) != before


def test_errors_of_a_batch_are_counted(tmp_path: Path) -> None:
    row = {"custom_id": "a", "response": None, "error": {"code": "batch_expired"}}
    fine = {"question": "A?", "response": "x"}
    tally = Tally()
    assert len(list(read(write_jsonl(tmp_path / "a.jsonl", [row, fine]), tally))) == 1
    assert tally.without == {"an error in place of a response": 1}


@pytest.mark.parametrize(
    "name", ["correct", "is_correct", "passed", "resolved", "success", "reward", "score"]
)
def test_verdicts_are_read_under_their_common_names(name: str, tmp_path: Path) -> None:
    rows = [{"question": "A?", "response": "x", name: value} for value in (True, 0, 1.0, 0.5, "yes", None)]
    verdicts = [t.correct for t in read(write_jsonl(tmp_path / "a.jsonl", rows))]
    assert verdicts == [True, False, True, False, True, None]


def test_rewards_are_compared_with_a_threshold(tmp_path: Path) -> None:
    rows = [{"question": "A?", "response": "x", "reward": value} for value in (0.2, 0.5, 0.9, -1, "0.7")]
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    pool.correct_from = 0.5
    assert [t.correct for t in read(pool)] == [False, True, True, False, True]


@pytest.mark.parametrize("value", [3.7, "5/10", ["a"], {"quality": 1}, float("nan")])
def test_a_score_that_is_no_verdict_is_not_used(value: Any, tmp_path: Path) -> None:
    tally = Tally()
    row = {"question": "A?", "response": "x", "score": value}
    (only,) = read(write_jsonl(tmp_path / "a.jsonl", [row]), tally)
    assert only.correct is None


def test_the_score_of_a_question_is_not_the_verdict_of_its_generations(tmp_path: Path) -> None:
    rows = [
        {"problem": "A?", "generations": ["x", "y"], "score": 0.5},
        {"problem": "B?", "generations": ["x", "y"], "score": [1.0, 0.0]},
        {"problem": "C?", "generations": ["x", "y"], "score": [1.0]},
    ]
    verdicts = [t.correct for t in read(write_jsonl(tmp_path / "a.jsonl", rows))]
    assert verdicts == [None, None, True, False, None, None]


def test_a_model_is_a_teacher_and_its_description_is_not(tmp_path: Path) -> None:
    rows = [{"question": "A?", "response": "x", "model": model} for model in ("r1", {"name": "r1"})]
    assert [t.teacher for t in read(write_jsonl(tmp_path / "a.jsonl", rows))] == ["r1", "unknown"]


def test_the_pools_verdict_counts_and_disagreements_are_reported_by_task(tmp_path: Path) -> None:
    rows = []
    for number in range(4):
        row = {"question_id": f"gcd-{number}", "question": f"{number}?", "answer": "father", "teacher": "r1"}
        rows.append({**row, "response": "\\boxed{Father}", "reward": 1.0})
    rows.append({**rows[0], "question_id": "lcm-0", "response": "\\boxed{father}"})
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    pool.correct_only = True
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    assert counts["trajectories"] == 5
    finding = counts["disagreements"]
    assert (finding["right"], finding["wrong"], finding["compared"]) == (4, 0, 5)
    assert (finding["by"], finding["groups"]) == ("task", {"gcd": 4})
    assert "disagree on 4 of 5 trajectories (4 are right by the pool), by task: gcd 4" in pool_summary(counts)


def unboxed(tmp_path: Path) -> Pool:
    """Two teachers: one boxes its answers, of which one is wrong; the other ends with them."""
    rows = []
    for number, question in enumerate(QUESTIONS):
        row = {"question": question, "answer": f"Add. #### {number + 1}"}
        rows.append({**row, "teacher": "boxer", "response": boxed(number if number else 8)})
        rows.append({**row, "teacher": "speaker", "response": f"One more than {number} makes {number + 1}."})
    return write_jsonl(tmp_path / "a.jsonl", rows)


def test_an_answer_that_is_not_read_is_unknown_and_the_summary_proposes_a_setting(tmp_path: Path) -> None:
    pool = unboxed(tmp_path)
    pool.correct_only = True
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    assert counts["trajectories"] == 8 and counts["all"]["correct"] is None
    summary = pool_summary(counts)
    assert "8 trajectories whose correctness is not known were kept: pool.unknown=drop drops them" in summary
    assert "(pool.answer_from=[box,last_number,hashes]; `hashes` because" in summary
    assert "8 end with a number, and 7 of these are the gold answer" in summary


def test_the_proposed_setting_reads_the_answers(tmp_path: Path) -> None:
    pool = unboxed(tmp_path)
    pool.correct_only = True
    pool.answer_from = ["box", "last_number", "hashes"]
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    assert (counts["trajectories"], tally.wrong) == (7, 1)
    assert counts["verdicts"].endswith("the last number")


def test_unknown_trajectories_are_dropped_on_request_and_a_lost_teacher_is_the_first_note(
    tmp_path: Path,
) -> None:
    pool = unboxed(tmp_path)
    for setting, value in {"correct_only": True, "unknown": "drop", "answer_from": ["box", "hashes"]}.items():
        setattr(pool, setting, value)
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    assert counts["removed"]["teachers"] == {"speaker": 4}
    first = next(line for line in pool_summary(counts).splitlines() if line.startswith("Note"))
    assert "pool.correct_only=true left out 5 of 8 trajectories (62%), among them all of speaker (4)" in first


@pytest.mark.parametrize(
    ("response", "place", "answer"),
    [
        ("So <answer>4</answer> or <answer> 5 </answer>.", "tags", "5"),
        ("Add.\n#### 1,540\nDone", "hashes", "1540"),
        ("He pays $1,540.50 in 3 rates, -7 in all.", "last_number", "-7"),
        ("It is 3/4.", "last_number", "3/4"),
        ("No number", "last_number", None),
        ("<answer>5", "tags", None),
        ("</answer>5<answer>", "tags", None),
    ],
)
def test_answers_are_read_where_they_are(response: str, place: str, answer: str | None) -> None:
    trajectory = Trajectory("q", "c", "t", 0, None, "Q?", response, "5", None)
    assert trajectory.final_answer([place])[0] == answer


def test_a_file_per_teacher_names_the_teacher(tmp_path: Path) -> None:
    for name in ("qwq-32b", "phi-4"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"question": "A?", "response": name}])
    trajectories = read(Pool(name="files", format="rows", path=str(tmp_path)))
    assert [(t.teacher, t.response) for t in trajectories] == [("phi-4", "phi-4"), ("qwq-32b", "qwq-32b")]


@pytest.mark.parametrize(
    "names", [("train-00000-of-00002", "train-00001-of-00002"), ("train", "test"), ("a_1", "a_2")]
)
def test_parts_of_a_dataset_are_no_teachers(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        write_jsonl(tmp_path / f"{name}.jsonl", [{"question": "A?", "response": name}])
    assert {t.teacher for t in read(Pool(name="files", format="rows", path=str(tmp_path)))} == {"unknown"}


def test_a_folder_of_verifiers_names_the_teacher(tmp_path: Path) -> None:
    for model in ("openai--gpt-5", "qwen--qwq"):
        run = tmp_path / f"gsm8k--{model}" / "0a1b"
        run.mkdir(parents=True)
        write_jsonl(run / "results.jsonl", [{"question": "A?", "response": model}])
    pool = Pool(name="files", format="rows", path=f"{tmp_path}/**/results.jsonl")
    assert {t.teacher for t in read(pool)} == {"openai/gpt-5", "qwen/qwq"}


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"question": "A?", "qwq": "x", "r1": "y"}, {"responses": ["qwq", "r1"]}),
        ({"prompt": "A?", "response_qwq": "x", "response_r1": "y"}, {}),
        ({"instruction": "A?", "qwq_response": "x", "r1_response": "y"}, {}),
    ],
)
def test_several_columns_hold_a_response_each(
    row: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [row])
    for name, value in settings.items():
        setattr(pool, name, value)
    assert [(t.teacher, t.response) for t in read(pool)] == [("qwq", "x"), ("r1", "y")]


@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_around_the_rows_is_explained(indent: int | None, tmp_path: Path) -> None:
    rows = [{"question": "A?", "response": "x"}, {"question": "B?", "response": "y"}]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"name": "mine", "data": rows}, indent=indent))
    with pytest.raises(LarkError, match="one object, whose `data` is a list of 2 objects"):
        list(read(Pool(name="files", format="rows", path=str(path))))


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("a/my pool.jsonl", "my-pool"),
        ("Qwen2.5.parquet", "Qwen2.5"),
        ("x/*.jsonl", "files"),
        ("runs/", "runs"),
    ],
)
def test_a_pools_artifacts_are_named_after_its_file(path: str, label: str) -> None:
    assert Pool(name="files", format="rows", path=path).label == label
    assert Pool(name="mine", format="rows", path=path).label == "mine"


def test_a_damaged_log_of_inspect_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "log.eval").write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(LarkError, match=r"log\.eval: cannot be read as a log of Inspect"):
        list(read(Pool(name="files", format="rows", path=str(tmp_path / "log.eval"))))


def with_zstd(path: Path) -> None:
    """Compress the members of an archive as Inspect does since 2026. zipfile cannot write them, so they are
    stored, and then called compressed.
    """
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, pa.compress(content, "zstd", asbytes=True))
    data = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        for match in re.finditer(re.escape(signature), bytes(data)):
            data[match.start() + place : match.start() + place + 2] = (93).to_bytes(2, "little")
    path.write_bytes(data)


def test_a_log_of_inspect_that_is_compressed_with_zstd_is_read(tmp_path: Path) -> None:
    pool, before, _ = published("inspect", tmp_path)
    (log,) = tmp_path.glob("*.eval")
    with_zstd(log)
    assert {member.compress_type for member in zipfile.ZipFile(log).infolist()} == {93}
    assert list(read(pool)) == before
    log.write_bytes(log.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\x00\x00\x00\x00"))  # zstd's signature
    with pytest.raises(LarkError, match=r"log\.eval: cannot be read as a log of Inspect"):
        list(read(pool))


def test_a_vote_labels_only_trajectories_that_answer(tmp_path: Path) -> None:
    rows = [{"question": "A?", "response": text} for text in (boxed(1), boxed(1), boxed(2), "Hm.")]
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    pool.labels = "vote"
    assert [t.correct for t in read(pool)] == [True, True, False, None]


def test_messages_and_rewards_of_a_row_belong_together(tmp_path: Path) -> None:
    rows = [{"messages": chat("A?", "x"), "instance_id": "i", "resolved": k == 0} for k in range(2)]
    trajectories = list(read(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert [(t.question_id, t.candidate_id, t.correct) for t in trajectories] == [
        ("i", "0", True),
        ("i", "1", False),
    ]
