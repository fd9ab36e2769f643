"""Pools of every layout are read; errors name the file and line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark.config import Pool
from lark.errors import LarkError
from lark.grading.answers import extract_boxed
from lark.models.dialogue import INSTRUCTION
from lark.pipeline.plan import make_plan
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.read import read
from lark.pool.rsr import teachers_and_rollouts
from lark.pool.source import box_answer
from lark.pool.summary_text import pool_summary
from lark.pool.trajectory import Trajectory
from lark.reading.rows import json_array
from lark.reading.untrusted import BOM
from lark.store.store import Checksums
from tests.conftest import composed


def row(question: int, candidate: int, **more: Any) -> dict[str, Any]:
    return {
        "question_id": question,
        "candidate_id": candidate,
        "teacher": f"t{candidate}",
        "rollout": 0,
        "question": f"What is {question}?",
        "response": f"It is \\boxed{{{question}}}",
        "answer": str(question),
        **more,
    }


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Pool:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return Pool(name="test", format="rows", path=str(path))


def chat(question: str, answer: str, system: str | None = None) -> list[dict[str, str]]:
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_rows_with_columns_or_messages_are_the_same(tmp_path: Path) -> None:
    columns = [row(q, c) for q in range(3) for c in range(4)]
    messages = [
        {**{k: r[k] for k in ("question_id", "candidate_id", "teacher", "rollout", "answer")},
         "messages": chat(r["question"], r["response"])}
        for r in columns
    ]  # fmt: skip
    assert list(read(write_jsonl(tmp_path / "a.jsonl", columns))) == list(
        read(write_jsonl(tmp_path / "b.jsonl", messages))
    )


def test_parquet_and_jsonl_are_the_same(tmp_path: Path) -> None:
    rows = [row(q, c) for q in range(3) for c in range(4)]
    jsonl = write_jsonl(tmp_path / "a.jsonl", rows)
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    assert list(read(Pool(name="p", format="rows", path=str(tmp_path / "a.parquet")))) == list(read(jsonl))


def test_a_hugging_face_dataset_folder_is_read(tmp_path: Path) -> None:
    rows = [row(q, c) for q in range(2) for c in range(2)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "set")
    found = list(read(Pool(name="h", format="hub", path=str(tmp_path / "set"))))
    assert found == list(read(write_jsonl(tmp_path / "a.jsonl", rows)))


def test_a_datasets_folder_that_changed_is_another_pool(tmp_path: Path) -> None:
    """Also if the file is in a subfolder; its content counts, not only its time."""
    (tmp_path / "set" / "data").mkdir(parents=True)
    pool = replace(composed(), pool=Pool(name="h", format="hub", path=str(tmp_path / "set")))

    def fingerprint(*rows: dict[str, Any]) -> str:
        write_jsonl(tmp_path / "set" / "data" / "train.jsonl", list(rows))
        return make_plan(pool, Checksums(tmp_path))[0].artifacts[0].fingerprint

    first = fingerprint(row(1, 1))
    assert fingerprint(row(1, 1), row(1, 2)) != first
    assert fingerprint(row(1, 1)) == first


def write_rsr(folder: Path, questions: int = 3) -> Pool:
    folder.mkdir(exist_ok=True)
    for teacher in ("qwq-32b", "phi4-reason-plus"):
        for rollout in (1, 2):
            items = [
                {"messages": chat(f"Question {q}?", f"{teacher} {rollout} says {q}")}
                for q in range(questions)
            ]
            (folder / f"{teacher}_{rollout}.json").write_text(json.dumps(items, indent=1))
    return Pool(name="rsr", format="rsr", path=str(folder))


def test_the_papers_layout_is_read_with_teachers_from_file_names(tmp_path: Path) -> None:
    found = list(read(write_rsr(tmp_path / "rsr")))
    assert len(found) == 12
    assert {(t.teacher, t.rollout) for t in found} == {
        (t, r) for t in ("qwq-32b", "phi4-reason-plus") for r in (1, 2)
    }
    assert len({t.question_id for t in found}) == 3


@pytest.mark.parametrize(
    ("stems", "expected"),
    [
        (["qwq-32b_1", "qwq-32b_2", "qwq-32b_3"], [("qwq-32b", 1), ("qwq-32b", 2), ("qwq-32b", 3)]),
        (["gptoss-20b-high-0", "gptoss-20b-high-1"], [("gptoss-20b-high", 0), ("gptoss-20b-high", 1)]),
        (["a_r1", "a_r2"], [("a", 1), ("a", 2)]),
        (["deepseek-r1-0528.rollout2"], [("deepseek-r1-0528", 2)]),
        (["phi-4", "deepseek-r1", "teacher"], [("phi-4", 0), ("deepseek-r1", 0), ("teacher", 0)]),
        (["phi-4_1", "phi-4_2"], [("phi-4", 1), ("phi-4", 2)]),
        (["gemma-2", "gemma-3"], [("gemma-2", 0), ("gemma-3", 0)]),
    ],
)
def test_teacher_and_rollout_come_from_the_names(stems: list[str], expected: list[tuple[str, int]]) -> None:
    assert teachers_and_rollouts(stems) == expected


def test_misaligned_files_are_refused(tmp_path: Path) -> None:
    pool = write_rsr(tmp_path / "rsr")
    items = [{"messages": chat(f"Question {q}?", "x")} for q in (0, 2, 1)]
    (tmp_path / "rsr" / "zz_1.json").write_text(json.dumps(items))
    with pytest.raises(
        LarkError, match=r"zz_1\.json, item 2: the question differs from the one at this position"
    ):
        list(read(pool))


def test_files_of_different_length_are_refused(tmp_path: Path) -> None:
    pool = write_rsr(tmp_path / "rsr")
    (tmp_path / "rsr" / "zz_1.json").write_text(json.dumps([{"messages": chat("Question 0?", "x")}]))
    with pytest.raises(LarkError, match="1 items, but"):
        list(read(pool))


def test_a_broken_list_names_its_item(tmp_path: Path) -> None:
    pool = write_rsr(tmp_path / "rsr")
    path = tmp_path / "rsr" / "qwq-32b_1.json"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(LarkError, match=r"item 3: broken JSON"):
        list(read(pool))


def test_ragged_pools_and_pools_without_ids_are_normal(tmp_path: Path) -> None:
    rows = [{"question": "A?", "response": f"{i}"} for i in range(3)] + [
        {"question": "B?", "response": "only one"}
    ]
    found = list(read(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert [t.candidate_id for t in found] == ["0", "1", "2", "0"]
    assert len({t.question_id for t in found}) == 2


def test_white_space_around_a_question_does_not_make_it_another(tmp_path: Path) -> None:
    rows = [{"question": text, "response": "x"} for text in ("A?", " A?\n", "A ?")]
    assert [t.candidate_id for t in read(write_jsonl(tmp_path / "a.jsonl", rows))] == ["0", "1", "0"]


@pytest.mark.parametrize("pattern", ["*.jsonl", "*/part.jsonl", "**/*.jsonl", "s?/*"])
def test_a_glob_pattern_may_have_stars_anywhere(pattern: str, tmp_path: Path) -> None:
    for folder in ("s1", "s2"):
        (tmp_path / folder).mkdir()
        write_jsonl(tmp_path / folder / "part.jsonl", [row(1, f"{folder}-0")])  # type: ignore[arg-type]
    write_jsonl(tmp_path / "top.jsonl", [row(1, 9)])
    found = {t.candidate_id for t in read(Pool(name="p", format="rows", path=str(tmp_path / pattern)))}
    nested = {"s1-0", "s2-0"}
    assert found == {"*.jsonl": {"9"}, "**/*.jsonl": nested | {"9"}}.get(pattern, nested)


def test_fields_can_be_renamed(tmp_path: Path) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [{"pid": 7, "q": "A?", "a": "yes"}])
    pool.fields = {"question_id": "pid", "question": "q", "response": "a"}
    assert next(read(pool)).question_id == "7"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"question": "A?", "response": "x"}\n{"question": ', r"line 2: broken JSON"),
        (b'{"question": "A?", "response": "\xff"}\n', r"line 1: not UTF-8"),
        (b'{"question": "A?"}\n', r"line 1: there is no `response`"),
        (b'{"question": "A?", "response": "  "}\n', r"line 1: the response is empty"),
        (b'["A?"]\n', r"item 1: a JSON object is expected"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}\n', r"one user turn"),
        (
            b'{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null}]}\n',
            r"the response is empty",
        ),
        (b'{"messages": [{"role": "user", "content": "x"}]}\n', r"it has user\."),
        (b'{"messages": "[{"}\n', r"line 1: `messages` is a string: broken JSON"),
        (b'{"messages": {"role": "user"}}\n', r"line 1: `messages` must be a list"),
        (
            b'{"question": "A?", "response": "half \\ud83d"}\n',
            r"line 1: lone surrogate .* \(half a character\)",
        ),
        (
            b'{"question": "A?", "response": "x", "rollout": "first"}\n',
            r"line 1: `rollout` must be a whole number",
        ),
        (
            b'{"question": "A?", "response": "x", "rollout": 1.7}\n',
            r"line 1: `rollout` must be a whole number, not 1\.7",
        ),
        (
            b'{"question": "A?", "response": "x", "rollout": true}\n',
            r"line 1: `rollout` must be a whole number, not True",
        ),
        (
            b'{"question": "A?", "response": "x", "rollout": "1_0"}\n',
            r"line 1: `rollout` must be a whole number",
        ),
        (
            b'{"question": "A?", "response": "x", "answer": Infinity}\n',
            r"line 1: `answer` must be text or a number, not inf",
        ),
        (
            b'{"question": "A?", "response": "x", "question_id": " "}\n',
            r"line 1: `question_id` must be text or a number",
        ),
        (
            b'{"question": "A?", "response": "x", "candidate_id": "\\u200b"}\n',
            r"line 1: `candidate_id` must be text",
        ),
        (b'{"question": "\\u200b", "response": "x"}\n', r"line 1: the question is empty"),
        (b'{"question": 7, "response": "x"}\n', r"line 1: `question` must be a string, not 7"),
        (b'{"problem": "q", "completion": 5}\n', r"line 1: `completion` must be a string, not 5"),
        (
            b'{"query": "q", "output": 5}\n',
            r"line 1: `output` must be a text or a list of messages, not 5",
        ),
        (
            b'{"question": "A?", "response": "x", "correct": "maybe"}\n',
            r"line 1: `correct` must be true or false",
        ),
        (
            b'{"question": "A?", "response": "x", "system": ["be brief"]}\n',
            r"line 1: `system` must be a string",
        ),
        ('{"question": "A?", "response": "x"}\n'.encode("utf-16"), r"line 1: not UTF-8"),
    ],
)
def test_errors_name_the_file_and_line(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_bytes(content)
    with pytest.raises(LarkError, match=said) as error:
        list(read(Pool(name="p", format="rows", path=str(path))))
    assert "pool.jsonl" in str(error.value)


@pytest.mark.parametrize("pattern", ["(a)|b", "()", "b(\\s*)$"])
def test_a_pattern_that_finds_no_answer_leaves_the_response_as_it_is(pattern: str) -> None:
    assert box_answer("a, then b", pattern) == "a, then b"


@pytest.mark.parametrize(
    ("response", "boxed"),
    [
        ("<answer>6</answer> not \\boxed{5}", "\\boxed{6} not 5"),
        ("\\boxed{5}? <answer>6</answer>", "\\boxed{5}? \\boxed{6}"),
        ("<answer>6</answer> boxed{5} and \\fbox{\\boxed{4}}", "\\boxed{6} 5 and 4"),
        ("<answer>6</answer> or \\boxed 5, \\boxed{\\frac{1}{2}}.", "\\boxed{6} or 5, \\frac{1}{2}."),
        ("<answer>6</answer> \\boxed{5", "\\boxed{6} 5"),
        ("<answer>6 (not \\boxed{5})</answer>", "\\boxed{6 (not 5)}"),
        ("\\boxed{<answer>6</answer>}", "\\boxed{\\boxed{6}}"),
    ],
)
def test_the_match_of_the_pattern_is_the_answer_whatever_else_is_boxed(response: str, boxed: str) -> None:
    rewritten = box_answer(response, "<answer>(.*?)</answer>")
    assert rewritten == boxed
    assert str(extract_boxed(rewritten)).startswith("6")


def test_a_box_after_the_answer_does_not_make_it_correct(tmp_path: Path) -> None:
    boxed_later = {"question": "2+3?", "answer": "5", "response": "<answer>6</answer> not \\boxed{5}"}
    pool = write_jsonl(tmp_path / "a.jsonl", [boxed_later])
    assert list(read(replace(pool, answer_pattern="<answer>(.*?)</answer>", correct_only=True))) == []


@pytest.mark.parametrize(
    ("value", "meant"),
    [(True, True), (False, False), ("true", True), ("False", False), (1, True), (0.0, False), (None, None)],
)
def test_a_verdict_may_be_written_in_several_ways(value: object, meant: bool | None, tmp_path: Path) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [row(1, 1, correct=value)])
    assert next(read(pool)).correct is meant


def test_a_byte_order_mark_is_not_part_of_the_data(tmp_path: Path) -> None:
    rows = [row(q, 0) for q in range(2)]
    plain = list(read(write_jsonl(tmp_path / "a.jsonl", rows)))
    (tmp_path / "b.jsonl").write_bytes(BOM + (tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "c.json").write_bytes(BOM + json.dumps(rows).encode())
    for name in ("b.jsonl", "c.json"):
        assert list(read(Pool(name="p", format="rows", path=str(tmp_path / name)))) == plain


def test_a_json_list_is_read_like_json_lines(tmp_path: Path) -> None:
    rows = [row(q, c) for q in range(3) for c in range(2)]
    plain = list(read(write_jsonl(tmp_path / "a.jsonl", rows)))
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=2))
    (tmp_path / "lines.json").write_text((tmp_path / "a.jsonl").read_text())
    for name in ("list.json", "lines.json"):
        assert list(read(Pool(name="p", format="rows", path=str(tmp_path / name)))) == plain


NESTED = st.recursive(st.text(max_size=9) | st.none(), lambda items: st.lists(items, max_size=3))


@given(items=st.lists(NESTED, max_size=9), spaced=st.booleans())
def test_a_json_list_is_read_the_same_in_pieces_of_any_size(
    items: list[Any], spaced: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("list") / "list.json"
    path.write_text(
        json.dumps(items, indent=1 if spaced else None, ensure_ascii=not spaced), encoding="utf-8"
    )
    for chunk in (1, 7, 1000):
        assert list(json_array(path, chunk)) == items


@pytest.mark.parametrize("broken", ['[{"a": 1} {"a": 2}]', '[{"a": 1},]', '[{"a": 1}', '[{"a": 1}, {"a": '])
def test_a_list_that_is_not_json_is_refused_where_it_breaks(broken: str, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(broken)
    with pytest.raises(LarkError, match="item 2: broken JSON"):
        list(json_array(tmp_path / "list.json"))


@pytest.mark.parametrize("rest", [']\n[{"a": 3}]', "] {}", "]" + " " * 3000 + "end", "]]"])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_text_after_a_list_is_refused(rest: str, chunk: int, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('[{"a": 1}, {"a": 2}' + rest)
    with pytest.raises(
        LarkError,
        match=r"list\.json: unexpected '.+' after the list of 2 items\. Put all items into one list",
    ):
        list(json_array(tmp_path / "list.json", chunk))


def test_a_file_that_only_claims_to_be_parquet_is_refused(tmp_path: Path) -> None:
    pd.DataFrame([row(q, 0) for q in range(2000)]).to_parquet(tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(LarkError, match=r"a\.parquet, after row 0: cannot be read as Parquet"):
        list(read(Pool(name="p", format="rows", path=str(tmp_path / "a.parquet"))))


def test_one_id_for_two_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        LarkError, match=r"a\.jsonl, line 2: candidate '1' of question '7' has another question text"
    ):
        list(read(write_jsonl(tmp_path / "a.jsonl", [row(7, 0), {**row(7, 1), "question": "What is 8?"}])))


def test_a_row_group_holds_no_more_text_than_readers_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "CHARACTERS_IN_MEMORY", 1000)
    pool = write_jsonl(tmp_path / "a.jsonl", [row(q, 0, response="x" * 300) for q in range(20)])
    pools.write(read(pool), tmp_path / pools.FILE, pool)
    assert [len(rows) for rows in pools.row_groups(tmp_path / pools.FILE)] == [4] * 5
    assert [Trajectory(**r) for r in pools.iterate(tmp_path / pools.FILE)] == list(read(pool))


def test_duplicate_candidates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        LarkError, match=r"a\.jsonl, line 3: candidate '1' of question '1' appears a second time"
    ):
        list(read(write_jsonl(tmp_path / "a.jsonl", [row(1, 1), row(1, 2), row(1, 1)])))


@pytest.mark.parametrize("separator", ["/", "\0", ":", "-"])
def test_candidates_whose_ids_join_alike_are_not_duplicates(separator: str, tmp_path: Path) -> None:
    ids = [(f"a{separator}b", "c"), ("a", f"b{separator}c")]
    rows = [{**row(1, 1), "question_id": question, "candidate_id": candidate} for question, candidate in ids]
    pool = read(write_jsonl(tmp_path / "a.jsonl", rows))
    assert [(trajectory.question_id, trajectory.candidate_id) for trajectory in pool] == ids


def test_a_missing_file_is_reported() -> None:
    with pytest.raises(LarkError, match="there is no such file"):
        list(read(Pool(name="p", format="rows", path="nowhere/pool.jsonl")))


def test_only_trajectories_that_the_extraction_rule_calls_wrong_are_dropped(tmp_path: Path) -> None:
    rows = [row(5, 0), row(5, 1, response="It is \\boxed{6}"), row(5, 2, response="no box, 5")]
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    pool.correct_only = True
    assert [t.candidate_id for t in read(pool)] == ["0", "2"], "an answer that is not read is not wrong"
    pool.unknown = "drop"
    assert [t.candidate_id for t in read(pool)] == ["0"]


def test_the_pools_own_verdict_counts_and_the_box_where_there_is_none(tmp_path: Path) -> None:
    rows = [
        row(5, 0, correct=False),
        row(5, 1, response="5", correct=True),
        row(5, 2, answer=None, correct=True),
        row(5, 3, answer=" ", correct=False),
        row(5, 4, response="6", correct=False),
        row(5, 5, response="5"),
    ]
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    pool.correct_only = True
    assert [t.candidate_id for t in read(pool)] == ["1", "2", "5"]


@pytest.mark.parametrize("layout", ["rows", "rsr"])
def test_wrong_trajectories_go_before_the_sample_is_taken_and_are_counted(
    layout: str, tmp_path: Path
) -> None:
    """Ten questions with two trajectories; five have a right one, which in the paper's layout is never in
    the first file.
    """

    def answer(question: int, candidate: int) -> str:
        return f"\\boxed{{{question if candidate and question % 2 else -1}}}"

    if layout == "rows":
        pool = write_jsonl(
            tmp_path / "a.jsonl", [row(q, c, response=answer(q, c)) for q in range(10) for c in range(2)]
        )
    else:
        for c in range(2):
            items = [{"messages": chat(f"What is {q}?", answer(q, c)), "answer": str(q)} for q in range(10)]
            (tmp_path / f"t_{c}.json").write_text(json.dumps(items))
        pool = Pool(name="p", format="rsr", path=str(tmp_path))
    pool = replace(pool, correct_only=True, questions=4)
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    assert (counts["questions"], counts["trajectories"]) == (4, 4)
    assert counts["dropped"] == {"trajectories": 15, "questions": 5}
    said = "pool.correct_only dropped 15 wrong trajectories, and 5 questions without a correct one."
    assert said in pool_summary(counts)
    with pytest.raises(LarkError, match=r"has only 5 that pool\.correct_only=true keeps: use fewer"):
        list(read(replace(pool, questions=6)))


def test_a_sample_of_questions_depends_neither_on_order_nor_on_the_pools_size(tmp_path: Path) -> None:
    rows = [row(q, c) for q in range(40) for c in range(2)]

    def sample(rows: list[dict[str, Any]], count: int) -> set[str]:
        pool = write_jsonl(tmp_path / "a.jsonl", rows)
        pool.questions = count
        return {t.question_id for t in read(pool)}

    assert sample(rows, 10) == sample(rows[::-1], 10)
    assert sample(rows, 5) < sample(rows, 10)
    with pytest.raises(LarkError, match="has only 40"):
        sample(rows, 41)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [row(q, c) for q in range(5) for c in range(3)])
    counts = pools.write(read(pool), tmp_path / pools.FILE, pool)
    assert [Trajectory(**r) for r in pools.iterate(tmp_path / pools.FILE)] == list(read(pool))
    assert (counts["questions"], counts["trajectories"], counts["candidates"]["max"]) == (5, 15, 3)


def test_the_summary_counts_system_messages_that_are_the_instruction(tmp_path: Path) -> None:
    systems = [INSTRUCTION, f"{INSTRUCTION.lower()}. ", "Be brief.", f"Be brief. {INSTRUCTION}", None]
    rows = [
        {"question": f"{number}?", "response": "x", "system": system} for number, system in enumerate(systems)
    ]
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    counts = pools.write(read(pool), tmp_path / pools.FILE, pool)
    assert counts["instruction_as_system"] == 2
    assert "2 trajectories have the instruction as their system message." in pool_summary(counts)


def test_the_summary_is_a_table_by_teacher_with_lengths_and_correctness(tmp_path: Path) -> None:
    rows = [row(q, c, response="x" * (10 + c)) for q in range(3) for c in range(2)] + [
        row(0, 2, response="It is \\boxed{0}")
    ]
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    counts = pools.write(read(pool), tmp_path / pools.FILE, pool)
    assert counts["candidates"] == {"min": 2, "median": 2, "max": 3}
    assert counts["teachers"]["t1"] == {
        "trajectories": 3, "characters": {"median": 11, "mean": 11.0, "max": 11}, "correct": None,
    }  # fmt: skip
    lines = pool_summary(counts).splitlines()
    assert "3 questions, 2 to 3 candidates each (median 2)" in lines
    assert "t2                  1             15    15       15   100.0%" in lines
    assert lines[-1] == "Lengths in characters. Correct by the answer in the last \\boxed{}."
    unknown = write_jsonl(tmp_path / "b.jsonl", [row(1, 1, answer=None)])
    assert "Correctness is not known." in pool_summary(
        pools.write(read(unknown), tmp_path / pools.FILE, unknown)
    )


def test_an_empty_pool_is_refused(tmp_path: Path) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [])
    with pytest.raises(LarkError, match="no trajectory"):
        pools.write(read(pool), tmp_path / pools.FILE, pool)


def test_the_real_pool_is_read_as_it_is(shared_data: Path, tmp_path: Path) -> None:
    pool = Pool(name="gsm", format="rows", path=str(shared_data / "pools" / "gsm_symbolic.jsonl"))
    counts = pools.write(read(pool), tmp_path / pools.FILE, pool)
    assert (counts["questions"], counts["trajectories"], len(counts["teachers"])) == (50, 900, 6)
