"""Artifacts that differ only in their inputs, or in settings that are named."""

from pathlib import Path

import pytest

from lark.store.siblings import siblings
from lark.store.store import Artifact, Kind, Store

SCORES = Kind("scores", 3, "scores.txt")


def made(store: Store, name: str, depends: dict[str, object], pool: str, fails: bool = False) -> Path:
    """An artifact of a pool, finished or failed."""
    artifact = Artifact(SCORES, name, depends, {"pool": Artifact(Kind("pool"), pool, {"path": pool})})

    def build(folders: list[Path]) -> list[dict[str, int]]:
        (folders[0] / SCORES.file).write_text(name)
        if fails:
            raise RuntimeError("stopped")
        return [{"rows": 1}]

    if fails:
        with pytest.raises(RuntimeError):
            store.ensure([artifact], build)
    else:
        store.ensure([artifact], build)
    return store.path(artifact)


def test_siblings_have_the_same_settings_and_other_inputs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = made(store, "first", {"student": "a", "samples": 2}, pool="small")
    grown = made(store, "grown", {"student": "a", "samples": 2}, pool="large")
    made(store, "another student", {"student": "b", "samples": 2}, pool="large")
    more = made(store, "more samples", {"student": "a", "samples": 4}, pool="large")
    assert siblings(grown) == [first]
    assert set(siblings(more, but=["samples"])) == {first, grown}


def test_unfinished_siblings_are_listed_only_on_request(tmp_path: Path) -> None:
    store = Store(tmp_path)
    failed = made(store, "failed", {"student": "a"}, pool="small", fails=True)
    grown = made(store, "grown", {"student": "a"}, pool="large")
    assert siblings(grown) == []
    assert siblings(grown, unfinished=True) == [failed]


def test_a_folder_without_a_readable_description_is_no_sibling(tmp_path: Path) -> None:
    store = Store(tmp_path)
    damaged = made(store, "damaged", {"student": "a"}, pool="small")
    grown = made(store, "grown", {"student": "a"}, pool="large")
    (damaged / "config.yaml").write_text("depends: [")
    assert siblings(grown) == []
    assert siblings(damaged) == []
