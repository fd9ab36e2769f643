"""The static export: what it contains, what it leaves out, and what it refuses to overwrite."""

import errno
import hashlib
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
    for path in (
        "results",
        "curves",
        f"pool/{where}",
        f"methods/{where}",
        f"distribution/{where}/rsr",
        f"agreement/{where}/40",
        f"text/{pool}/5/3",
        f"tokens/{where}/0/32",
        f"alternatives/{where}/5/0/0",
        "benchmarks",
    ):
        assert read(exported, path) == json.loads(json.dumps(respond(context, path, {})[1])), path
    assert read(exported, last) == {
        **json.loads(json.dumps(respond(context, last, {})[1])),
        "previous": 0,
        "next": None,
    }
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


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_an_export_replaces_an_earlier_one_and_nothing_else(
    context: Context, exported: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pages"
    export(context, folder, 1)
    export(context, folder, 1, ["demo-00004"])
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


@pytest.mark.parametrize("name", ["thesis.tex", ".git/HEAD", "data/mine.json", "index.html", "static/link"])
def test_an_export_never_removes_a_file_that_no_export_wrote(
    name: str, context: Context, tmp_path: Path
) -> None:
    folder = tmp_path / "pages"
    export(context, folder, 1)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if name == "static/link":
        path.symlink_to(tmp_path)
    else:
        path.write_text("mine")  # index.html: edited
    before = contents(folder)
    with pytest.raises(LarkError, match=f"has other files.*{Path(name).parts[0]}"):
        export(context, folder, 1)
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["pages"]


@pytest.mark.parametrize(
    "mark", ["{}", '{"questions": 3}', '{"files": {"thesis.tex": ""}}', '{"files": ["thesis.tex"]}', "text"]
)
def test_a_file_called_explorer_json_does_not_make_a_folder_an_export(
    mark: str, context: Context, tmp_path: Path
) -> None:
    (tmp_path / "explorer.json").write_text(mark)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(LarkError, match="has other files"):
        export(context, tmp_path, 1)
    assert contents(tmp_path) == {"explorer.json": mark.encode(), "thesis.tex": b"mine"}


def test_a_file_that_appears_while_an_export_is_replaced_is_kept(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "pages"
    export(context, folder, 1)
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        if path == folder:
            (folder / "late.txt").write_text("mine")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    export(context, folder, 1)
    (kept,) = tmp_path.rglob("late.txt")
    assert kept.read_text() == "mine" and str(kept.parent) in caplog.text
    assert contents(kept.parent) == {"late.txt": b"mine"}


def test_a_list_that_names_a_file_elsewhere_removes_nothing_there(context: Context, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    export(context, folder, 1)
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("mine")
    mark = folder / "explorer.json"
    files = json.loads(mark.read_text())["files"]
    mark.write_text(json.dumps({"files": {**files, "../thesis.tex": hashlib.sha256(b"mine").hexdigest()}}))
    export(context, folder, 1)
    assert thesis.read_text() == "mine"


def test_an_export_that_fails_changes_nothing(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pages"
    export(context, folder, 1)
    before = contents(folder)
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if path.name.endswith(".part"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(LarkError, match="No space left on device"):
        export(context, folder, 2)
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["pages"]


def test_an_export_to_a_link_replaces_the_folder_and_keeps_the_link(context: Context, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    link = tmp_path / "link"
    link.symlink_to(folder)
    for count in (1, 2):
        export(context, link, count)
        assert link.is_symlink() and (folder / "index.html").is_file()


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
