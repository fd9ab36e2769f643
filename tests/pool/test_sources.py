"""Files, folders and datasets: what is read, what is reported, and what identifies a pool."""

import bz2
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from lark.config import Pool
from lark.errors import LarkError
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.files import readable
from lark.pool.identity import READING, pool_identity
from lark.pool.partition import write_parts
from lark.pool.read import read
from lark.pool.summary_text import pool_summary
from lark.reading.rows import rows as read_rows
from lark.store.store import Checksums, checksum
from tests.conftest import ROOT, composed
from tests.hub import serving
from tests.pool.rows import chat, layout_rows, openr1, write_jsonl

TEACHERS = [f"teacher-{number}b" for number in range(11)]


def lines(*responses: str) -> str:
    return "".join(json.dumps({"question": "A?", "response": response}) + "\n" for response in responses)


def counted(pool: Pool, tmp_path: Path) -> tuple[dict[str, Any], str]:
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    return counts, pool_summary(counts)


def test_files_without_rows_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    folder.mkdir()
    (folder / "a.jsonl").write_text(lines("1"))
    (folder / "b.jsonl.gz").write_bytes(b"")
    (folder / "c.csv").write_text("What is 1+1?,It is 2.\n")
    pool = Pool(name="p", format="rows", path=str(folder))
    counts, said = counted(pool, tmp_path)
    assert counts["empty_files"] == ["b.jsonl.gz", "c.csv"]
    assert "2 files without rows: b.jsonl.gz, c.csv." in said
    groups = [[folder / "a.jsonl"], [folder / "b.jsonl.gz", folder / "c.csv"]]
    parts = tmp_path / "parts"
    parts.mkdir()
    assert write_parts(pool, groups, parts, processes=1)["empty_files"] == ["b.jsonl.gz", "c.csv"]


def test_files_in_a_folder_are_read_or_named(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    (folder / "old").mkdir(parents=True)
    (folder / "a.JSONL").write_text(lines("1"))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines("2").encode()))
    (folder / "c.csv").write_text("question,response\nA?,3\n")
    pd.DataFrame([{"question": "A?", "response": "4"}]).to_parquet(folder / "d.Parquet")
    (folder / "e.ndjson").write_text(lines("5"))
    (folder / "notes.txt").write_text("not rows")
    (folder / "old" / "f.jsonl").write_text(lines("6"))
    (folder / ".hidden.jsonl").write_text("not read, as usual for hidden files")
    pool = Pool(name="p", format="rows", path=str(folder))
    assert [t.response for t in read(pool)] == ["1", "2", "3", "4", "5"]
    counts, said = counted(pool, tmp_path)
    assert set(counts["skipped_files"]) == {"notes.txt", "old/f.jsonl"}
    assert "1 file not read: notes.txt (not a JSONL, JSON, Parquet or CSV file)." in said
    assert (
        f"1 file not read: old/f.jsonl (in a subfolder; to read it too, use pool.path={folder}/**/*)." in said
    )
    everything, said = counted(replace(pool, path=f"{folder}/**/*"), tmp_path)
    assert everything["trajectories"] == 6
    assert "notes.txt" in said


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.jsonl.gz", gzip.compress),
        ("A.JSONL.BZ2", bz2.compress),
        ("a.json.xz", lzma.compress),
        ("a.jsonl.zst", lambda data: pa.compress(data, codec="zstd", asbytes=True)),
    ],
)
def test_compressed_files_are_read_and_damaged_ones_are_named(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = pack(
        b"".join(json.dumps({"question": "A?", "response": str(n)}).encode() + b"\n" for n in range(999))
    )
    (tmp_path / name).write_bytes(data)
    pool = Pool(name="p", format="rows", path=str(tmp_path))
    assert [t.response for t in read(pool)] == [str(n) for n in range(999)]
    (tmp_path / name).write_bytes(data + data)  # several streams are one file
    assert len(list(read_rows(tmp_path / name))) == 2 * 999
    for broken in (data[:-9], b"{}" + data, data + b"\0\0x" + data, data + b"garbage"):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(LarkError, match=rf"{name}: cannot be read"):
            list(read(pool))


def test_the_place_that_the_file_system_refuses_is_named() -> None:
    """A pattern such as /**/* visits folders that cannot be listed."""
    said = r"pool\.path=/\*\*/\*: cannot be read \(/proc/x: Invalid argument\)"
    with pytest.raises(LarkError, match=said), readable(Pool(name="p", format="rows", path="/**/*")):
        raise OSError(22, "Invalid argument", "/proc/x")


def test_what_is_neither_a_file_nor_a_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", [{"question": "A?", "response": "x"}])
    write_jsonl(tmp_path / "elsewhere" / "d.jsonl", [{"question": "B?", "response": "x"}])
    (folder / "b.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    os.mkfifo(folder / "c.jsonl")
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    (folder / ".hidden").symlink_to(tmp_path / "nowhere")
    expected = {
        "b.jsonl": "a link that leads nowhere",
        "c.jsonl": "a pipe, a socket or a device, not a file",
        "more": "a link to a folder, which is not followed",
    }
    for path in (folder, folder / "*"):
        counts, said = counted(Pool(name="p", format="rows", path=str(path)), tmp_path)
        assert counts["skipped_files"] == expected and counts["trajectories"] == 1
        assert "1 file not read: b.jsonl (a link that leads nowhere)." in said
    for name in ("b.jsonl", "c.jsonl"):
        with pytest.raises(LarkError, match=f"{name}: this is {expected[name]}"):
            list(read(Pool(name="p", format="rows", path=str(folder / name))))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.tsv",
            "question\tresponse\nA?\tx\n",
            r"because its ending '\.tsv' is not one of \.jsonl, .*: write every row as an object",
        ),
        (
            "a.jsonl",
            '{\n  "question": "A?"\n}\n',
            "line 1: broken JSON .* The file is read as JSON Lines: write every row as an",
        ),
        ("a.json", '{\n  "question": "A?"\n}\n', "there is no `response`; the row has question"),
    ],
)
def test_a_file_of_another_layout_is_told_what_is_expected(
    name: str, content: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(LarkError, match=said):
        list(read(Pool(name="p", format="rows", path=str(tmp_path / name))))


def test_information_about_a_dataset_is_not_a_pool(tmp_path: Path) -> None:
    (tmp_path / "dataset_infos.json").write_text("{}")
    write_jsonl(tmp_path / "a.jsonl", [{"question": "A?", "response": "x"}])
    pool, tally = Pool(name="p", format="rows", path=str(tmp_path)), Tally()
    assert [t.response for t in read(pool, tally)] == ["x"]
    assert tally.skipped == {"dataset_infos.json": "information about a dataset"}
    (tmp_path / "a.jsonl").rename(tmp_path / "data.arrow")
    with pytest.raises(LarkError, match=r"It has data\.arrow.*pool=hub"):
        list(read(pool))


def test_a_folder_with_all_its_files_in_subfolders_is_read(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "pool" / name).mkdir(parents=True)
        (tmp_path / "pool" / name / "train.jsonl").write_text(lines(name))
    assert [t.response for t in read(Pool(name="p", format="rows", path=str(tmp_path / "pool")))] == [
        "a",
        "b",
    ]


def test_excluded_files_are_not_read_but_named(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    for name in ("a.jsonl", "b.bak.jsonl"):
        (tmp_path / "pool" / name).write_text(lines(name))
    pool = Pool(name="p", format="rows", path=str(tmp_path / "pool"), exclude=["*.bak.jsonl"])
    assert [t.response for t in read(pool)] == ["a.jsonl"]
    assert counted(pool, tmp_path)[0]["skipped_files"] == {"b.bak.jsonl": "named in pool.exclude"}
    with pytest.raises(
        LarkError, match=r"pool\.exclude=c\.jsonl: matches no file of .*; it has a\.jsonl, b\.bak\.jsonl"
    ):
        list(read(replace(pool, exclude=["c.jsonl"])))


@pytest.mark.parametrize(
    ("path", "format"), [("", "rows"), ("a.jsonl", "rows"), ("*.jsonl", "rows"), ("", "rsr")]
)
@pytest.mark.parametrize("excluded", [["*"], ["*.json*"]])
def test_a_pool_of_which_everything_is_excluded_is_reported_as_that(
    path: str, format: str, excluded: list[str], tmp_path: Path
) -> None:
    for name in ("a.jsonl", "b.json", "README.md"):
        (tmp_path / name).write_text(lines(name))
    pool = Pool(name="p", format=format, path=str(tmp_path / path), exclude=excluded)
    with pytest.raises(
        LarkError, match=r"pool\.exclude leaves out .*a\.jsonl.*, and nothing is left to read"
    ) as error:
        list(read(pool))
    assert "no such file" not in str(error.value)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "~nouser/x", "**x/y", "no/such/[file"])
@pytest.mark.parametrize("format", ["rows", "rsr", "hub"])
def test_paths_that_cannot_exist_get_a_sentence(path: str, format: str) -> None:
    if format == "hub" and path == "no/such/[file":
        return  # a name of a dataset
    with pytest.raises(LarkError, match=r"pool\.path="):
        list(read(Pool(name="p", format=format, path=path)))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"question_id": float("nan")}, "`question_id` is nan .a missing value."),
        ({"question_id": ["a"]}, "`question_id` must be text or a number, not a list"),
        ({"question_id": {"id": 1}}, "`question_id` must be text or a number"),
        ({"question_id": True}, "`question_id` must be text or a number, not True"),
        ({"question_id": ""}, "`question_id` must be text or a number, not ''"),
        ({"candidate_id": [1]}, "`candidate_id` must be text or a number"),
        ({"rollout": 2**31}, "`rollout` must be at most 2,147,483,647, not 2147483648"),
        ({"rollout": 10**30}, "`rollout` must be at most"),
        ({"rollout": float("inf")}, "`rollout` must be a whole number"),
        ({"answer": ["1", "2"]}, r"`answer` must be text or a number, not a list.*pool\.fields\.answer"),
        ({"teacher": {"name": "t"}}, "`teacher` must be text or a number"),
        *(
            ({name: "\udfff"}, r"lone surrogate '\\udfff' \(half a character\)\. Write the whole character")
            for name in (
                "teacher",
                "answer",
                "question_id",
                "candidate_id",
                "question",
                "response",
                "system",
                "thinking",
            )
        ),
    ],
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], said: str, tmp_path: Path) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [{"question": "A?", "response": "x", **values}])
    with pytest.raises(LarkError, match=rf"a\.jsonl, line 1: {said}"):
        list(read(pool))


def test_missing_numbers_of_tables_are_missing(tmp_path: Path) -> None:
    rows = [{"question": "A?", "response": "x", "answer": answer, "rollout": rollout, "correct": correct}
            for answer, rollout, correct in ((5.0, 0.0, 1.0), (2.5, 1.0, 0.0), (None,) * 3)]  # fmt: skip
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    found = list(read(Pool(name="p", format="rows", path=str(tmp_path / "a.parquet"))))
    assert [(t.answer, t.rollout, t.correct) for t in found] == [
        ("5", 0, True),
        ("2.5", 1, False),
        (None, 2, None),
    ]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7, 7.0, "7"], ["7"]),
        (["q1", "q1 ", "\tq1"], ["q1"]),
        (["007", 7], ["007", "7"]),
        ([1e16, 0.5], ["10000000000000000", "0.5"]),
    ],
)
def test_whole_floats_and_white_space_do_not_make_other_ids(
    ids: list[object], expected: list[str], tmp_path: Path
) -> None:
    rows = [{"question_id": id, "question": "A?", "response": str(k)} for k, id in enumerate(ids)]
    found = list(read(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert list(dict.fromkeys(t.question_id for t in found)) == expected


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["1.0", "1"], ["1", "1"]),
        (["1.0", "2", "2.5"], ["1", "2", "2.5"]),
        (["1.0", "12345678901234567890"], ["1", "12345678901234567890"]),
        (["1.10", "1.1", "1.0"], ["1.10", "1.1", "1.0"]),
        (["007", "7", "7.0"], ["007", "7", "7.0"]),
        (["a", "1.0", "1"], ["a", "1.0", "1"]),
    ],
)
def test_a_column_of_numbers_in_a_csv_file_has_the_ids_of_numbers(
    ids: list[str], expected: list[str], tmp_path: Path
) -> None:
    """As in JSON, 1.0 and 1 are one id. If any value is not written as a number is, all of the column is
    text.
    """
    (tmp_path / "a.csv").write_text("question_id,question,response\n" + "".join(f"{id},A?,x\n" for id in ids))
    pool = Pool(name="p", format="rows", path=str(tmp_path / "a.csv"))
    assert [t.question_id for t in read(pool)] == expected


@pytest.mark.parametrize(
    ("first", "second", "notes"),
    [
        ({"question_id": "q1"}, {"question_id": "q1"}, set()),
        ({"question_id": "q1"}, {}, {"same_text"}),
        ({"question_id": "q1"}, {"question_id": "q2"}, {"same_text"}),
        ({"answer": "5"}, {"answer": "6"}, {"contradicted"}),
        ({"answer": "5"}, {"answer": 5.0}, set()),
        ({"answer": "5"}, {"answer": None}, set()),
        ({"question_id": "q1", "answer": "5"}, {"question_id": "q2", "answer": "6"}, {"same_text"}),
    ],
)
def test_questions_with_several_ids_or_answers_are_counted(
    first: dict[str, Any], second: dict[str, Any], notes: set[str], tmp_path: Path
) -> None:
    rows = [{"question": "A?", "response": "x", **first}, {"question": "A?", "response": "y", **second}]
    counts, said = counted(write_jsonl(tmp_path / "a.jsonl", rows), tmp_path)
    assert {"same_text", "contradicted"} & counts.keys() == notes
    assert ("2 questions have the text of another question" in said) == ("same_text" in notes)
    assert ("1 questions have different answers in different rows" in said) == ("contradicted" in notes)


def test_long_names_and_names_of_any_letters_are_data(tmp_path: Path) -> None:
    name = "t" * 300
    rows = [{"question": "A?", "response": "x", "question_id": name, "candidate_id": name, "teacher": teacher}
            for teacher in ("../../evil\x1b[31m\n",)]  # fmt: skip
    counts, said = counted(write_jsonl(tmp_path / "a.jsonl", rows), tmp_path)
    assert list(counts["teachers"]) == ["../../evil\x1b[31m\n"]
    assert "../../evil\\x1b[31m\\n" in said
    assert next(pools.iterate(tmp_path / pools.FILE))["question_id"] == name


def test_ids_that_match_nothing_are_refused(tmp_path: Path) -> None:
    pool = write_jsonl(
        tmp_path / "a.jsonl", [{"question": f"{q}?", "response": "x", "question_id": q} for q in "abc"]
    )
    assert [t.question_id for t in read(replace(pool, ids=["b"]))] == ["b"]
    with pytest.raises(
        LarkError, match=r"pool\.ids: d, e not found in .*a\.jsonl, which has the ids a, b, c"
    ):
        list(read(replace(pool, ids=["b", "d", "e"])))


def published(folder: Path, questions: int = 3) -> Pool:
    """The arrangement of Umean/RSR_data: 11 teachers, 3 files each, and a folder that is not a teacher's."""
    for teacher in TEACHERS:
        (folder / teacher).mkdir(parents=True)
        for generation in (1, 2, 3):
            items = [
                {"messages": chat(f"Question {q}?", f"{teacher} {generation} {q}")} for q in range(questions)
            ]
            (folder / teacher / f"short-sys_5k_gen{generation}.json").write_text(json.dumps(items))
    (folder / "selected_by_rsr").mkdir()
    (folder / "selected_by_rsr" / "qwen7b.json").write_text(
        json.dumps([{"messages": chat("Question 2?", "chosen")}])
    )
    (folder / "README.md").write_text("A dataset.")
    return Pool(name="rsr", format="rsr", path=str(folder))


def test_the_published_pool_has_33_candidates_for_each_question(tmp_path: Path) -> None:
    pool = published(tmp_path / "data")
    found = list(read(pool))
    assert Counter(t.question_id for t in found) == {f"{q:05d}": 33 for q in range(3)}
    assert {(t.teacher, t.rollout) for t in found} == {
        (teacher, rollout) for teacher in TEACHERS for rollout in (1, 2, 3)
    }
    assert all(t.response == f"{t.teacher} {t.rollout} {int(t.question_id)}" for t in found)
    counts, said = counted(pool, tmp_path)
    assert (
        counts["skipped_files"]["selected_by_rsr/qwen7b.json"] == "a selection from the pool, not a teacher"
    )
    assert "README.md" in said
    assert {t.question_id for t in read(replace(pool, questions=2))} < {t.question_id for t in found}


def test_the_published_pool_and_the_flat_one_are_the_same(tmp_path: Path) -> None:
    pool = published(tmp_path / "data")
    (tmp_path / "flat").mkdir()
    for file in (tmp_path / "data").glob("teacher*/*.json"):
        shutil.copy(file, tmp_path / "flat" / f"{file.parent.name}_rollout{file.stem[-1]}.json")
    flat = list(read(Pool(name="rsr", format="rsr", path=str(tmp_path / "flat"))))
    assert sorted(flat, key=repr) == sorted(read(pool), key=repr)


def test_a_folder_that_is_not_a_teachers_is_refused_until_it_is_excluded(tmp_path: Path) -> None:
    pool = published(tmp_path / "data")
    (tmp_path / "data" / "merged").mkdir()
    (tmp_path / "data" / "merged" / "all.json").write_text("[]")
    with pytest.raises(
        LarkError, match=r"merged: it has all\.json, which most .* do not have.*pool\.exclude=\[merged\]"
    ):
        list(read(pool))
    pool = replace(pool, exclude=["merged"])
    assert len(list(read(pool))) == 99
    (tmp_path / "data" / TEACHERS[0] / "short-sys_5k_gen3.json").unlink()
    counts, said = counted(pool, tmp_path)
    assert counts["trajectories"] == 96
    assert "teacher-0b: short-sys_5k_gen3.json is missing; most folders have it." in said


SERVED = r"""
import json, sys
from lark.config import Pool
from lark.errors import LarkError
from lark.pool.read import read
try:
    found = list(read(Pool(name="rsr", format="rsr", path="Umean/RSR_data", questions=2)))
    print(json.dumps([len(found), len({t.teacher for t in found}), len({t.question_id for t in found})]))
except LarkError as error:
    print(error)
"""


def test_the_published_pool_is_downloaded_once_and_then_read_offline(tmp_path: Path) -> None:
    """With the real client of the hub, and a server of ours in the hub's place."""
    published(tmp_path / "served" / "Umean" / "RSR_data")
    env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}

    def outcome(**more: str) -> str:
        run = [sys.executable, "-c", SERVED]
        return subprocess.run(
            run, capture_output=True, text=True, check=True, cwd=tmp_path, env=env | more
        ).stdout.strip()

    with serving(tmp_path / "served") as served:
        env |= served
        assert outcome() == "[66, 11, 2]"
    assert not list((tmp_path / "hf").rglob("README.md")), "only the pool's files are downloaded"
    assert outcome() == "[66, 11, 2]"
    missing = outcome(HF_HOME=str(tmp_path / "empty"))
    assert missing.startswith(
        "pool.path=Umean/RSR_data: there is no such folder here, and the dataset cannot be downloaded ("
    )
    assert "hf download Umean/RSR_data --repo-type dataset --local-dir" in missing


def test_the_papers_students_have_a_pool_on_a_fresh_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert composed("student=qwen7b").pool.path == "Umean/RSR_data"
    (tmp_path / "data" / "rsr").mkdir(parents=True)
    assert composed("student=qwen7b").pool.path == "data/rsr"


def test_a_dataset_that_breaks_while_it_is_read_gets_a_sentence(tmp_path: Path) -> None:
    """The second file is damaged: the first row is read, then the stream fails."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train-0.jsonl").write_text(lines("1"))
    (folder / "train-1.jsonl").write_text('{"question": "A?", "resp')
    found = read(Pool(name="h", format="hub", path=str(folder)))
    assert next(found).response == "1"
    with pytest.raises(
        LarkError, match=r"set: the dataset cannot be read after row 1 \(\w+: .*\)\. Run the command again"
    ):
        list(found)


def test_a_split_that_does_not_exist_is_named(tmp_path: Path) -> None:
    import datasets

    datasets.DatasetDict(
        {"train": datasets.Dataset.from_list([{"question": "A?", "response": "x"}])}
    ).save_to_disk(tmp_path / "s")
    with pytest.raises(LarkError, match=r"pool\.split=test: .* has the splits train"):
        list(read(Pool(name="h", format="hub", path=str(tmp_path / "s"), split="test")))


def test_a_subset_of_a_dataset_is_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    listed = "".join(
        f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("default", "extended")
    )
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{listed}---\n")
    for name in ("default", "extended"):
        (tmp_path / "set" / f"{name}.jsonl").write_text(lines(name))
    pool = Pool(name="h", format="hub", path=str(tmp_path / "set"), subset="extended")
    assert [t.response for t in read(pool)] == ["extended"]
    with pytest.raises(
        LarkError, match=r"the dataset cannot be read \(.*Check pool\.path, pool\.subset and pool\.split"
    ):
        list(read(replace(pool, subset="missing")))


def identity(pool: Pool, tmp_path: Path) -> dict[str, Any]:
    return pool_identity(pool, Checksums(tmp_path))


def test_a_pool_is_identified_by_its_settings_and_the_checksums_of_its_files(tmp_path: Path) -> None:
    """Planning reads no row, whatever the rows contain."""
    rows = [*layout_rows("columns"), openr1(0, "B?"), {"question": "C?", "response": "x", "question_id": 7.0}]
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    assert identity(pool, tmp_path) == {
        "name": pool.name,
        "format": "rows",
        "path": {"a.jsonl": checksum(tmp_path / "a.jsonl")},
        "reading": READING,
    }


def test_settings_are_part_of_a_pools_identity_only_if_they_are_set(tmp_path: Path) -> None:
    """So that a new setting leaves finished pools valid."""
    pool = write_jsonl(tmp_path / "a.jsonl", [{"question": "A?", "response": "x"}])
    plain = identity(pool, tmp_path)
    for changed in (
        {"layout": "columns"},
        {"labels": "vote"},
        {"seed": 7},
        {"questions": 1},
        {"correct_only": True},
    ):
        assert identity(replace(pool, **changed), tmp_path) == {**plain, **changed}


def test_a_dataset_on_the_hub_is_identified_by_its_id_and_revision(tmp_path: Path) -> None:
    for format in ("hub", "rsr"):
        found = identity(Pool(name="h", format=format, path="owner/name", revision="abc"), tmp_path)
        expected = {"name": "h", "format": format, "path": "owner/name", "revision": "abc"}
        # The published pool's columns are fixed: reading them has no versions.
        assert found == (expected if format == "rsr" else {**expected, "reading": READING})
