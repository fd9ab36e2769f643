"""README.md and its neighbours, and docs/: commands compose, files and functions exist, links resolve,
examples are what is read.
"""

import ast
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import trl
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.harness.sweep import available, dashed, published
from lark.config.cli import as_hydra_reads
from lark.models.chat import ChatFormat
from lark.models.dialogue import INSTRUCTION, opening
from lark.models.load import load_chat
from lark.models.prompts import NUMERIC
from lark.models.students import location
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.layouts import LAYOUTS
from lark.pool.read import read
from lark.scoring import methods
from lark.scoring.own_method import method_of
from lark.selection.rules import WEIGHTINGS
from lark.selection.write import write_selection
from lark.training.encoded_set import read_examples
from lark.training.trl import WeightedSFTTrainer
from tests.conftest import ROOT, composed, job_of

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = sorted(
    {
        match[0].strip("`").split("  #")[0].strip()
        for page in PAGES
        for match in re.finditer(
            r"^(?:python run\.py|make [a-z]).*$|`python run\.py[^`]*`", page.read_text(encoding="utf-8"), re.M
        )
    }
)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python")])
def test_every_command_composes(command: str) -> None:
    words = as_hydra_reads(shlex.split(command)[2:])
    sweep = "-m" in words
    overrides = [word for word in words if word != "-m" and not word.startswith("hydra")]
    assert len(overrides) >= 1
    if sweep:  # its first trial
        overrides = [re.sub(r"^([a-z./_]+=[^\[,]+),.*", r"\1", word) for word in overrides]
    composed(*(re.sub(r"^student=(qwen1\.5b)$", r"student='\1'", word) for word in overrides))


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    targets |= set(map(dashed, available()))
    used = {command.split()[1] for command in COMMANDS if command.startswith("make")}
    assert used
    assert used <= targets


def test_every_function_in_the_maths_exists() -> None:
    page = (ROOT / "docs" / "maths.md").read_text(encoding="utf-8")
    named = re.findall(r"`(lark/[a-z_/]+\.py):([A-Za-z_.]+)`", page)
    assert len(named) >= 12
    for file, name in named:
        scope: list[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        for part in name.split("."):
            found = [n for n in scope if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part]
            assert found, f"{file}: {name}"
            scope = found[0].body


def test_every_file_that_is_named_exists() -> None:
    for page in PAGES:
        for name in re.findall(
            r"`((?:lark|conf|tests|experiments|docs)/[\w./-]*)`", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / name).exists() or "surprise_per_rank" in name, f"{page.name}: {name}"


def test_everything_that_was_tried_names_the_test_that_tries_it() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    rows = page.partition("| tried | result | where |\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(rows) > 10
    for row in rows:
        where = row.strip("| ").split("|")[-1].strip()
        assert where == "by hand" or re.fullmatch(r"`tests/\S+\.py`(, `tests/\S+\.py`)*", where), row


def links(page: Path) -> list[tuple[Path, str]]:
    """(file, anchor) of every relative link."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    parts = [link.partition("#") for link in found if "://" not in link]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in parts]


def anchors(page: Path) -> set[str]:
    """Headings as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_relative_link_resolves() -> None:
    for page in PAGES:
        for target, anchor in links(page):
            assert target.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {target.name}#{anchor}"


def test_every_page_is_one_click_from_the_index_and_the_index_from_the_readme() -> None:
    index = ROOT / "docs" / "README.md"
    assert index in {target for target, _ in links(ROOT / "README.md")}
    assert set(PAGES) - {index} <= {target for target, _ in links(index)}


def test_the_readme_is_short_and_has_its_pictures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 135 and len(text.split()) <= 1200
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    for path in [ROOT / picture for picture in pictures] + list((ROOT / "docs" / "pictures").iterdir()):
        assert path.stat().st_size < 300_000, path


def test_the_index_of_papers_has_every_paper_that_is_cited() -> None:
    """By arXiv's numbers, in the code and on the pages."""
    index = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "lark").rglob("*.py")]
    cited = {
        number
        for path in files
        for number in re.findall(r"arxiv[: .]\s*(\d{4}\.\d{5})", path.read_text(encoding="utf-8"), re.I)
    }
    assert len(cited) > 10
    assert cited <= set(re.findall(r"arXiv:(\d{4}\.\d{5})\]", index))
    options = set(re.findall(r"`(?:method=)?(\w+)`", index))
    assert {path.stem for path in (ROOT / "conf" / "method").glob("*.yaml")} - {"base"} <= options
    weightings = index.partition("## Weights")[2].partition("##")[0]
    assert set(WEIGHTINGS) <= set(re.findall(r"`(?:weighting=)?(\w+)`", weightings))


def test_the_newest_version_of_the_changes_is_that_of_the_citation() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions if version != "Unreleased")
    released = next(version for version in versions if version != "Unreleased")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == released


def test_the_tree_and_the_layers_have_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "lark").glob("*/__init__.py")}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = re.search(r"^lark/\n((?:  .*\n)+)", page, re.M)
    assert tree is not None
    assert (
        set(re.findall(r"(\w+)/(?=[, ])", "\n".join(line[:21] for line in tree[1].splitlines()))) == packages
    )
    assert packages <= set(re.findall(r"`(?:lark/)?(\w+)/", page))


def test_the_page_of_versions_has_every_kind_whose_version_was_raised() -> None:
    declared = {
        (name, version or "1", path.relative_to(ROOT).as_posix())
        for path in (ROOT / "lark").rglob("*.py")
        for name, version in re.findall(
            r"\bKind\(\"(\w+)\"(?:, (?:version=)?(\d+))?", path.read_text(encoding="utf-8")
        )
    }
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    raised_kinds = {(name, version, file) for name, version, file in declared if int(version) > 1}
    assert set(re.findall(r"^\| `(\w+)` \| (\d+) \| `(.+)` \|$", page, re.M)) == raised_kinds
    for name, version, _ in declared:
        for raised in range(2, int(version) + 1):
            assert f"**{name} {raised}.**" in page


@pytest.mark.parametrize("method", ["random", "rsr", "lark"])
def test_the_readme_quotes_the_papers_table(method: str) -> None:
    (row,) = re.findall(
        rf"^\| \W*{method}\b.*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.I
    )
    paper = (
        published("table1")
        .query("student == 'qwen7b' and budget == 3 and method == @method")
        .set_index("benchmark")["mean"]
    )
    columns = ["aime24", "amc", "gpqa_diamond", "math500", "avg"]
    assert [float(value) for value in re.findall(r"\d+\.\d+", row)] == paper[columns].tolist()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S)


def test_the_example_of_a_method_is_one_with_an_option() -> None:
    *_, function, _ = blocks("add-a-method.md", "python")
    _, settings, _ = blocks("add-a-method.md", "yaml")
    found: dict[str, Any] = {}
    exec(function, vars(methods) | {"__name__": "example"}, found)
    options = yaml.safe_load(settings)["options"]
    method = methods.SelectionMethod(
        "surprise_per_rank", frozenset({"statistics"}), found["surprise_per_rank"]
    )
    method.check(options)
    row = {"question_id": "q", "candidate_id": "a", "n_tokens": 2, "nll": 6.0, "brier": 1.0, "rank_sum": 2.0}
    assert method.score(pd.DataFrame([row]), options) == pytest.approx([3.0])
    assert method.score(pd.DataFrame([row]), {"power": 2.0}) == pytest.approx([1.5])


def test_the_example_of_a_method_of_ones_own_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's module, found in the current folder, and its YAML file, found by Hydra's search path."""
    *_, function = blocks("add-a-method.md", "python")
    *_, settings = blocks("add-a-method.md", "yaml")
    for file, text in (("my_package/my_scores.py", function), ("my_conf/method/surprise.yaml", settings)):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    method = method_of(composed("hydra.searchpath=[file://my_conf]", "method=surprise").method)
    row = {"question_id": "q", "candidate_id": "a", "n_tokens": 2, "nll": 6.0, "brier": 1.0, "rank_sum": 2.0}
    assert method.score(pd.DataFrame([row]), {"power": 2.0}) == pytest.approx([1.5])


def test_the_example_of_a_pool_is_one_that_is_read(tmp_path: Path) -> None:
    (example,) = blocks("own-pool.md", "json")
    (tmp_path / "pool.jsonl").write_text(example, encoding="utf-8")
    (trajectory,) = read(
        composed("pool=files", f"pool.path={tmp_path / 'pool.jsonl'}", "pool.correct_only=true").pool
    )
    assert (trajectory.question_id, trajectory.teacher, trajectory.answer) == ("q17", "qwq-32b", "5")


def test_the_rows_in_the_table_of_layouts_are_read_as_that_layout(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "own-pool.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\{.*?\})` \|", page, re.M)
    assert {name for name, _ in rows} == set(LAYOUTS)
    for name, row in rows:
        (tmp_path / "pool.jsonl").write_text(row, encoding="utf-8")
        tally = Tally()
        found = list(read(composed("pool=files", f"pool.path={tmp_path / 'pool.jsonl'}").pool, tally))
        assert tally.layouts == {name: 1}
        assert {trajectory.question for trajectory in found} == {"What is 2+3?"}


@pytest.fixture
def train_jsonl(tmp_path: Path) -> Path:
    """A training set as the selection writes it: 6 trajectories of the demo."""
    config = composed("method=random", "pool.questions=6", "budget.size=1")
    pools.write(read(config.pool), tmp_path / pools.FILE, config.pool)
    table = pd.read_parquet(tmp_path / pools.FILE)
    table.assign(n_tokens=9, n_prompt=1, truncated=False)[
        ["question_id", "candidate_id", "n_tokens", "n_prompt", "truncated"]
    ].to_parquet(tmp_path / "lengths.parquet")
    write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))
    return tmp_path / "train.jsonl"


def test_the_training_set_is_what_llama_factory_reads(train_jsonl: Path) -> None:
    """Rows of role and content, user before assistant: the columns and tags of the page's entry."""
    rows = [json.loads(line) for line in train_jsonl.read_text(encoding="utf-8").splitlines()]
    example, entry = (json.loads(block) for block in blocks("train-jsonl.md", "json"))
    assert len(rows) == 6
    (info,) = entry.values()
    tags = info["tags"]
    for row in [*rows, example]:
        assert set(row) == {"messages", "weight", "question_id", "candidate_id"}
        messages = row[info["columns"]["messages"]]
        assert [set(message) for message in messages] == [{tags["role_tag"], tags["content_tag"]}] * len(
            messages
        )
        assert [message[tags["role_tag"]] for message in messages[-2:]] == [
            tags["user_tag"],
            tags["assistant_tag"],
        ]
        assert isinstance(row["weight"], float)
    assert sum(row["weight"] for row in rows) == pytest.approx(len(rows))
    assert example["messages"][:-1] == opening("What is 2+3?", None)


def test_the_prompts_of_the_page_are_those_of_qwens_tokenizer(shared_data: Path) -> None:
    """Ours in scoring, training and evaluation; the authors' from the messages that their code gives to the
    template.
    """
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "qwen2_5")
    chat, question = ChatFormat(tokenizer), "What is $3 + 4$?"

    def authors(system: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    ours = [chat.prompt_text(question, system) for system in (INSTRUCTION, NUMERIC)]
    shown = blocks("reproduce.md", "text")
    assert shown == [*ours, authors(INSTRUCTION), authors(NUMERIC)]
    counts = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in shown]
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert [int(count) for count in re.findall(r"\((\d+) tokens", page.partition("## Prompts")[2])] == counts


def test_the_papers_printed_numbers_agree_with_each_other() -> None:
    """Ratios that the paper prints beside the numbers that they come from."""
    value = published("figures").set_index(["experiment", "quantity"])["value"]
    assert (
        round(value["case_study", "g_1"] / value["case_study", "g_25"], 2)
        == value["case_study", "spread_phi4-reason-plus"]
    )
    assert round(100 * (3 * value["case_study", "q_1"] - 1)) == value["case_study", "over_uniform_1"]
    assert round(100 * 3 * value["case_study", "q_3"]) == value["case_study", "of_uniform_3"]
    increase = value["token_level", "wrong_p2_selected"] / value["token_level", "wrong_p2_all"] - 1
    assert round(100 * increase) == value["token_level", "wrong_p2_increase"]


def test_the_pages_trl_trainer_has_our_objective(train_jsonl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own lines, run with the real TRL on a CPU: one step of gradient descent on 3 micro-batches
    is our gradient.
    """
    rows = [json.loads(line) for line in train_jsonl.read_text(encoding="utf-8").splitlines()]
    weighted = [
        {**row, "weight": weight} for row, weight in zip(rows, (2.5, 0.0, 0.5, 1.0, 1.75, 0.25), strict=True)
    ]
    train_jsonl.write_text("\n".join(map(json.dumps, weighted)), encoding="utf-8")
    student, rate = str(location(composed().student)), 1e-3
    one_step = {
        "gradient_accumulation_steps": 3,
        "per_device_train_batch_size": 2,
        "max_steps": 1,
        "optim": "sgd",
        "learning_rate": rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "output_dir": str(train_jsonl.parent),
        "save_strategy": "no",
        "use_cpu": True,
        "gradient_checkpointing": False,
        "report_to": [],
        "disable_tqdm": True,
    }
    config = trl.SFTConfig
    monkeypatch.setattr(trl, "SFTConfig", lambda **options: config(**{**options, **one_step}))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(train_jsonl.parent))
    (recipe,) = [block for block in blocks("train-jsonl.md", "python") if "SFTConfig" in block]
    found: dict[str, Any] = {}
    exec(
        recipe.replace('"train.jsonl"', repr(str(train_jsonl))).replace('"my/student"', repr(student)), found
    )

    assert isinstance(found["trainer"], WeightedSFTTrainer)
    model = AutoModelForCausalLM.from_pretrained(student)
    chat = load_chat(student, composed().student)
    examples = read_examples(train_jsonl, chat, 512)
    for example in examples:
        ids = torch.tensor([example.encoded.ids])
        chances = (
            model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
        )
        (-example.weight * chances[example.encoded.prompt_length - 1 :].mean() / len(examples)).backward()
    trained = dict(found["trainer"].model.named_parameters())
    steps = {name: (p.detach() - trained[name].detach()) / rate for name, p in model.named_parameters()}
    off = sum(float((steps[name] - p.grad).square().sum()) for name, p in model.named_parameters())
    assert off < 1e-6 * sum(float(p.grad.square().sum()) for p in model.parameters())
