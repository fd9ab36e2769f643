"""The static export: what it contains, what it leaves out, and what it refuses to overwrite."""

import json
from pathlib import Path

import pytest

from experiments.harness.pages import write_pages
from experiments.harness.report import write_index
from lark.errors import LarkError
from lark.explorer.api import respond
from lark.explorer.context import Context
from lark.explorer.export import TOKENS_PER_QUESTION, export
from lark.explorer.server import static_files
from tests.explorer import synthetic
from tests.explorer.synthetic import POOL, SCORES


@pytest.fixture(scope="module")
def exported(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "pages"
    files, size = export(context, folder, 2)
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert (files, size) == (len(found), sum(path.stat().st_size for path in found))
    return folder


def read(folder: Path, path: str) -> dict:
    return json.loads((folder / "data" / f"{path}.json").read_text(encoding="utf-8"))


def test_answers_are_those_of_the_server(exported: Path, context: Context, pool: str, view: str) -> None:
    where = f"{pool}/{view}"
    last = f"question/{where}/5"
    for path in ("results", "curves", f"pool/{where}", f"methods/{where}", f"distribution/{where}/rsr", f"agreement/{where}/40",
                 f"text/{pool}/5/3", f"tokens/{where}/0/32", f"alternatives/{where}/5/0/0", "benchmarks"):  # fmt: skip
        assert read(exported, path) == json.loads(json.dumps(respond(context, path, {})[1])), path
    assert read(exported, last) == {**json.loads(json.dumps(respond(context, last, {})[1])), "previous": 0, "next": None}
    assert [row["n"] for row in read(exported, f"questions/{where}")["rows"]] == [0, 5]


def test_the_page_and_its_files_are_those_of_the_server_but_for_the_mode(exported: Path) -> None:
    for name, path in static_files().items():
        if name != "index.html":
            assert (exported / "static" / name).read_bytes() == path.read_bytes()
    page = (exported / "index.html").read_text(encoding="utf-8")
    assert '<meta name="lark-mode" content="static">' in page and "Content-Security-Policy" in page


def test_no_path_of_this_machine_is_in_it(exported: Path, store: Path) -> None:
    for path in exported.rglob("*.json"):
        assert str(store.parent) not in path.read_text(encoding="utf-8"), path


def test_an_export_replaces_an_earlier_one_and_nothing_else(context: Context, exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    export(context, folder, 1)
    (folder / "data" / "stale.json").touch()
    export(context, folder, 1, ["demo-00004"])
    assert not (folder / "data" / "stale.json").exists()
    assert [path.name for path in folder.glob("data/question/*/*/*.json")] == ["4.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["pages"]  # no draft is left
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.tex").touch()
    with pytest.raises(LarkError, match="has other files"):
        export(context, other, 1)
    assert (other / "chapter.tex").exists()
    with pytest.raises(LarkError, match="no pool of this store has such a question"):
        export(context, tmp_path / "new", 1, ["nothing"])
    assert not (tmp_path / "new").exists()


def test_tokens_of_selected_candidates_come_first_if_not_all_fit(tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    rows = [synthetic.trajectory("q", f"t{k}.0", "x") for k in range(4)]
    synthetic.write_pool(root, rows)
    keys = synthetic.pd.DataFrame(rows)[["question_id", "candidate_id"]]
    table = synthetic.write_scores(root, keys)
    size = TOKENS_PER_QUESTION // 2 - 10
    lengths = next((root / "scores").iterdir()) / "scores.parquet"
    table.assign(n_tokens=size).to_parquet(lengths, index=False)
    other = next((root / "lengths").iterdir()) / "lengths.parquet"
    synthetic.pd.read_parquet(other).assign(n_tokens=size).to_parquet(other, index=False)
    made = synthetic.write_selection(root, table.assign(n_tokens=size), "lark", 1, "chi2", "1" * 12)
    chosen = synthetic.pd.read_parquet(made / "selection.parquet")["candidate_id"].iloc[0]
    synthetic.write_tokens(root, {("q", row["candidate_id"]): ["a", "b"] for row in rows})
    export(Context(root), tmp_path / "pages", 1)
    written = {path.stem for path in (tmp_path / "pages").glob(f"data/tokens/{POOL}/{SCORES}/0/*.json")}
    assert len(written) == 2 and str(list(keys["candidate_id"]).index(chosen)) in written


def test_the_reports_index_links_to_the_pages_beside_it(store: Path, tmp_path: Path) -> None:
    assert write_pages(tmp_path / "empty") == []  # nothing to export, and no complaint
    for folder in (tmp_path / "report", tmp_path / "report" / "paper"):
        folder.mkdir()
        write_index(folder)
        assert "explorer" not in (folder / "index.md").read_text()
    for kind in ("pool", "lengths", "scores", "selection"):
        (tmp_path / kind).symlink_to(store / kind)
    assert write_pages(tmp_path) == []
    assert "(explorer/index.html)" in (tmp_path / "report" / "index.md").read_text()
    assert "(../explorer/index.html)" in (tmp_path / "report" / "paper" / "index.md").read_text()
    (tmp_path / "report" / "explorer" / "explorer.json").unlink()
    (problem,) = write_pages(tmp_path)
    assert "has other files" in problem
