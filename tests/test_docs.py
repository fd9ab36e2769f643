"""The pages under docs/: every command composes, every function they name exists, every example is what the program reads."""

import ast
import json
import re
import shlex
from pathlib import Path

import datasets
import pytest

from lark.chat import conversation
from lark.config_errors import as_hydra_reads
from tests.conftest import ROOT, composed

PAGES = sorted((ROOT / "docs").glob("*.md"))
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
    if sweep:  # the first job of it
        overrides = [re.sub(r"^([a-z./_]+=[^\[,]+),.*", r"\1", word) for word in overrides]
    composed(*(re.sub(r"^student=(qwen1\.5b)$", r"student='\1'", word) for word in overrides))


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
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


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([a-z-]+\.md)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).is_file(), f"{page.name}: {link}"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S)


def test_the_example_of_a_pool_is_one_that_is_read(tmp_path: Path) -> None:
    from lark import pool

    (example,) = blocks("own-pool.md", "json")
    (tmp_path / "pool.jsonl").write_text(example, encoding="utf-8")
    (trajectory,) = pool.read(composed("pool=files", f"pool.path={tmp_path / 'pool.jsonl'}", "pool.correct_only=true").pool)
    assert (trajectory.question_id, trajectory.teacher, trajectory.answer) == ("q17", "qwq-32b", "5")


def test_the_training_set_is_what_trl_and_llama_factory_read(tmp_path: Path) -> None:
    """TRL: conversational rows of role and content, user before assistant. LLaMA-Factory: the columns and tags of its entry."""
    import pandas as pd

    from lark import pool as pools
    from lark.selecting import write_selection

    config = composed("method=random", "pool.questions=3", "budget='1'")
    pools.write(pools.read(config.pool), tmp_path / pools.FILE, config.pool)
    table = pd.read_parquet(tmp_path / pools.FILE)
    table.assign(n_tokens=9, n_prompt=1, truncated=False)[
        ["question_id", "candidate_id", "n_tokens", "n_prompt", "truncated"]
    ].to_parquet(tmp_path / "lengths.parquet")
    write_selection(config, {"pool": tmp_path, "lengths": tmp_path}, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    example, entry = (json.loads(block) for block in blocks("train-jsonl.md", "json"))
    assert len(rows) == 3
    (info,) = entry.values()
    tags = info["tags"]
    for row in [*rows, example]:
        assert set(row) == {"messages", "weight", "question_id", "candidate_id"}
        messages = row[info["columns"]["messages"]]
        assert [set(message) for message in messages] == [{tags["role_tag"], tags["content_tag"]}] * len(messages)
        assert [message[tags["role_tag"]] for message in messages[-2:]] == [tags["user_tag"], tags["assistant_tag"]]
        assert isinstance(row["weight"], float)
    assert sum(row["weight"] for row in rows) == pytest.approx(len(rows))
    assert example["messages"][:-1] == conversation("What is 2+3?")

    data = datasets.load_dataset(
        "json", data_files=str(tmp_path / "train.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    (recipe,) = blocks("train-jsonl.md", "python")
    mapped: dict[str, object] = {"load_dataset": lambda *_, **__: data}
    exec(recipe.replace("from datasets import load_dataset", ""), mapped)  # the page's own lines
    assert set(mapped["data"].column_names) == {"prompt", "completion", "weight", "question_id", "candidate_id"}  # type: ignore[attr-defined]
    assert mapped["data"][0]["completion"] == [rows[0]["messages"][-1]]  # type: ignore[index]
