"""Cards state what was selected and how, render hostile names as text, and do not belong to the artifact."""

import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lark.config.cli import as_hydra_reads
from lark.output.cards import dataset_card, model_card
from lark.output.markdown import fenced, front_matter, metadata, table, text, with_licence
from lark.pipeline import pipeline
from lark.pipeline.pipeline import Pipeline
from lark.pipeline.plan import make_plan
from lark.selection.write import SELECTION
from lark.store.store import CARD, Checksums, Store
from tests.conftest import composed, work_here
from tests.explorer.synthetic import artifact

HOSTILE = [
    "a|b",
    "[x](http://evil)",
    "<script>alert(1)</script>",
    "`code`",
    "**bold**",
    "line\nbreak",
    "![i](x)",
    "--- # x",
    "$x$",
    "\x1b[31m",
    "www.evil.com",
    "---\nlicense: mit\n---",
    "a" * 999,
    "ünï",
    "\\",
    "&lt;",
    "~~s~~",
    "![",
    "#h",
    "1. x",
]
NAMES = st.from_regex(r"[a-z]{1,9}", fullmatch=True)


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished selection of the demo, with its pool and lengths beside it."""
    outputs = tmp_path_factory.mktemp("outputs")
    settings = [
        "pool.questions=3",
        "method=random",
        "budget.total=7",
        "stages=[select]",
        "tracking=none",
        f"outputs={outputs}",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "run_worker", work_here)
        Pipeline(composed(*settings), outputs / "run").run()
    return next((outputs / "selection").iterdir())


@given(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=300)))
def test_any_text_renders_as_itself_in_a_table_cell(name: str) -> None:
    rendered = MarkdownIt("gfm-like", {"linkify": False}).parse(table(["teacher", "n"], [(name, 1)]))
    cells = [token for token in rendered if token.type == "inline"]
    assert len(cells) == 4  # one header row and one row of two cells, whatever the name contains
    children = cells[2].children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    assert "".join(child.content for child in children) == (plain if len(plain) <= 200 else plain[:199] + "…")


@given(st.text(max_size=200))
def test_code_cannot_leave_its_block(code: str) -> None:
    tokens = MarkdownIt("commonmark").parse(fenced(code.replace("\r", ""), "bash"))
    assert [token.type for token in tokens] == ["fence"]


@given(st.dictionaries(NAMES, st.one_of(st.text(max_size=80), st.sampled_from(HOSTILE)), min_size=1))
def test_metadata_is_read_back_as_it_was_written(values: dict[str, str]) -> None:
    card = front_matter(values, {"license": "fill in"}) + "\n# Title\n"
    assert metadata(card) == values
    assert DatasetCard(card).data.to_dict().items() >= {k: v for k, v in values.items() if v}.items()


def test_a_selection_gets_a_card_that_hubs_can_read(selection: Path) -> None:
    card = (selection / CARD).read_text(encoding="utf-8")
    data = DatasetCard(card).data.to_dict()
    assert data["size_categories"] == ["n<1K"]
    assert data["configs"][0]["data_files"] == [{"split": "train", "path": "train.jsonl"}]
    assert "license" not in data
    assert "| trajectories | 7 |" in card
    assert "| budget | 7 trajectories in total |" in card
    for teacher, count in pd.read_parquet(selection / SELECTION.file)["teacher"].value_counts().items():
        assert f"| {teacher} | {count} |" in card


def test_the_cards_command_gives_the_same_fingerprint(selection: Path, tmp_path: Path) -> None:
    card = (selection / CARD).read_text(encoding="utf-8")
    command = card.split("```bash\npython run.py ")[1].split("\n```")[0]
    config = composed(*as_hydra_reads(shlex.split(command)))
    made = [
        a for step in make_plan(config, Checksums(tmp_path)) for a in step.artifacts if a.kind == SELECTION
    ]
    assert made[0].folder.name == selection.name


def test_a_card_is_not_part_of_the_artifact(selection: Path) -> None:
    """It can be edited or deleted, and the finished selection is still reused."""
    outputs = selection.parent.parent
    settings = [
        "pool.questions=3",
        "method=random",
        "budget.total=7",
        "stages=[select]",
        "tracking=none",
        f"outputs={outputs}",
    ]
    original = (selection / CARD).read_text(encoding="utf-8")
    for change in (lambda: (selection / CARD).write_text("edited"), (selection / CARD).unlink):
        change()
        run = Pipeline(composed(*settings), outputs / "run")
        run.run()
        assert not any(outcome.made for outcome in run.outcomes)
    assert dataset_card(selection) == original  # an older artifact without a card gets the same one later


def test_a_card_does_not_repeat_a_damaged_description(selection: Path, tmp_path: Path) -> None:
    """Size and time of a damaged config.yaml can be those of the manifest."""
    outputs = tmp_path / "outputs"
    shutil.copytree(selection.parent.parent, outputs)
    config = composed(
        "pool.questions=3", "method=random", "budget.total=7", "stages=[select]", f"outputs={outputs}"
    )
    (made,) = [
        a for step in make_plan(config, Checksums(outputs)) for a in step.artifacts if a.kind == SELECTION
    ]
    (described,) = outputs.glob("lengths/*/config.yaml")
    text = described.read_bytes()
    described.write_bytes(bytes(len(text)))
    original = dataset_card(selection)
    assert dataset_card(outputs / made.folder) != original
    Store(outputs).restore_descriptions(made)
    assert described.read_bytes() == text
    assert dataset_card(outputs / made.folder) == original


def test_hostile_teachers_stay_text_in_the_whole_card(selection: Path, tmp_path: Path) -> None:
    copy = tmp_path / "outputs" / "selection" / selection.name
    copy.mkdir(parents=True)
    for name in ("config.yaml", "manifest.json"):
        (copy / name).write_bytes((selection / name).read_bytes())
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["depends"]["teacher"] = "x\n```\n---\n<b>`'\"$(rm)"
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    pd.DataFrame({"teacher": HOSTILE}).to_parquet(copy / SELECTION.file)
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(dataset_card(copy).split("---\n", 2)[2])
    assert not any(token.type == "html_block" for token in tokens)
    inline = [child for token in tokens if token.type == "inline" for child in token.children or []]
    assert {child.type for child in inline} <= {"text", "text_special", "code_inline", "softbreak"}
    headings = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings[1:] == ["Selection", "Contents", "Fields of train.jsonl", "Reproduce", "Licence"]


def test_a_card_of_an_artifact_with_missing_files_is_still_made(tmp_path: Path) -> None:
    assert "# A weighted training set" in dataset_card(tmp_path / "selection" / "mine-0123456789ab")
    card = model_card(tmp_path / "checkpoint" / "mine-0123456789ab")
    assert ModelCard(card).data.to_dict()["library_name"] == "transformers"


def test_the_base_model_is_named_if_it_comes_from_a_hub(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint" / "mine-0123456789ab"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"depends": {"student": {"weights": "Qwen/Qwen3-4B-Base@main"}}})
    )
    assert ModelCard(model_card(folder)).data.to_dict()["base_model"] == "Qwen/Qwen3-4B-Base"


FILL_IN = front_matter({"tags": ["x"]}, {"license": "fill in"}) + "\n# T\n"


@pytest.mark.parametrize("card", [FILL_IN, "# T\n", "---\nlicense: mit\n---\n# T\n"])
def test_a_licence_is_set_once(card: str) -> None:
    again = with_licence(with_licence(card, "mit"), "apache-2.0")
    assert metadata(again)["license"] == "apache-2.0"
    assert again.count("license") == 1
    assert "# T" in again


def test_text_is_cut() -> None:
    assert len(text("a" * 1000)) == 200


HUB = {"format": "hub", "path": "open-r1/OpenR1-Math-220k"}
RSR = {"format": "rsr", "path": "someone/pool"}
FILES = {"format": "rows", "path": {"a/b.jsonl": "0123"}}


@pytest.mark.parametrize(("pool", "datasets"), [
    (HUB, ["open-r1/OpenR1-Math-220k"]),
    (FILES, None),
    ({"format": "rows", "path": "a/b"}, None),
    ({"format": "mix", "mix": {"one": HUB, "two": FILES, "three": RSR, "four": HUB}},
     ["open-r1/OpenR1-Math-220k", "someone/pool"]),
])  # fmt: skip
def test_a_model_card_names_the_datasets_that_the_selection_comes_from(
    pool: dict[str, object], datasets: list[str] | None, tmp_path: Path
) -> None:
    artifact(tmp_path, "pool", "mine", "a" * 12, pool, {})
    artifact(tmp_path, "selection", "mine", "b" * 12, {}, {"pool": f"mine-{'a' * 12}"})
    folder = artifact(tmp_path, "checkpoint", "mine", "c" * 12, {}, {"selection": f"mine-{'b' * 12}"})
    card = model_card(folder)
    assert metadata(card).get("datasets") == datasets
    assert ("# datasets: fill in" in card) is (datasets is None)
