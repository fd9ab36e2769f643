"""The fuzz finds what it is made for, and a few cases of each kind pass. `make fuzz` runs many more."""

import faulthandler
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lark.store.store import write_text
from tests.fuzz import runs, tables
from tests.fuzz.__main__ import KINDS, fuzz, import_workers
from tests.fuzz.case import CRASH, DIFFERENT, HANG, REFUSED, SAME, SILENT, STACK_TRACE, Case
from tests.fuzz.tables import Tables, read_pool

SEED = 20
CASES = {
    "pool": 10, "benchmark": 5, "scores": 5, "training set": 5, "settings": 2, "config files": 1,
    "student": 1, "finished run": 1,
    "stopped run": 0, "kills": 0, "two runs": 0, "full disks": 1, "extremes": 0, "answers": 1,
}  # fmt: skip
"""Cases of each kind that take half a minute together."""
POOL = tables.KINDS[0]


def test_a_few_random_cases_end_with_a_sentence_or_the_same_result(tmp_path: Path) -> None:
    assert CASES.keys() == KINDS.keys()
    import_workers()
    for name, number in CASES.items():
        outcome = fuzz([KINDS[name]], SEED, minutes=5, cases=number, folder=tmp_path)
        assert [(case.name, result) for case, result in outcome.failures] == []
        assert outcome.counts.total() == number


def raises(path: Path, found: Path) -> None:
    raise TypeError("a bug")


def loses_a_row(path: Path, found: Path) -> None:
    read_pool(path, found)
    rows = tables.json.loads(found.read_text())
    write_text(found, tables.json.dumps(rows[1:]))


def hangs(path: Path, found: Path) -> None:
    time.sleep(60)


def dies(path: Path, found: Path) -> None:
    faulthandler.disable()  # pytest has enabled it: the stack of this process is not an error of the test
    os.abort()


def says_nothing(path: Path, found: Path) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("read", "outcome"),
    [(raises, STACK_TRACE), (loses_a_row, DIFFERENT), (hangs, HANG), (dies, CRASH), (says_nothing, SILENT)],
)
def test_every_way_to_fail_is_found(
    read: object, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SECONDS", 1.0)
    broken: Tables = replace(POOL, read=read, arguments=None)
    found = set()
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.add(broken.run(Case(SEED, "pool", number), folder).outcome)
        if outcome in found:
            break
    assert outcome in found and found <= {outcome, SAME, REFUSED}


def test_a_case_is_the_same_every_time(tmp_path: Path) -> None:
    case = Case(SEED, "pool", 4)
    results = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        results.append(replace(POOL, arguments=None).run(case, tmp_path / name))
    assert results[0].what == results[1].what and results[0].outcome == results[1].outcome
    assert Case(SEED + 1, "pool", 4).rng.random() != case.rng.random() != Case(SEED, "pool", 5).rng.random()


def test_a_changed_file_that_nothing_reports_is_a_difference(tmp_path: Path) -> None:
    (tmp_path / "metrics" / "x").mkdir(parents=True)
    for name in ("metrics.json", "manifest.json"):
        (tmp_path / "metrics" / "x" / name).write_text('{"status": "finished", "files": {}}')
    expected = runs.data(tmp_path)
    assert runs.difference(tmp_path, expected) is None
    (tmp_path / "metrics" / "x" / "metrics.json").write_text("{}")
    assert runs.difference(tmp_path, expected) == "metrics/x/metrics.json is different"
