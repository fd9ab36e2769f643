"""Each benchmark of the paper comes from its public dataset unless its file is here; what is missing is a
sentence.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lark.config import Task
from lark.errors import LarkError
from lark.evaluation.benchmarks import fetch, load
from lark.evaluation.public import origin
from lark.models.shapes import ARCHITECTURES, DEMO
from lark.pipeline.plan import fetched_plan, make_plan
from lark.store.store import Checksums
from tests.conftest import ROOT, composed
from tests.hub import in_cache, serving
from tests.pool.test_sources import published
from tests.work.test_devices import SMI

SENTENCE = ["method=lark", "budget=3", "student=qwen7b"]
TASKS = ["aime24", "amc", "gpqa_diamond", "math500"]


def rows(name: str) -> list[dict[str, Any]]:
    """Problems in the columns of the public dataset, as many as there are."""
    match name:
        case "aime24":
            return [
                {
                    "id": 60 + i,
                    "problem": f"AIME {i}?",
                    "solution": "",
                    "answer": f"{i:03d}",
                    "url": f"u{i}",
                    "year": "2024",
                }
                for i in range(30)
            ]
        case "amc":
            return [
                {"id": i % 43, "problem": f"AMC {i}?", "answer": float(i), "url": f"u{i}"} for i in range(83)
            ]
        case "gpqa_diamond":
            wrong = {f"Incorrect Answer {n}": f"wrong {n}" for n in (1, 2, 3)}
            return [{"Question": f"GPQA {i}?", "Correct Answer": f"right {i}", **wrong} for i in range(198)]
        case _:
            return [
                {
                    "problem": f"MATH {i}?",
                    "solution": "",
                    "answer": str(i),
                    "subject": "Algebra",
                    "level": 1 + i % 5,
                    "unique_id": f"test/{i}.json",
                }
                for i in range(500)
            ]


def write(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".parquet":
            table.to_parquet(path)
        case ".csv":
            table.to_csv(path, index=False)
        case _:
            table.to_json(path, orient="records", lines=True)


def task(name: str) -> Task:
    return composed(f"benchmark={name}").benchmark.tasks[name]


def publish(name: str, folder: Path) -> None:
    """Write a benchmark's file as its dataset has it."""
    source = task(name).public
    assert source is not None
    write(pd.DataFrame(rows(name)), folder / source.file)


def cached(home: Path, names: Sequence[str] = TASKS) -> None:
    """A hub's cache with the datasets of these benchmarks."""
    for name in names:
        source = task(name).public
        assert source is not None
        publish(name, in_cache(home, "datasets", source.dataset, source.revision))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty HF_HOME, and a working directory without data/."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "hf"


@pytest.mark.parametrize("name", TASKS)
def test_a_benchmark_comes_from_its_dataset(name: str, home: Path) -> None:
    cached(home, [name])
    problems = load(name, task(name))
    assert len(problems) == task(name).count
    assert all(
        problem.question.startswith(name[:3].upper()) or name == "gpqa_diamond" for problem in problems
    )
    source = task(name).public
    assert source is not None
    assert len(source.revision or "") == 40, "a commit, which never changes"


@pytest.mark.parametrize("name", TASKS)
def test_the_same_problems_have_the_same_fingerprints_from_a_file_and_from_the_hub(
    name: str, home: Path
) -> None:
    def fingerprints() -> list[str]:
        config = composed(f"benchmark={name}")
        return [a.fingerprint for step in make_plan(config, Checksums(home)) for a in step.artifacts]

    absent = fingerprints()
    cached(home, [name])
    public = fingerprints()
    columns = {"problem": "question"} if name == "amc" else {}
    own = task(name).path
    assert own is not None
    write(pd.DataFrame(rows(name)).rename(columns=columns), Path(own))
    assert absent != public == fingerprints()


def test_a_file_that_is_here_comes_first_and_a_path_that_was_typed_is_meant(home: Path) -> None:
    cached(home, ["aime24"])
    write(pd.DataFrame([{**row, "answer": "7"} for row in rows("aime24")]), Path("data/aime24.jsonl"))
    assert {problem.answer for problem in load("aime24", task("aime24"))} == {"7"}
    typed = composed("benchmark=aime24", "benchmark.tasks.aime24.path=data/typo.jsonl").benchmark.tasks[
        "aime24"
    ]
    with pytest.raises(LarkError, match=r"path=data/typo\.jsonl: there is no such file"):
        load("aime24", typed)


def test_a_dataset_with_other_columns_or_another_number_of_problems_is_refused(home: Path) -> None:
    source = task("math500").public
    assert source is not None
    folder = in_cache(home, "datasets", source.dataset, source.revision)
    write(pd.DataFrame(rows("math500")[:499]), folder / source.file)
    with pytest.raises(LarkError, match="has 499 problems, but the benchmark has 500"):
        load("math500", task("math500"))
    write(pd.DataFrame(rows("math500")).rename(columns={"answer": "target"}), folder / source.file)
    with pytest.raises(LarkError, match="there is no `answer`"):
        load("math500", task("math500"))


def test_without_a_network_a_missing_benchmark_is_a_sentence(home: Path) -> None:
    cached(home, ["aime24"])
    config = composed("student=qwen7b", "benchmark.skip=[gpqa_diamond]")
    with pytest.raises(LarkError) as error:
        fetched_plan(config, Checksums(home), elsewhere=True)
    said = str(error.value)
    assert said.startswith(
        "benchmark amc: there is no file data/amc83.jsonl, and its public dataset AI-MO/aimo-validation-amc "
    )
    assert "the same command with stages=[fetch] downloads all inputs" in said
    assert "benchmark.skip=[amc] continues without it." in said
    fetched_plan(
        composed("student=qwen7b", "stages=[select]"), Checksums(home), elsewhere=True
    )  # needs no benchmark


def test_skipped_benchmarks_are_left_out(home: Path) -> None:
    cached(home, ["aime24", "amc", "math500"])
    config = composed("student=qwen7b", "benchmark.skip=[gpqa_diamond]")
    assert list(config.benchmark.tasks) == ["aime24", "amc", "math500"]
    assert not fetch(config.benchmark)
    for skipped, said in (
        ("[gpqa]", "benchmark.skip=gpqa: choose one of aime24, amc, gpqa_diamond, math500"),
        (f"[{','.join(TASKS)}]", "nothing would be left"),
    ):
        with pytest.raises(LarkError, match=said):
            composed("student=qwen7b", f"benchmark.skip={skipped}")


def program(work: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """Run run.py in a folder without data/, on a machine with 8 A100s."""
    work.mkdir(exist_ok=True)
    smi = work / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    machine = {"PATH": f"{work}{os.pathsep}{os.environ['PATH']}", "GPUS": "8", "COLUMNS": "200"}
    visible = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments],
        cwd=work,
        env={**visible, **machine, **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_papers_sentence_alone_ends_with_a_plan(tmp_path: Path) -> None:
    home = tmp_path / "hf"
    cached(home)
    published(in_cache(home, "datasets", "Umean/RSR_data", None))
    student = in_cache(home, "models", "Qwen/Qwen2.5-7B", None)
    architecture = next(
        path for path in ARCHITECTURES.glob("*.json") if '"Qwen/Qwen2.5-7B"' in path.read_text()
    )
    shutil.copy(architecture, student / "config.json")
    code, output = program(
        tmp_path / "work", *SENTENCE, "dry_run=true", HF_HOME=str(home), HF_HUB_OFFLINE="1"
    )
    assert code == 0, output
    assert "checkpoint/qwen7b-lark-B3-" in output
    assert "hardware  8 GPUs (cuda)" in output
    assert "12,165 answers" in output, "811 problems, 5 samples and 3 seeds"


def test_a_gated_dataset_is_a_sentence_that_says_how_to_log_in(tmp_path: Path) -> None:
    served = tmp_path / "served"
    for name in TASKS:
        source = task(name).public
        assert source is not None
        publish(name, served / source.dataset)
    with serving(served, "Idavidrein/gpqa") as env:
        code, output = program(
            tmp_path / "work", *SENTENCE, "dry_run=true", HF_HOME=str(tmp_path / "hf"), **env
        )
        assert code == 1
        assert (
            "error: benchmark gpqa_diamond: its dataset Idavidrein/gpqa is gated. Accept its conditions"
            in output
        )
        assert "log in with `hf auth login`" in output
        skipped = [*SENTENCE, "dry_run=true", "benchmark.skip=[gpqa_diamond]"]
        code, output = program(tmp_path / "work", *skipped, HF_HOME=str(tmp_path / "hf"), **env)
    assert code == 0, output


def test_one_command_fetches_all_inputs_for_a_machine_without_a_network(tmp_path: Path) -> None:
    served, home = tmp_path / "served", str(tmp_path / "hf")
    for name in TASKS:
        source = task(name).public
        assert source is not None
        publish(name, served / source.dataset)
    published(served / "Umean" / "RSR_data")
    shutil.copytree(DEMO, served / "Qwen" / "Qwen2.5-7B")
    run = [*SENTENCE, "hardware=cpu"]  # where inputs are fetched, there need be no GPU
    with serving(served) as env:
        code, listed = program(tmp_path / "work", *run, "stages=[fetch]", "dry_run=true", HF_HOME=home, **env)
        assert code == 0, listed
        assert listed.count("to be fetched") == 6
        assert not Path(home, "hub").exists()
        code, output = program(tmp_path / "work", *run, "stages=[fetch]", HF_HOME=home, **env)
    assert code == 0, output
    weights = Path(home, "hub", "models--Qwen--Qwen2.5-7B", "snapshots")
    assert {path.name for path in DEMO.glob("*.safetensors")} <= {path.name for path in weights.rglob("*")}
    assert len(list(Path(home, "hub", "datasets--Umean--RSR_data").rglob("short-sys_5k_gen*.json"))) == 33
    code, output = program(tmp_path / "work", *SENTENCE, "dry_run=true", HF_HOME=home, HF_HUB_OFFLINE="1")
    assert code == 0, output
    read = ["student=qwen7b", "stages=[pool]", "pool.questions=3"]
    offline = {"HF_HOME": home, "HF_HUB_OFFLINE": "1"}
    code, output = program(tmp_path / "work", *read, "hardware=cpu", "tracking=none", **offline)
    assert code == 0, output
    pool = next((tmp_path / "work" / "outputs" / "pool").glob("*/manifest.json"))
    assert json.loads(pool.read_text())["counts"]["trajectories"] == 99


@pytest.mark.parametrize("missing", ["student.path=Qwen/Qwen2.5-7B", "pool.path=Umean/RSR_data"])
def test_a_part_of_an_input_in_the_cache_does_not_count_as_fetched(missing: str, tmp_path: Path) -> None:
    """Without an answer of the hub, its client would be content with the part."""
    home = tmp_path / "hf"
    for kind, name in (("models", "Qwen--Qwen2.5-7B"), ("datasets", "Umean--RSR_data")):
        snapshot = home / "hub" / f"{kind}--{name}" / "snapshots" / "a"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("a")
    run = ["student=qwen7b", "hardware=cpu", "stages=[fetch]"]
    run += ["student.path=" + str(DEMO)] if missing.startswith("pool") else []
    unreachable = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    code, output = program(tmp_path / "work", *run, HF_HOME=str(home), **unreachable)
    assert code == 1
    assert (
        f"error: {missing}: the {'model' if 'student' in missing else 'dataset'} cannot be downloaded"
        in output
    )


def test_fetching_is_not_mixed_with_other_stages() -> None:
    with pytest.raises(LarkError, match="fetch runs alone"):
        composed("stages=[fetch,pool]")


def test_the_dataset_of_a_complete_public_benchmark_is_recorded(home: Path) -> None:
    """Results are published under the dataset's id, so nothing else may have it."""
    gpqa = task("gpqa_diamond")
    assert gpqa.public is not None
    dataset = {"id": "Idavidrein/gpqa", "revision": gpqa.public.revision, "task_id": "diamond"}
    assert origin("gpqa_diamond", gpqa) == {"dataset": dataset}
    assert origin("gpqa_diamond", replace(gpqa, limit=20)) == {}
    assert origin("gpqa_diamond", replace(gpqa, path="mine.csv")) == {}
    Path("data").mkdir()
    Path("data/gpqa_diamond.csv").write_text("")  # the user's file, whatever it has
    assert origin("gpqa_diamond", gpqa) == {}
    assert origin("demo_words", composed().benchmark.tasks["demo_words"]) == {}
