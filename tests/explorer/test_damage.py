"""A store that changes, is half-written or damaged: every address answers with data or with a sentence."""

import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lark.explorer.api import respond
from lark.explorer.context import Context
from lark.explorer.server import encode
from lark.store.store import Artifact, Kind, Store
from tests.explorer import synthetic
from tests.explorer.synthetic import LENGTHS, POOL, SCORES, artifact, trajectory

CHECKPOINT = "9" * 12
PLAN = [
    {"step": "pool", "artifacts": [f"pool/pool-{POOL}"]},
    {"step": "score", "artifacts": [f"scores/student-pool-{SCORES}"]},
]
START = {"event": "start", "process": 1, "host": "elsewhere", "typed": ["budget=3"], "plan": PLAN}


def record(root: Path, *lines: dict[str, Any]) -> None:
    run = root / "runs" / "demo" / "lark-B3"
    run.mkdir(parents=True, exist_ok=True)
    with (run / "steps.jsonl").open("a") as handle:
        handle.writelines(
            json.dumps({"run": "1", "time": "2026-01-01T00:00:00", **line}) + "\n" for line in lines
        )


def make(root: Path) -> Path:
    rows = [
        trajectory(f"q{i}", f"{teacher}.{k}", f"{i} {teacher}")
        for i in range(3)
        for teacher in ("ann", "bob")
        for k in (0, 1)
    ]
    synthetic.write_pool(root, rows, group=4)
    table = synthetic.write_scores(root, pd.DataFrame(rows)[["question_id", "candidate_id"]])
    selection = synthetic.write_selection(root, table, "lark", 2, "chi2", "1" * 12)
    synthetic.write_tokens(
        root, {(row["question_id"], row["candidate_id"]): row["response"].split(" ") for row in rows}
    )
    folder = artifact(
        root, "checkpoint", "student-lark-B2", CHECKPOINT, {"training": {}}, {"selection": selection.name}
    )
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "epoch": 1, "loss": 2.5}\n{"step": 2, "epoch": 2, "loss": 1'
    )
    synthetic.write_answers(root, "student-base", 4, "5" * 12)
    synthetic.write_answers(root, "student-lark-B2", 4, "6" * 12, f"student-lark-B2-{CHECKPOINT}")
    run = root / "runs" / "demo" / "lark-B3"
    (run / ".hydra").mkdir(parents=True)
    made = [f"pool/pool-{POOL}"]
    record(
        root,
        START,
        {"event": "step", "step": "pool", "seconds": 1, "made": made, "reused": []},
        {"event": "end"},
    )
    (run / "lark.log").write_text(
        f"2026-01-01 00:00:00,000 INFO lark.pipeline.pipeline: pool    1.0 s     pool/pool-{POOL}\n"
    )
    (run / "summary.json").write_text('{"results": [{"method": "LARK"}]}')
    (run / ".hydra" / "overrides.yaml").write_text("- method=lark\n")
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("whole") / "outputs")


def addresses(context: Context) -> list[str]:
    """Every kind of address, for this store."""
    where = f"{POOL}/{SCORES}"
    found = [
        "overview",
        "artifacts",
        "runs",
        "results",
        "curves",
        f"curve/{CHECKPOINT}",
        f"artifact/scores/{SCORES}",
        f"pool/{where}",
        f"artifact/pool/{POOL}",
        f"questions/{where}",
        f"question/{where}/1",
        f"text/{POOL}/1/2",
        f"tokens/{where}/1/2",
        f"alternatives/{where}/1/2/0",
        f"methods/{where}",
        f"distribution/{where}/lark",
        f"agreement/{where}/2",
        f"disagreement/{where}/lark/rsr/2",
        f"shares/{where}/B-2",
        f"pool/{POOL}/-",
        f"question/{POOL}/-/0",
        "benchmarks",
    ]
    return [*found, *answer_addresses(context)]


def answer_addresses(context: Context) -> list[str]:
    status, values = respond(context, "benchmarks", {})
    found = []
    for benchmark in values.get("benchmarks", []) if status == 200 else []:
        pair = "/".join([benchmark["group"], benchmark["models"][0]["id"], benchmark["models"][-1]["id"]])
        sample = f"sample/{benchmark['group']}/{benchmark['models'][0]['id']}/0"
        found += [f"problems/{pair}/paper", f"problem/{pair}/1", sample]
    return found


def answers(root: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    context = Context(root)
    found = {path: respond(context, path, {}) for path in addresses(context)}
    for path, (status, values) in found.items():
        text = encode(values).decode()
        assert status in (200, 404, 503), path
        if status != 200:
            assert len(values["problem"]) > 20 and "Traceback" not in text, values
    return found


def test_a_whole_store_answers_everything(whole: Path) -> None:
    assert {path: values for path, (status, values) in answers(whole).items() if status != 200} == {}


FILES = [
    "config.yaml",
    "manifest.json",
    "trajectories.parquet",
    "lengths.parquet",
    "scores.parquet",
    "text.parquet",
    "selection.parquet",
    "questions.parquet",
    "pieces.parquet",
    "tokens-*.parquet",
    "metrics.jsonl",
    "problems.jsonl",
    "generations.jsonl",
    "grades.jsonl",
    "metrics.json",
    "lark.log",
    "steps.jsonl",
    "summary.json",
    "overrides.yaml",
]


PATIENCE = 60
"""Seconds until a test stops waiting for an answer that may never come."""


def unblocked(root: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    """`answers`, in a thread that ends with the tests if it waits for ever."""
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    thread = threading.Thread(target=lambda: found.update(answers(root)), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "the explorer is blocked"
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_blocks_nothing(name: str, whole: Path, tmp_path: Path) -> None:
    """Opening a named pipe waits until someone writes to it."""
    root = tmp_path / "outputs"
    shutil.copytree(whole, root)
    for path in list(root.rglob(name)):
        path.unlink()
        os.mkfifo(path)
    assert unblocked(root)["overview"][0] == 200


LEVELS = "\n".join(f"  l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 10))
MERGED = "\n".join(f"  m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 10))
BOMBS = {
    "lists of lists": f"  l0: &l0 [x, x]\n{LEVELS}",
    "merged keys": f"  m0: &m0 {{x: 1}}\n{MERGED}",
    "parts that contain themselves": "  a: &a [*a, *a, *a]\n  b: &b {x: *b, y: [*b, *b], z: *a}",
    "a long text": f"  t: &t {'x' * 100_000}\n  all: [{', '.join(['*t'] * 20_000)}]",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_few_lines_of_yaml_aliases_block_nothing(bomb: str, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    shutil.copytree(whole, root)
    for path in root.rglob("config.yaml"):
        path.write_text(f"version: 1\ndepends:\n  method: lark\n{BOMBS[bomb]}\ninputs: {{}}\n")
    lines = BOMBS[bomb].replace("\n  ", "\n- ").replace("  ", "- ", 1)
    (root / "runs" / "demo" / "lark-B3" / ".hydra" / "overrides.yaml").write_text(lines)
    (root / "runs" / "demo" / "lark-B3" / "steps.jsonl").unlink()  # so that the overrides are read
    found = unblocked(root)
    assert found["overview"][0] == 200
    assert len(encode(found[f"artifact/scores/{SCORES}"][1])) < 2_000_000


@pytest.mark.parametrize("harm", ["gone", "empty", "half", "garbage", "a folder", "no permission"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_becomes_a_sentence(name: str, harm: str, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    shutil.copytree(whole, root)
    paths = list(root.rglob(name))
    assert paths
    for path in paths:
        content = path.read_bytes()
        if harm == "no permission":
            if os.geteuid() == 0:
                pytest.skip("root may read everything")
            path.chmod(0)
            continue
        path.unlink()
        if harm == "a folder":
            path.mkdir()
        elif harm != "gone":
            path.write_bytes(
                {"empty": b"", "half": content[: len(content) // 2], "garbage": b"\xff\x00{[" + content[:50]}[
                    harm
                ]
            )
    found = answers(root)
    assert found["overview"][0] == 200  # the first page always opens


def test_an_artifact_that_vanishes_between_two_requests(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    shutil.copytree(whole, root)
    context = Context(root)
    assert respond(context, f"question/{POOL}/{SCORES}/1", {})[0] == 200
    shutil.rmtree(root / "scores")
    status, values = respond(context, f"question/{POOL}/{SCORES}/1", {})
    assert (status, values["problem"]) == (
        404,
        f"There are no scores {SCORES} of the pool pool in this store (any more).",
    )
    shutil.rmtree(root)
    status, values = respond(context, "overview", {})
    assert status == 404 and "does not exist (any more)" in values["problem"]


def test_a_file_that_is_replaced_is_read_again(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    shutil.copytree(whole, root)
    context = Context(root)
    path = next((root / "scores").iterdir()) / "scores.parquet"
    before = respond(context, f"question/{POOL}/{SCORES}/0", {})[1]["scores"]["lark"]
    table = pd.read_parquet(path)
    table.assign(nll=table["nll"][::-1].to_numpy()).to_parquet(path, index=False)
    after = respond(context, f"question/{POOL}/{SCORES}/0", {})[1]["scores"]["lark"]
    assert before != after


def test_scores_of_a_running_pass_are_shown_so_far(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    shutil.copytree(whole, root)
    folder = next((root / "scores").iterdir())
    table = pd.read_parquet(folder / "scores.parquet")
    (folder / "scores.parquet").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "status": "started"}))
    table[:4].to_parquet(folder / "shard-00000000-00000004.parquet", index=False)
    (folder / "shard-00000004-00000008.parquet").write_bytes(b"PAR1 half written")
    (folder / "log.txt").write_text(
        "scoring:   0%|          | 0/9\rscoring:  34%|███▍      | 4/12 [00:03<00:06,  1.3tok/s]"
    )
    context = Context(root)
    first, second = (respond(context, f"question/{POOL}/{SCORES}/{n}", {})[1] for n in (0, 1))
    assert None not in first["scores"]["lark"] and second["scores"]["lark"] == [None] * 4
    (running,) = respond(context, "overview", {})[1]["running"]
    assert running["bar"] == {
        "what": "scoring",
        "percent": 34,
        "done": "4/12",
        "elapsed": "00:03",
        "left": "00:06",
        "rate": "1.3tok/s",
    }
    assert running["parts"] == 2
    assert respond(context, f"distribution/{POOL}/{SCORES}/lark", {})[1]["scored"] == 4


def runs_of(root: Path) -> list[dict[str, Any]]:
    return respond(Context(root), "runs", {})[1]["rows"]


def test_a_run_without_an_end_is_running_or_was_interrupted(tmp_path: Path) -> None:
    """On another machine, a run is in progress if one of its artifacts is; here, if its process exists."""
    root = tmp_path / "outputs"
    record(
        root,
        START,
        {"event": "step", "step": "pool", "seconds": 1, "made": [f"pool/pool-{POOL}"], "reused": []},
    )
    (row,) = runs_of(root)
    assert (row["state"], row["done"], row["total"], row["current"]) == ("interrupted", 1, 2, "score")
    assert row["steps"][0]["made"] == [{"kind": "pool", "fingerprint": POOL, "name": None}]  # deleted
    artifact(root, "scores", "student-pool", SCORES, {}, {}, status="started")
    assert runs_of(root)[0]["state"] == "running"
    (live,) = respond(Context(root), "overview", {})[1]["runs"]
    assert (live["name"], live["done"], live["total"], live["current"]) == ("demo/lark-B3", 1, 2, "score")
    record(root, {"event": "end", "error": "The GPU is out of memory."})
    assert (runs_of(root)[0]["state"], runs_of(root)[0]["error"]) == ("failed", "The GPU is out of memory.")


def test_artifacts_of_one_step_share_the_progress_of_its_log(tmp_path: Path) -> None:
    scores = artifact(tmp_path, "scores", "student-pool", SCORES, {}, {}, status="started")
    artifact(tmp_path, "tokens", "student-pool", "7" * 12, {}, {}, status="started")
    artifact(tmp_path, "judge", "pool", "6" * 12, {}, {}, status="started", started="2026-01-03T00:00:00")
    (scores / "log.txt").write_text("scoring:  34%|███▍      | 4/12 [00:03<00:06,  1.3tok/s]")
    rows = {row["kind"]: row["bar"] for row in respond(Context(tmp_path), "overview", {})[1]["running"]}
    assert rows["scores"]["percent"] == rows["tokens"]["percent"] == 34 and rows["judge"] is None


def test_a_page_that_was_opened_before_there_were_scores_gets_them(whole: Path) -> None:
    """Its address has the fingerprint of the token counts, or none."""
    for early in (LENGTHS, "-"):
        status, values = respond(Context(whole), f"question/{POOL}/{early}/1", {})
        assert status == 200 and values["view"]["id"] == SCORES and values["scores"]["lark"]


def test_runs_that_share_a_folder_are_kept_apart(tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    record(root, START, {"event": "end", "error": None})
    again = {"run": "2", "time": "2026-01-02T00:00:00"}
    record(
        root,
        {**START, **again, "typed": ["budget=3", "force=[score]"]},
        {**again, "event": "end", "error": None},
    )
    assert [row["overrides"] for row in runs_of(root)] == [["budget=3", "force=[score]"], ["budget=3"]]


def test_runs_of_an_older_version_are_read_from_their_log(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "demo" / "lark-B3"
    run.mkdir(parents=True)
    line = "2026-01-0{} 00:00:00,000 INFO lark.pipeline.pipeline: {:<9}{:<9} {}\n"
    first = [
        line.format(1, "pool", "1.0 s", f"pool/pool-{POOL}"),
        line.format(1, "grade", "9.0 s", "4 artifacts of metrics"),
    ]
    (run / "lark.log").write_text("".join([*first, line.format(2, "pool", "reused", f"pool/pool-{POOL}")]))
    (run / "summary.json").write_text('{"results": [{"method": "LARK"}]}')
    early = time.mktime(time.strptime("2026-01-01", "%Y-%m-%d"))
    os.utime(run / "summary.json", (early, early))
    (row,) = runs_of(tmp_path)
    assert row["state"] is None and row["results"] == []  # those of the first run in this log
    assert [(step["title"], step["seconds"]) for step in row["steps"]] == [("pool", None)]


def test_a_lock_tells_a_running_artifact_from_an_interrupted_one(tmp_path: Path) -> None:
    """The explorer reads the kernel's list of locks; taking the lock itself could delay the run."""
    made = Artifact(Kind("scores"), "student-pool", {})
    store = Store(tmp_path)
    folder = store.path(made)
    folder.mkdir(parents=True)
    manifest = {
        "status": "started",
        "kind": "scores",
        "fingerprint": made.fingerprint,
        "inputs": {},
        "started": "2026-01-01T00:00:00",
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    old = time.time() - 3600
    os.utime(folder / "manifest.json", (old, old))
    context = Context(tmp_path)
    assert context.listing().state(next(iter(context.listing()))) == "interrupted"
    with store.lock(made):
        (running,) = respond(context, "overview", {})[1]["running"]
        assert running["state"] == "running"
    assert respond(context, "overview", {})[1]["running"] == []


def test_a_lock_file_counts_on_file_systems_without_locks(tmp_path: Path) -> None:
    folder = artifact(tmp_path, "scores", "student-pool", SCORES, {}, {}, status="started")
    old = time.time() - 3600
    for path in folder.iterdir():
        os.utime(path, (old, old))
    (tmp_path / ".locks").mkdir()
    held = tmp_path / ".locks" / f"scores-{SCORES}.lock.held"
    held.write_text(json.dumps({"token": "t", "process": 7, "host": "node3"}))
    context = Context(tmp_path)
    (running,) = respond(context, "overview", {})[1]["running"]
    assert running["state"] == "running"
    os.utime(held, (old, old))  # its owner was killed
    assert respond(context, "overview", {})[1]["running"] == []


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        '{"status": "finished", "counts": NaN}',
        '{"status": 7, "inputs": [1], "counts": "x", "started": {}}',
        '{"a": 1, "a": 2}',
    ],
)
def test_an_odd_manifest_spoils_only_its_own_row(text: str, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    shutil.copytree(whole, root)
    (next((root / "text").iterdir()) / "manifest.json").write_text(text)
    found = answers(root)
    assert {path for path, (status, _) in found.items() if status != 200} == set()


def test_a_damaged_artifact_is_listed(tmp_path: Path) -> None:
    artifact(tmp_path, "scores", "student-pool", SCORES, {}, {}, status="damaged")
    (row,) = respond(Context(tmp_path), "overview", {})[1]["failed"]
    assert row["state"] == "damaged"


def test_settings_of_any_shape_can_be_sent(tmp_path: Path) -> None:
    """YAML has dates, keys of any type, infinities, and structures that contain themselves."""
    folder = artifact(tmp_path, "scores", "student-pool", SCORES, {}, {})
    (folder / "config.yaml").write_text("depends: &a\n  2020-01-01: .nan\n  1.5: .inf\n  self: *a\n")
    status, values = respond(Context(tmp_path), f"artifact/scores/{SCORES}", {})
    assert status == 200 and json.loads(encode(values))["config"]["depends"]["2020-01-01"] is None


def test_a_failed_artifact_says_why(tmp_path: Path) -> None:
    artifact(
        tmp_path, "scores", "student-pool", SCORES, {}, {}, status="failed", error="The GPU is out of memory."
    )
    (failed,) = respond(Context(tmp_path), "overview", {})[1]["failed"]
    assert failed["error"] == "The GPU is out of memory."


def test_an_empty_store_has_an_empty_overview(tmp_path: Path) -> None:
    status, values = respond(Context(tmp_path), "overview", {})
    assert status == 200 and values["pools"] == values["kinds"] == []


def test_two_students_of_one_pool_are_kept_apart(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    shutil.copytree(whole, root)
    other = artifact(
        root,
        "scores",
        "other-pool",
        "7" * 12,
        {"weights": "another", "tokenizer": "t", "max_length": 32768, "rank_clip": 100},
        {"pool": f"pool-{POOL}", "lengths": f"student-pool-{LENGTHS}"},
    )
    table = pd.read_parquet(next((root / "scores").glob("student-*")) / "scores.parquet")
    table.assign(nll=np.arange(len(table)) + 1.0).to_parquet(other / "scores.parquet", index=False)
    context = Context(root)
    first, second = (respond(context, f"question/{POOL}/{view}/0", {})[1] for view in (SCORES, "7" * 12))
    assert {v["student"] for v in first["views"]} == {"student", "other"}
    assert first["scores"]["lark"] != second["scores"]["lark"]
    assert len(first["selections"]) == 1 and second["selections"] == []
    for view, has_tokens in ((SCORES, True), ("7" * 12, False)):
        rows = respond(context, f"questions/{POOL}/{view}", {})[1]["rows"]
        assert any(row["has_tokens"] for row in rows) == has_tokens
