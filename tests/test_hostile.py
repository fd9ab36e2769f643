"""Whatever a name, a setting, a file or a folder contains: a sentence or a result, never a stack trace, a
hang, or a file outside of the outputs.
"""

import errno
import json
import os
import resource
import shutil
import stat
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from lark.config import Pool, from_dict
from lark.config.cli import as_hydra_reads
from lark.errors import LarkError
from lark.limits import time_limit
from lark.names import LONGEST_NAME, file_name
from lark.pool.read import read
from lark.pool.source import box_answer
from lark.store.store import Artifact, Checksums, Kind, Store, checksum, write_text
from lark.work.entry import run_main
from tests.conftest import ROOT, composed
from tests.hostile import command, forked, small

LONG = "x" * 300
ROW = {"question_id": "q", "question": "2+3?", "response": "It is \\boxed{5}.", "answer": "5", "teacher": "t"}
PLAN = ("dry_run=true", "tracking=none")


def pool(folder: Path, **changes: Any) -> str:
    path = folder / "pool.jsonl"
    path.write_text(json.dumps({**ROW, **changes}) + "\n")
    return f"pool.path={path}"


# Settings


@pytest.fixture(scope="module")
def ordinary() -> Any:
    """The configuration of the demo, as plain values."""
    return asdict(composed())


def refusal(setting: str, ordinary: Any) -> str:
    """What is said about a setting, from the command line to the checked configuration, without composing
    it again.
    """
    with pytest.raises(LarkError) as error:
        (typed,) = as_hydra_reads([setting])
        override = OverridesParser.create().parse_override(typed)
        values = OmegaConf.create(ordinary)
        OmegaConf.update(values, str(override.key_or_group), override.value(), force_add=True)
        from_dict(OmegaConf.to_container(values))
    return str(error.value)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (f"student.name={LONG}", "has 300 characters"),
        ("student.name=../../evil", "is used in folder names"),
        (f"pool.name={LONG}", "has 300 characters"),
        ("pool.name=../x", "is used in folder names"),
        ("benchmark.name=../../evil", "is used in folder names"),
        (f"benchmark.name={LONG}", "has 300 characters"),
        ("method.name=../x", "is used in folder names"),
        (f"method.teacher={LONG}", "has 300 characters"),
        ("method.teacher='a\x1b[31mb'", "must be text on one line"),
        ("hardware.name=../x", "is used in folder names"),
        ("tracking.project=../../x", "must not contain /"),
        ("tracking.group='a\nb'", "must be text on one line"),
        ("hydra.run.dir=/tmp/elsewhere", "saved below `outputs`"),
        ("hydra.sweep.dir=../../x", "saved below `outputs`"),
        ("hydra.sweep.subdir=../../x", "saved below `outputs`"),
        ("hydra.job_logging.handlers.file.filename=/tmp/elsewhere", "saved below `outputs`"),
        ("hydra.runtime.output_dir=/tmp/elsewhere", "saved below `outputs`"),
        ("--experimental-rerun=run.pickle", "would load a pickle"),
        ("student.template_options.messages=1", "is not a variable of chat templates"),
        ("student.template_options.add_generation_prompt=false", "is not a variable of chat templates"),
        ("benchmark.tasks.demo_words.distractor_fields=[a]", "use answer_format=choice"),
        ("benchmark.tasks.demo_words.label=Avg", "another column has this name"),
        ("benchmark.tasks.demo_words.label=Algebra", "another column has this name"),
        ("benchmark.tasks.demo_words.label='a\nb'", "must be text on one line"),
        (f"training.seed={2**40}", "must be from 0 to 2^32 - 1"),
        (f"method.seed={2**70}", "must be from 0 to 2^32 - 1"),
        (f"pool.seed={2**70}", "is too large"),
        ("pool.questions=48001", "pool.questions=48001: the demo has only 48,000 different questions"),
        (f"benchmark.decoding.seeds=[{2**70}]", "must be from 0 to 2^32 - 1"),
        ("analysis.seed=-1", "must be from 0 to 2^32 - 1"),
        (f"scoring.rank_clip={2**70}", "is too large"),
        ("budget=99999999999999999999", "is too large"),
        ("training.weight_decay=inf", "must be a finite number"),
        ("benchmark.decoding.temperature=nan", "must"),
        ("method.judge.retries=1000000000", "from 0 to 100"),
        ("student.path='~nobody-here/x'", "there is no such user"),
        ("student.path='a\udc80b'", "bytes that are not text"),
        ("outputs=''", "has no value"),
    ],
    ids=lambda value: value[:40],
)
def test_a_setting_that_means_nothing_is_a_sentence(setting: str, said: str, ordinary: Any) -> None:
    assert said in refusal(setting, ordinary)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("student.name=../../evil", "is used in folder names"),
        (f"student.name={LONG}", "has 300 characters"),
        ("student.name=${student.name}", "student.name=${student.name}: the value refers to itself"),
        ("experiment=../../x", "there is no such option"),
        ("hydra.run.dir=/tmp/elsewhere", "saved below `outputs`"),
        ("budget.tokens=9e999", "error: budget.tokens=inf: give a whole number"),
        ("training.epochs=1000000000", "years of it for train"),
        ("pool.questions=1000000000", "the demo has only 48,000 different questions"),
        ("benchmark.decoding.samples=1000000000", "years of it for generate"),
    ],
    ids=lambda value: value[:40],
)
def test_a_name_leads_nowhere_and_a_run_of_years_is_refused(setting: str, said: str, tmp_path: Path) -> None:
    outputs = tmp_path / "a" / "b" / "outputs"
    assert said in command(f"outputs={outputs}", *PLAN, setting).sentence
    inside = (outputs, *outputs.parents)
    assert all(path in inside or path.is_relative_to(outputs) for path in tmp_path.rglob("*"))


def test_a_limit_on_hours_can_be_raised(tmp_path: Path) -> None:
    long = [f"outputs={tmp_path}", "tracking=none", "training.epochs=1000000000"]
    assert "more than hardware.max_hours=2000" in command(*long).sentence
    assert not (tmp_path / "pool").exists(), "refused before anything runs"
    assert command(*long, "dry_run=true", "hardware.max_hours=0").succeeded


@pytest.mark.parametrize(
    "name",
    ["../../evil", "/abs/evil", "a/b", "..", "a\nb", "\x1b[31m", "x" * 300, "é" * 300, "-rf", "", "a b (c)"],
)
def test_a_name_is_one_part_of_a_path(name: str, tmp_path: Path) -> None:
    found = file_name(name)
    assert (
        Path(found).name == found
        and len(f"{found}-0123456789ab".encode()) < 255
        and found not in ("", ".", "..")
    )
    assert found.isprintable() and len(found.encode()) <= LONGEST_NAME
    (tmp_path / found).mkdir()
    assert found == name or found != file_name(f"{name}.")


def test_ordinary_names_stay_as_they_are() -> None:
    for name in (
        "qwen2.5-7b",
        "demo-lark-chi2-teacher-gpt-oss-120b (high)-B3",
        "lark-B3-weighting=kl",
        "Größe_2",
        "模型",
    ):
        assert file_name(name) == name


# Files of a pool


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"question":' + "[" * 200_000, "nested too deeply"),
        ('{"question_id":' + "9" * 5000 + "}", "too many digits"),
        (json.dumps({**ROW, "rollout": 2**31}), "`rollout` must be at most"),
        (json.dumps({**ROW, "rollout": 1e300}), "`rollout` must be at most"),
        ("\x00" * 100, "broken JSON"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
    ids=["nested", "digits", "rollout", "float rollout", "zeros", "bytes"],
)
def test_a_file_that_cannot_be_read_is_a_sentence(content: str | bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LarkError, match=said):
        list(read(rows_of(path)))


def rows_of(path: object, **settings: Any) -> Pool:
    return Pool(name="files", format="rows", path=str(path), **settings)


@pytest.mark.parametrize("kind", ["fifo", "device", "loop", "dangling", "socket", "missing user", "glob"])
def test_what_is_no_file_is_a_sentence(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind in ("loop", "dangling"):
        path.symlink_to(path if kind == "loop" else tmp_path / "nowhere")
    given = {"device": "/dev/zero", "missing user": "~nobody-here/x.jsonl", "glob": f"{tmp_path}/[a-"}.get(
        kind, str(path)
    )
    with pytest.raises(LarkError), time_limit(20, "hangs"):
        (
            from_dict({**asdict(composed("pool=files", "pool.path=x")), "pool": asdict(rows_of(given))})
            if "~" in given
            else None
        )
        list(read(rows_of(given)))


def test_a_folder_with_links_in_a_circle_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    folder.mkdir()
    pool(folder)
    (folder / "again").symlink_to(folder)
    (folder / "self.jsonl").symlink_to("self.jsonl")
    os.mkfifo(folder / "pipe.jsonl")
    assert [trajectory.question_id for trajectory in read(rows_of(folder))] == ["q"]


@pytest.mark.parametrize(
    "name",
    [
        "it's a $pool; dir",
        "a,b",
        'x"y',
        "back\\slash",
        "a\\'b",
        "é ü",
        "[list]",
        "a{b}",
        "~tilde",
        "new\nline",
    ],
)
def test_a_path_may_contain_anything(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    setting = pool(folder)
    (typed,) = as_hydra_reads([setting])
    assert OverridesParser.create().parse_override(typed).value() == setting.removeprefix("pool.path=")


@pytest.mark.parametrize(
    ("pattern", "response"),
    [
        ("<answer>(.*?)</answer>", "<answer>" * 30_000),
        ("(a|aa)+$", "a" * 60 + "b"),
        ("(x+x+)+y", "x" * 60),
        (".*.*.*.*=(x)", "x" * 20_000),
    ],
)
def test_a_slow_pattern_is_stopped(
    pattern: str, response: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark.pool.source.PATTERN_SECONDS", 0.2)
    pool(tmp_path, response=response)
    started = time.monotonic()
    with pytest.raises(LarkError, match=r"line 1: pool.answer_pattern=.* takes longer than"):
        list(read(rows_of(tmp_path / "pool.jsonl", answer_pattern=pattern)))
    assert time.monotonic() - started < 10


def test_the_documented_pattern_is_fast_on_any_text() -> None:
    text = (ROOT / "docs" / "own-pool.md").read_text()
    pattern = text.split("\"pool.answer_pattern='")[1].split("'\"")[0]
    assert box_answer("<answer>" * 30_000 + "5</answer>", pattern) == "<answer>" * 29_999 + "\\boxed{5}"
    assert box_answer("<answer>" * 30_000, pattern) == "<answer>" * 30_000
    assert box_answer("First <answer>4</answer>, then <answer>x < 5</answer>.", pattern).endswith(
        "then \\boxed{x < 5}."
    )


# Damaged outputs


MANIFESTS = [
    "",
    "[]",
    "5",
    "null",
    '"x"',
    "{}",
    "[" * 100_000,
    '{"status": "finished"}',
    '{"status": ["finished"]}',
    '{"status": "finished", "files": []}',
    '{"status": "finished", "files": {"a": 5}}',
    '{"status": "finished", "files": {}, "counts": 5}',
    '{"status": "finished", "files": {"../../x": [1, 2, "a"]}}',
    '{"status": "finished", "files": {"x": [1, 2.5, "a"]}}',
    '{"status": "finished", "files": {}, "fingerprint": "of another"}',
    '{"a": ' + "9" * 5000 + "}",
    '{"status": "finished", "files": {}}',
    json.dumps({"status": "finished", "files": {"a" * 300: [1, 2, "a"]}}),
    json.dumps({"status": "finished", "files": {"a/" * 5000: [1, 2, "a"]}}),
    '{"status": "finished", "files": {"": [1, 2, "a"]}}',
]


THING = Artifact(Kind("things", 1), "thing", {"a": 1})


def make(outputs: Path, force: bool = False) -> list[Artifact]:
    """Make an artifact with one file; return what was made."""

    def build(folders: list[Path]) -> list[dict[str, int]]:
        write_text(folders[0] / "data.txt", "content")
        return [{"items": 1}]

    return Store(outputs).ensure([THING], build, force)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda value: value[:40])
def test_a_manifest_of_another_shape_is_damaged(manifest: str, tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / THING.folder / "manifest.json").write_text(manifest)
    assert Store(tmp_path).state(THING) == "started" and make(tmp_path) == [THING]
    assert Store(tmp_path).manifest(THING).counts == {"items": 1}


def test_a_manifest_that_is_a_pipe_is_damaged(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / THING.folder / "manifest.json").unlink()
    os.mkfifo(tmp_path / THING.folder / "manifest.json")
    with time_limit(20, "hangs"):
        assert Store(tmp_path).state(THING) == "started" and make(tmp_path) == [THING]
    assert Store(tmp_path).manifest(THING).counts == {"items": 1}


@pytest.mark.parametrize("kept", [["config.yaml"], []])
def test_a_finished_artifact_has_the_file_of_its_kind(kept: list[str], tmp_path: Path) -> None:
    whole = Artifact(Kind("things", 1, "data.txt"), "thing", {"a": 1})
    parts = Artifact(Kind("things", 1, "trajectories.parquet"), "parts", {"a": 2})

    def build(folders: list[Path]) -> list[dict[str, int]]:
        write_text(folders[0] / "data.txt", "content")
        write_text(folders[1] / "trajectories-00000.parquet", "content")
        return [{}, {}]

    store = Store(tmp_path)
    store.ensure([whole, parts], build)
    assert [store.state(whole), store.state(parts)] == ["finished", "finished"]
    for artifact, name in ((whole, "data.txt"), (parts, "trajectories-00000.parquet")):
        manifest = tmp_path / artifact.folder / "manifest.json"
        values = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**values, "files": {name: values["files"][name] for name in kept}}))
        (tmp_path / artifact.folder / name).unlink()
    assert store.ensure([whole, parts], build) == [whole, parts]


@pytest.mark.parametrize("seconds", [10**400, -1, "NaN", True, [], None])
def test_a_duration_that_means_nothing_is_not_known(seconds: object, tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / THING.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": seconds}).replace('"NaN"', "NaN"))
    assert make(tmp_path) == []
    assert Store(tmp_path).manifest(THING).seconds in (0.0, 1.0)


@pytest.mark.parametrize("cache", ["[]", "5", '{"a": 5}', '{"a": [1]}', '{"a": [1, 2, 3]}', "["])
def test_a_cache_of_another_shape_is_ignored(cache: str, tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "checksums.json").write_text(
        cache.replace('"a"', json.dumps(str(tmp_path / "data")))
    )
    (tmp_path / "data").write_text("x")
    assert Checksums(tmp_path)(tmp_path / "data") == checksum(tmp_path / "data")


def replace(path: Path, kind: str) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "file":
        path.write_text("x")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "loop" else "/nonexistent/x")


PLACES = [
    "things/*",
    "things/*/manifest.json",
    "things/*/data.txt",
    "things/*/config.yaml",
    "things",
    ".locks",
    ".locks/*",
    ".cache",
]


@pytest.mark.parametrize("kind", ["file", "folder", "loop", "dangling"])
@pytest.mark.parametrize("what", PLACES)
def test_a_file_in_the_place_of_a_folder_and_the_reverse(what: str, kind: str, tmp_path: Path) -> None:
    make(tmp_path)
    replace(next(tmp_path.glob(what), tmp_path / what), kind)
    try:
        make(tmp_path)
        assert (tmp_path / THING.folder / "data.txt").read_text() == "content"
    except LarkError as error:
        assert str(tmp_path) in str(error)


@pytest.mark.parametrize("kind", ["folder", "loop"])
@pytest.mark.parametrize("what", ["runs", "runs/demo/lark-B3/lark.log"])
def test_the_folder_of_a_run_that_cannot_be_made_is_a_sentence(what: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / what).parent.mkdir(parents=True, exist_ok=True)
    replace(tmp_path / what, kind)
    ended = command(*small(tmp_path))
    assert ended.code == 0 or f"{tmp_path}/runs" in ended.sentence
    assert "This is an error in LARK" not in ended.output


def test_force_leaves_what_a_link_points_to(tmp_path: Path) -> None:
    make(tmp_path / "outputs")
    artifact = tmp_path / "outputs" / THING.folder
    artifact.rename(tmp_path / "elsewhere")
    artifact.symlink_to(tmp_path / "elsewhere")
    assert Store(tmp_path / "outputs").state(THING) == "finished"
    make(tmp_path / "outputs", force=True)
    assert (tmp_path / "elsewhere" / "manifest.json").exists() and not artifact.is_symlink()


# The machine


def test_outputs_that_are_removed_midway_are_reported_as_that(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"

    def remove() -> None:
        from lark.store import store

        write = store.write_text

        def first(path: Path, text: str) -> None:
            if path.name == "config.yaml":
                shutil.rmtree(outputs)
            write(path, text)

        store.write_text = first

    assert "was removed while the run was working" in command(*small(outputs), prepare=remove).sentence
    assert not outputs.exists()


@pytest.mark.parametrize(
    "number", [errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EMFILE]
)
def test_what_the_disk_refuses_is_a_sentence(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, text: str) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("lark.store.store.write_text", fails)
    with pytest.raises(LarkError, match=str(tmp_path)):
        make(tmp_path)


def test_a_disk_that_fills_while_pytorch_writes_is_a_sentence(tmp_path: Path) -> None:
    """PyTorch reports a position in the file, not the disk."""
    import torch

    state = torch.zeros(200_000)  # here: in a fork, PyTorch's threads may be gone, and it would wait for them

    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        torch.save({"state": state}, tmp_path / "optimizer.pt")

    ended = forked(lambda: run_main(save, tmp_path), 60)
    assert f"No space left on the disk while writing {tmp_path}" in ended.sentence


@pytest.mark.parametrize("more", [[], ["dry_run=true"]])
def test_outputs_that_are_read_only_are_a_sentence(more: list[str]) -> None:
    assert "outputs=<folder>" in command("outputs=/proc/lark", "tracking=none", *more).sentence


def test_memory_that_is_exhausted_while_reading_is_a_sentence(tmp_path: Path) -> None:
    def little() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (150 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    given = pool(tmp_path, response="x" * 120_000_000)
    arguments = small(tmp_path / "o", "pool=files", given, "pool.questions=null")
    assert "ran out of memory" in command(*arguments, prepare=little).sentence


def test_a_bug_leaves_a_report_and_the_other_trials_run(tmp_path: Path) -> None:
    def broken() -> None:
        from lark.pipeline import pipeline

        def fails(*_: object, **__: object) -> None:
            raise ZeroDivisionError("a bug with hf_abcdefghijklmnopqrstuv in it")

        pipeline.fetched_plan = fails

    ended = command(*small(tmp_path, "-m", "budget=1,2"), prepare=broken)
    assert ended.sentence.startswith("error: ZeroDivisionError")
    reports = sorted((tmp_path / "crashes").iterdir())
    assert reports and all(str(path) in ended.output for path in reports)
    assert ended.output.count("error: ZeroDivisionError") == 2
    text = reports[0].read_text()
    assert "Traceback" in text and "hf_abcdef" not in text


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("lark.export", ["nope", "--for", "axolotl", "--to", "x.jsonl"]),
        ("lark.export", ["~nobody-here/x", "--for", "axolotl", "--to", "x.jsonl"]),
        ("lark.publish", ["/dev", "--to", "a/b"]),
        ("lark.publish", ["~nobody-here/x", "--to", "a/b"]),
        ("experiments", ["run", "../../x"]),
        ("experiments", ["plan", "contamination", "outputs=/proc/lark"]),
        ("lark.gpu_check", ["--outputs", "/proc/lark"]),
    ],
)
def test_every_command_reports_errors_in_a_sentence(module: str, arguments: list[str]) -> None:
    assert command(*arguments, module=module).sentence


def test_a_setting_that_hydra_cannot_use_is_a_sentence(tmp_path: Path) -> None:
    ended = command(*small(tmp_path, "-m", "budget=1,2", "hydra.sweeper.max_batch_size=0"))
    assert "Hydra cannot use the value of a setting" in ended.sentence


def test_a_configuration_file_that_is_not_yaml_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "conf" / "tracking").mkdir(parents=True)
    (tmp_path / "conf" / "tracking" / "mine.yaml").write_text("mode: [none\ngroup: {")
    ended = command(*small(tmp_path / "o", "tracking=mine", "--config-dir", str(tmp_path / "conf")))
    assert "mine.yaml" in ended.sentence and "error in LARK" not in ended.output


def test_a_current_folder_that_was_removed_is_a_sentence(tmp_path: Path) -> None:
    def remove() -> None:
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

    assert "no longer exists" in command(*small(tmp_path / "o"), prepare=remove).sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_NUM_THREADS", "2,1"), ("OMP_NUM_THREADS", "x"), ("TMPDIR", "/nowhere"), ("HOME", "/nowhere")],
)
def test_strange_variables_do_no_harm(name: str, value: str, tmp_path: Path) -> None:
    assert command(f"outputs={tmp_path}", *PLAN, prepare=lambda: os.environ.update({name: value})).succeeded


def test_a_log_on_a_full_disk_prints_no_stack_traces(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "demo" / "lark-B3"
    run.mkdir(parents=True)
    (run / "lark.log").symlink_to("/dev/full")
    ended = command(*small(tmp_path))
    assert "Traceback" not in ended.output and "Logging error" not in ended.output
