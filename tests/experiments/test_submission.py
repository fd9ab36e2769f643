"""A sweep as a graph: each step once, nothing waits with resources held, and what was lost is submitted
again.
"""

import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.__main__ import main
from experiments.harness.sweep import compose_sweep
from experiments.submission.conductor import conduct
from experiments.submission.graph import graph, remaining
from experiments.submission.record import (
    AGAIN,
    CONDUCTOR,
    GRAPH,
    JOBS,
    Planned,
    Submission,
    attempt,
    await_record,
    conducting,
    is_conductor,
    submitted,
)
from experiments.submission.slurm_jobs import parameters
from experiments.submission.status import describe
from experiments.submission.submit import _check_room, plan_steps
from lark.cluster.nodes import Node
from lark.errors import LarkError
from lark.store.store import Artifact, Kind
from lark.work.machine import Machine
from lark.work.operation import Operation, Step
from tests.experiments.submitted import ARGUMENTS, check_shared, experiments, wait_for_conductor, wait_until

KIND = Kind("thing")


@st.composite
def sweeps(draw: st.DrawFn) -> list[list[Step]]:
    """Trials that each need some artifacts of a random graph. Artifacts of one step can be made together or
    in part.
    """
    layers = draw(st.integers(1, 4))
    made: list[list[Artifact]] = []
    for layer in range(layers):
        earlier = [artifact for group in made for artifact in group]
        inputs = (
            {
                a.name: a
                for a in draw(st.lists(st.sampled_from(earlier), max_size=3, unique_by=lambda a: a.name))
            }
            if earlier
            else {}
        )
        made.append(
            [
                Artifact(KIND, f"{layer}-{part}", {"n": (layer, part)}, inputs)
                for part in range(draw(st.integers(1, 3)))
            ]
        )
    operations = [Operation(f"op{layer}", "score", "m:f") for layer in range(layers)]
    trials = []
    for _ in range(draw(st.integers(1, 4))):
        wanted, steps = set(draw(st.sets(st.sampled_from([a.name for g in made for a in g]), min_size=1))), []
        for group, operation in reversed(list(zip(made, operations, strict=True))):
            chosen = tuple(artifact for artifact in group if artifact.name in wanted)
            if chosen:
                steps.insert(0, Step(operation, chosen))
                wanted |= {source.name for artifact in chosen for source in artifact.inputs.values()}
        trials.append(steps)
    return trials


@given(sweeps())
def test_every_artifact_is_made_and_no_step_is_there_twice(trials: list[list[Step]]) -> None:
    nodes = graph(trials)
    assert len({node.name for node in nodes}) == len(nodes)
    assert {a.folder for n in nodes for a in n.step.artifacts} == {
        a.folder for t in trials for s in t for a in s.artifacts
    }
    folders = [{a.folder for a in node.step.artifacts} for node in nodes]
    assert not any(one < other for one in folders for other in folders)


@given(sweeps())
def test_a_step_comes_after_what_it_needs_and_never_at_the_same_time_as_one_that_makes_the_same(
    trials: list[list[Step]],
) -> None:
    nodes = graph(trials)
    before: dict[str, set[str]] = {}
    for node in nodes:  # in order: everything before it is known
        before[node.name] = set(node.after).union(*(before[name] for name in node.after))
    for node in nodes:
        made_before = {
            a.folder for other in nodes if other.name in before[node.name] for a in other.step.artifacts
        }
        assert {source.folder for source in node.step.needs} <= made_before
    for one in nodes:
        for other in nodes:
            shared = {a.folder for a in one.step.artifacts} & {a.folder for a in other.step.artifacts}
            assert (
                not shared or one is other or one.name in before[other.name] or other.name in before[one.name]
            )


@given(sweeps())
def test_trials_know_the_steps_they_wait_for(trials: list[list[Step]]) -> None:
    nodes = graph(trials)
    for number, steps in enumerate(trials):
        wanted = {a.folder for step in steps for a in step.artifacts}
        assert wanted <= {a.folder for node in nodes if number in node.trials for a in node.step.artifacts}


def test_the_longest_chain_counts_only_what_is_left() -> None:
    after = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
    seconds = {"a": 1.0, "b": 5.0, "c": 2.0, "d": 3.0}
    assert remaining(after, seconds) == {"a": 9.0, "b": 8.0, "c": 5.0, "d": 3.0}
    assert remaining(after, seconds, done=["a", "b"]) == {"a": 5.0, "b": 3.0, "c": 5.0, "d": 3.0}


def test_the_papers_table_is_a_graph_with_gpus_only_where_they_are_used(paper_table1) -> None:
    """48 trainings on three students: three passes of the student, one judge, three base evaluations."""
    machine = Machine("cuda", 8, 1, 12, elsewhere=True)
    steps = plan_steps(paper_table1, machine)
    titles = [step.title for step in steps]
    counts = {title: titles.count(title) for title in titles}
    assert (
        counts["train"],
        counts["score"],
        counts["judge"],
        counts["pool"],
        counts["generate (base model)"],
    ) == (
        48,
        3,
        1,
        1,
        3,
    )
    gpus = {title: {step.gpus for step in steps if step.title == title} for title in counts}
    assert all(
        gpus[title] == {0} for title in ("pool", "lengths", "text", "select", "grade", "grade (base model)")
    )
    assert gpus["train"] == {8} and all(0 not in gpus[title] for title in ("score", "generate", "judge"))
    named = {step.name: step for step in steps}
    for step in steps:
        if step.title == "train":
            assert [named[name].title for name in step.after] == ["select"]


def test_a_sweep_outlives_its_shell_and_continues_after_its_conductor_is_killed(tmp_path: Path) -> None:
    settings = ["table1", "method=random,token_length", *ARGUMENTS[2:], "hardware=cpu", "hardware.threads=1"]
    settings.append(f"outputs={tmp_path}")
    assert "4 steps of 2 trials, 0 finished" in experiments("submit", *settings)
    (submission,) = map(Submission, submitted(tmp_path))
    conductor = psutil.Process(int(str(submission.conductor()).split()[1]))
    assert os.getsid(conductor.pid) != os.getsid(0)
    assert "it is being carried out" in experiments("submit", *settings)  # leaves what is under way alone
    while not any(submission.is_running(step) for step in submission.steps.values()):
        time.sleep(0.01)
    steps = conductor.children(recursive=True)
    conductor.send_signal(signal.SIGKILL)
    conductor.wait(20)
    assert not psutil.wait_procs(steps, timeout=20)[1]
    said = describe(submission)
    assert "its process was lost" in said and "submit again: python -m experiments submit table1" in said

    assert "1 finished" in experiments("submit", *settings)
    wait_until(submission, "done")
    check_shared(submission, "lengths")
    assert "Everything is done" in describe(submission)

    wait_for_conductor(submission)
    (lengths,) = [step for step in submission.steps.values() if step.title == "lengths"]
    shutil.rmtree(tmp_path / lengths.artifacts[0])
    said = describe(submission)
    assert f"failed: {lengths.name}: its result has been removed or damaged; `submit` makes it again" in said
    assert "3 finished" in experiments("submit", *settings)
    wait_until(submission, "done")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SLURM's commands, played by processes of this machine."""
    commands, state = tmp_path / "commands", tmp_path / "slurm"
    commands.mkdir()
    state.mkdir()
    for name in ("sbatch", "srun", "squeue", "scancel"):
        (commands / name).write_text(
            f"#!{sys.executable}\n" + (Path(__file__).parent / "slurm" / "stand_in.py").read_text()
        )
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(state))
    return state


def test_slurm_jobs_depend_on_each_other_and_what_failed_is_submitted_again(
    tmp_path: Path, slurm: Path
) -> None:
    outputs = tmp_path / "outputs"
    settings = [
        *ARGUMENTS,
        "hardware=slurm",
        "hardware.device=cpu",
        "hydra.launcher.partition=small",
        f"outputs={outputs}",
    ]
    (slurm / "lose").write_text("score")
    assert "5 jobs submitted to SLURM" in experiments("submit", *settings)
    (submission,) = map(Submission, submitted(outputs))
    scripts = {name: (slurm / f"{job}.sh").read_text() for name, job in submission.jobs().items()}
    for name, script in scripts.items():
        needed = ":".join(submission.jobs()[other] for other in submission.steps[name].after)
        assert (f"--dependency=afterok:{needed}\n" in script) == bool(needed)
        assert "--partition=small" in script and "gpus" not in script
    deadline = time.time() + 120
    while any(file.read_text() in ("PENDING", "RUNNING") for file in slurm.glob("*.job")):
        assert time.time() < deadline
        time.sleep(0.2)
    (lost,) = [name for name, step in submission.steps.items() if step.title == "score"]
    states = {name: (slurm / f"{job}.job").read_text() for name, job in submission.jobs().items()}
    assert sorted(states.values()) == ["CANCELLED", "CANCELLED", "COMPLETED", "COMPLETED", "FAILED"]
    said = experiments("status", "table1", f"outputs={outputs}")
    assert f"failed: {lost}: SLURM job {submission.jobs()[lost]} has ended without a result" in said
    assert "1 step failed. To continue, submit again" in said

    assert "3 jobs submitted to SLURM" in experiments("submit", *settings)
    wait_until(submission, "done")
    check_shared(submission, "score")


SETTINGS = ["table1", "method=random,token_length", *ARGUMENTS[2:]]
CPU, SLURM = ["hardware=cpu", "hardware.threads=1"], ["hardware=slurm", "hardware.device=cpu"]


@pytest.fixture
def conducted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submission:
    """A sweep on this machine whose conductor, played by this process, has started no step yet."""

    def start(folder: Path) -> None:
        (folder / CONDUCTOR).write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))

    monkeypatch.setattr("experiments.submission.submit._start", start)
    main(["submit", *SETTINGS, *CPU, f"outputs={tmp_path / 'outputs'}"])
    return Submission(submitted(tmp_path / "outputs")[0])


def test_a_sweep_with_a_conductor_is_not_submitted_to_slurm_too(conducted: Submission, slurm: Path) -> None:
    graph_before = (conducted.folder / GRAPH).read_bytes()
    said = rf"is being carried out on one machine.*process {os.getpid()} on .*end that process first"
    with pytest.raises(LarkError, match=said):
        main(["submit", *SETTINGS, *SLURM, f"outputs={conducted.outputs}"])
    assert not list(slurm.glob("*.job"))
    assert (conducted.folder / GRAPH).read_bytes() == graph_before


def test_the_graph_does_not_change_under_a_conductor(conducted: Submission) -> None:
    graph_before = (conducted.folder / GRAPH).read_bytes()
    main(["submit", *SETTINGS, "hardware=cpu", "hardware.threads=2", f"outputs={conducted.outputs}"])
    assert (conducted.folder / GRAPH).read_bytes() == graph_before
    assert (conducted.folder / AGAIN).exists()


def test_a_sweep_with_slurm_jobs_gets_no_conductor(conducted: Submission, slurm: Path) -> None:
    (conducted.folder / CONDUCTOR).unlink()
    (slurm / "7.job").write_text("PENDING")
    (conducted.folder / JOBS).write_text(json.dumps({next(iter(conducted.steps)): "7"}))
    submit = ["submit", *SETTINGS, *CPU, f"outputs={conducted.outputs}"]
    with pytest.raises(LarkError, match=r"is being carried out on SLURM \(1 job: 7\).*scancel 7"):
        main(submit)
    assert conducted.conductor() is None
    (slurm / "7.job").write_text("CANCELLED")
    main(submit)
    assert conducted.conductor() is not None


def test_a_sweep_under_way_whose_graph_is_damaged_is_not_submitted_again(
    conducted: Submission, slurm: Path
) -> None:
    (conducted.folder / GRAPH).write_text("{")
    submit = ["submit", *SETTINGS, *CPU, f"outputs={conducted.outputs}"]
    with pytest.raises(LarkError, match=rf"graph.json is damaged.*carried out \(process {os.getpid()}"):
        main(submit)
    (conducted.folder / CONDUCTOR).unlink()
    (slurm / "7.job").write_text("PENDING")
    (conducted.folder / JOBS).write_text(json.dumps({next(iter(conducted.steps)): "7"}))
    with pytest.raises(LarkError, match=r"graph.json is damaged.*1 SLURM job \(7\).*scancel 7"):
        main(submit)
    (slurm / "7.job").write_text("CANCELLED")
    main(submit)
    assert Submission(conducted.folder).conductor() is not None


def test_a_step_of_a_lost_conductor_is_left_alone_until_it_ends(conducted: Submission, slurm: Path) -> None:
    (conducted.folder / CONDUCTOR).unlink()
    (first,) = [step for step in conducted.steps.values() if not step.after]
    started: list[str] = []

    class Watching:
        def start(self, step: Planned) -> bool:
            assert not conducted.is_running(step)
            started.append(step.name)
            return True

        def ended(self, seconds: float) -> list[str]:
            return started[-1:]

        def close(self) -> None: ...

    def carry_out() -> dict[str, str]:
        with conducting(conducted.folder):
            return conduct(conducted, Watching(), 0.01)

    with ThreadPoolExecutor() as threads:
        with attempt(conducted.event_file(first.name)):
            with pytest.raises(LarkError, match=f"{first.name} is still running"):
                main(["submit", *SETTINGS, *SLURM, f"outputs={conducted.outputs}"])
            failed = threads.submit(carry_out)
            time.sleep(0.2)
            assert not started and not failed.done()
        assert list(failed.result(20)) == started == [first.name]


DAMAGED = [
    b'{"event": "started"}',
    b'{"event": "started", "time": 1, "host": "vm", "process": "abc"}',
    b"[]",
    b"\x00\xff\x80",
    b'{"time": 1}',
    b'{"event": "started", "time": "now", "host": "vm", "process": 1}',
    b'{"event": "ended", "error": null}',
    b'{"event": "started", "time": NaN, "host": "vm", "process": 1}',
    b'{"event": "ended", "time": 2, "error": ["no"]}',
    b'{"event": "started", "time": 1, "host": "vm", "process": 1' + b"0" * 40 + b"}",
    b'{"event": ["started"], "time": 1}',
]


@pytest.mark.parametrize("line", DAMAGED)
def test_damaged_events_are_skipped_with_one_warning(
    conducted: Submission, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    step = next(iter(conducted.steps.values()))
    with attempt(conducted.event_file(step.name)):
        pass
    intact = conducted.event_file(step.name).read_bytes()
    conducted.event_file(step.name).write_bytes(line + b"\n" + intact + line + b"\n" + intact)
    assert len(conducted.events(step)) == 2 and "table1" in describe(conducted)
    assert caplog.text.count(f"{conducted.event_file(step.name)} is damaged") == 1


def test_an_event_that_is_being_written_is_not_damage(
    conducted: Submission, caplog: pytest.LogCaptureFixture
) -> None:
    step = next(iter(conducted.steps.values()))
    with attempt(conducted.event_file(step.name)):
        with conducted.event_file(step.name).open("ab") as file:
            file.write(b'{"time": 1, "ev')
        assert len(conducted.events(step)) == 1 and "damaged" not in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        '{"process":"abc","host":"vm"}',
        '{"process": -1, "host": "vm"}',
        f'{{"process": 1{"0" * 40}}}',
        "[]",
        "\x00",
        "",
    ],
)
def test_a_damaged_record_without_a_conductor_counts_as_none(
    conducted: Submission, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.submission.record.BEAT", 0.1)
    (conducted.folder / CONDUCTOR).write_text(text)
    assert conducted.conductor() is None
    main(["submit", *SETTINGS, *CPU, f"outputs={conducted.outputs}"])
    assert conducted.conductor() is not None


def test_a_conductor_writes_its_damaged_record_again(
    conducted: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, `submit` waits; it does not start a second one."""
    monkeypatch.setattr("experiments.submission.record.BEAT", 0.2)
    with conducting(conducted.folder):
        (conducted.folder / CONDUCTOR).write_text('{"pro')
        assert is_conductor(conducted.folder)
        await_record(conducted.folder)
        assert f"process {os.getpid()}" in (conducted.conductor() or "")
    assert not (conducted.folder / CONDUCTOR).exists()


@pytest.mark.parametrize("record", [None, '{"process": 1, "host": "elsewhere"}'])
def test_a_conductor_ends_if_the_sweep_was_submitted_again_while_it_was_stopped(
    conducted: Submission, record: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.submission.record.BEAT", 0.1)
    started: list[str] = []

    class Place:
        def start(self, step: Planned) -> bool:
            started.append(step.name)
            if record is None:
                (conducted.folder / CONDUCTOR).unlink()
            else:
                (conducted.folder / CONDUCTOR).write_text(record)
            return True

        def ended(self, seconds: float) -> list[str]:
            return []

        def close(self) -> None: ...

    with (
        conducting(conducted.folder),
        pytest.raises(LarkError, match="submitted again while this process was stopped"),
    ):
        conduct(conducted, Place(), poll=0.01)
    assert len(started) == 1
    left = conducted.folder / CONDUCTOR
    assert (left.read_text() if left.exists() else None) == record


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 5}', '{"a": "x"}', '{"a": null}'])
def test_damaged_records_of_jobs_are_not_forgotten(conducted: Submission, slurm: Path, text: str) -> None:
    (conducted.folder / CONDUCTOR).unlink()
    (conducted.folder / JOBS).write_text(text)
    for hardware in (CPU, SLURM):
        with pytest.raises(LarkError, match=r"jobs.json is damaged.*squeue --me.*remove the file"):
            main(["submit", *SETTINGS, *hardware, f"outputs={conducted.outputs}"])
    assert not list(slurm.glob("*.job")) and conducted.conductor() is None


@pytest.mark.parametrize(
    "change",
    [
        {"launcher": "abc"},
        {"arguments": [1, 2]},
        {"title": None},
        {"steps": [{}]},
        {"steps": {}},
        {"trials": [1]},
        None,
    ],
)
def test_a_damaged_graph_is_reported_and_does_not_hide_other_sweeps(
    conducted: Submission, change: dict[str, object] | None, caplog: pytest.LogCaptureFixture
) -> None:
    other = conducted.folder.with_name("table1-demo-000000")
    shutil.copytree(conducted.folder, other)
    (other / CONDUCTOR).unlink()
    values = json.loads((other / GRAPH).read_text())
    (other / GRAPH).write_text("{}" if change is None else json.dumps(values | change))
    status = ["status", "table1", f"outputs={conducted.outputs}"]
    damaged = (
        f"{other / GRAPH} is damaged or of another version: submit the sweep again. Finished steps are kept."
    )
    with caplog.at_level(logging.INFO):
        assert main(status) == damaged
    assert f"table1 ({conducted.folder.name})" in caplog.text
    shutil.rmtree(conducted.folder)
    assert main(status) == main(["status", f"outputs={conducted.outputs}"]) == damaged
    assert "No sweep of kappa has been submitted" in str(
        main(["status", "kappa", f"outputs={conducted.outputs}"])
    )


def test_the_status_of_a_sweep_whose_graph_is_damaged_names_the_process_that_carries_it_out(
    conducted: Submission,
) -> None:
    (conducted.folder / GRAPH).write_text("{")
    status = str(main(["status", f"outputs={conducted.outputs}"]))
    assert re.search(
        rf"graph.json is damaged.*being carried out \(process {os.getpid()} .*End that process", status
    )


def test_a_sweep_on_slurm_has_a_status_where_slurm_does_not_answer(
    conducted: Submission, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (conducted.folder / CONDUCTOR).unlink()
    main(["submit", *SETTINGS, *SLURM, f"outputs={conducted.outputs}"])
    monkeypatch.setenv("PATH", str(slurm / "nothing"))
    said = describe(Submission(conducted.folder))
    assert "SLURM does not answer" in said and "assumed to be waiting" in said
    assert not re.search(r"^failed:", said, re.MULTILINE)


@pytest.mark.parametrize("own", [True, False])
def test_steps_that_no_node_can_take_are_reported(own: bool, caplog: pytest.LogCaptureFixture) -> None:
    large = Planned("a", "score", 0, (0,), (), ("a",), (), 0, 8, None)
    steps = [large, Planned("b", "select", 0, (0,), (), ("b",), (), 0, 1, None)]
    said = "1 step of the sweep, such as score, needs up to 8 CPUs of one node, which no node has"
    if own:
        with pytest.raises(LarkError, match=said):
            _check_room(steps, [Node(2, 0)], own)
    else:
        _check_room(steps, [Node(2, 0)], own)
        assert said in caplog.text
    _check_room(steps, [Node(2, 0), Node(8, 0)], own)


def test_jobs_ask_for_the_gpus_of_their_step(tmp_path: Path) -> None:
    sweep = compose_sweep("table1", ["scale=paper", "student=qwen7b", "method=lark", "budget=1", "hardware=slurm",
                                     "hydra.launcher.account=me", f"outputs={tmp_path}"])  # fmt: skip
    steps = {step.title: step for step in plan_steps(sweep, Machine("cuda", 8, 1, 4, elsewhere=True))}
    submission = Submission.__new__(Submission)
    submission.launcher = dict(sweep.launcher)
    train, select = (parameters(submission, steps[title], ["7"]) for title in ("train", "select"))
    assert (train["gpus_per_node"], train["cpus_per_task"], train["timeout_min"]) == (8, 32, 1440)
    assert "gpus_per_node" not in select and select["cpus_per_task"] == 4
    assert select["slurm_dependency"] == "afterok:7" and select["slurm_account"] == "me"


def test_what_cannot_be_submitted_is_a_sentence(tmp_path: Path) -> None:
    for typed, why in [
        ("hardware=slurm", "there is no sbatch here"),
        ("force=[score]", "force= cannot be submitted"),
        ("dry_run=true", "dry_run=true cannot be submitted"),
    ]:
        with pytest.raises(LarkError, match=re.escape(why)):
            main(["submit", *ARGUMENTS, typed, f"outputs={tmp_path}"])
    assert "No sweep of table1 has been submitted" in str(main(["status", "table1", f"outputs={tmp_path}"]))
    assert "expected `status" in str(main(["status", "table1", "everything", f"outputs={tmp_path}"]))
    assert not list(tmp_path.glob("runs/sweeps/*"))
