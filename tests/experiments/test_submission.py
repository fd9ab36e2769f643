"""A sweep as a graph: each step once, nothing waits with resources held, and what was lost is submitted
again.
"""

import json
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.__main__ import main
from experiments.harness.sweep import compose_sweep
from experiments.submission.checks import check_room
from experiments.submission.graph import SweepStep, graph, remaining
from experiments.submission.record import DRIVER, GRAPH, Submission, submitted
from experiments.submission.slurm_jobs import parameters
from experiments.submission.status import describe, situations
from experiments.submission.step_job import run_step
from experiments.submission.submit import plan_steps
from lark.cluster.nodes import Node
from lark.errors import LarkError
from lark.store.locks import locked
from lark.store.store import Artifact, Kind, lock_file
from lark.work.machine import Machine
from lark.work.operation import Operation, Step
from tests.experiments.submitted import ARGUMENTS, check_shared, experiments, wait_for_driver, wait_until

KIND = Kind("thing")
LOST = "its process was lost, or its result was removed or damaged; `submit` makes it again"
SETTINGS = ["table1", "method=random,token_length", *ARGUMENTS[2:]]
RAY = ["hardware=ray", "hardware.device=cpu", "hardware.threads=1"]
SLURM = ["hardware=slurm", "hardware.device=cpu"]


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
    made = {folder for node in nodes for folder in node.artifacts}
    assert made == {a.folder.as_posix() for steps in trials for step in steps for a in step.artifacts}
    assert not any(set(one.artifacts) < set(other.artifacts) for one in nodes for other in nodes)


@given(sweeps())
def test_a_step_comes_after_what_it_needs_and_never_at_the_same_time_as_one_that_makes_the_same(
    trials: list[list[Step]],
) -> None:
    nodes = graph(trials)
    planned = {step.key: step for steps in trials for step in steps}
    before: dict[str, set[str]] = {}
    for node in nodes:  # in order: everything before it is known
        before[node.name] = set(node.after).union(*(before[name] for name in node.after))
    for node in nodes:
        made_before = {
            folder for other in nodes if other.name in before[node.name] for folder in other.artifacts
        }
        assert {source.folder.as_posix() for source in planned[node.key].needs} <= made_before
    for one in nodes:
        for other in nodes:
            shared = set(one.artifacts) & set(other.artifacts)
            assert (
                not shared or one is other or one.name in before[other.name] or other.name in before[one.name]
            )


@given(sweeps())
def test_a_step_is_made_with_the_configuration_of_a_trial_that_plans_it(trials: list[list[Step]]) -> None:
    for node in graph(trials):
        assert node.key in {step.key for step in trials[node.trial]}


def test_the_longest_chain_counts_only_what_is_left() -> None:
    after = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
    seconds = {"a": 1.0, "b": 5.0, "c": 2.0, "d": 3.0}
    steps = [SweepStep(name, "", (), (), 0, after[name], seconds=seconds[name]) for name in after]
    assert remaining(steps) == {"a": 9.0, "b": 8.0, "c": 5.0, "d": 3.0}
    assert remaining(steps[2:]) == {"c": 5.0, "d": 3.0}


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


def test_a_sweep_outlives_its_shell_and_continues_after_its_driver_is_killed(tmp_path: Path) -> None:
    settings = [*SETTINGS, *RAY, f"outputs={tmp_path}"]
    assert "4 steps of 2 trials, 0 finished" in experiments("submit", *settings)
    (submission,) = map(Submission, submitted(tmp_path))
    driver = psutil.Process(int(str(submission.driver).split()[1]))
    assert os.getsid(driver.pid) != os.getsid(0)
    assert "it is being carried out" in experiments("submit", *settings)  # leaves what is under way alone
    (lengths,) = [step for step in submission.steps.values() if step.title == "lengths"]
    while (owner := submission.maker(lengths)) is None:  # the pool's step may end before it can be lost
        time.sleep(0.01)
    maker = psutil.Process(int(owner.split()[1]))
    driver.send_signal(signal.SIGKILL)
    driver.wait(20)
    assert not psutil.wait_procs([maker], timeout=60)[1], "Ray ends the tasks of a lost driver"
    status = describe(submission)
    assert "its process was lost" in status and "submit again: python -m experiments submit table1" in status

    experiments("submit", *settings)
    wait_until(submission, "done")
    wait_for_driver(submission)  # a step logs its time after its result is there
    check_shared(submission, "lengths")
    assert "Everything is done" in describe(submission)

    shutil.rmtree(tmp_path / lengths.artifacts[0])
    status = describe(submission)
    assert re.search(
        rf"failed: {lengths.name}: .*its result was removed or damaged; `submit` makes it again", status
    )
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
    scripts = {name: (slurm / f"{job}.sh").read_text() for name, job in submission.jobs.items()}
    for name, script in scripts.items():
        needed = ":".join(submission.jobs[other] for other in submission.steps[name].after)
        assert (f"--dependency=afterok:{needed}\n" in script) == bool(needed)
        assert "--partition=small" in script and "gpus" not in script
        assert "export SRUN_CPUS_PER_TASK=" in script.partition("\nsrun ")[0]
    deadline = time.time() + 120
    while any(file.read_text() in ("PENDING", "RUNNING") for file in slurm.glob("*.job")):
        assert time.time() < deadline
        time.sleep(0.2)
    (lost,) = [name for name, step in submission.steps.items() if step.title == "score"]
    states = {name: (slurm / f"{job}.job").read_text() for name, job in submission.jobs.items()}
    assert sorted(states.values()) == ["CANCELLED", "CANCELLED", "COMPLETED", "COMPLETED", "FAILED"]
    said = experiments("status", "table1", f"outputs={outputs}")
    assert f"failed: {lost}: SLURM job {submission.jobs[lost]} has ended without a result" in said
    assert "1 step failed. To continue, submit again" in said

    assert "3 jobs submitted to SLURM" in experiments("submit", *settings)
    wait_until(submission, "done")
    check_shared(submission, "score")


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submission:
    """A sweep for Ray whose driver has not been started."""
    monkeypatch.setattr("experiments.submission.submit.start_driver", lambda folder: None)
    main(["submit", *SETTINGS, *RAY, f"outputs={tmp_path / 'outputs'}"])
    return Submission(submitted(tmp_path / "outputs")[0])


@pytest.fixture
def driven(planned: Submission) -> Iterator[Submission]:
    """A sweep whose driver, played by this process, has started no step yet."""
    with locked(planned.folder / DRIVER, "sweep"):
        yield planned


def test_a_sweep_with_a_driver_is_not_submitted_to_slurm_too(driven: Submission, slurm: Path) -> None:
    graph_before = (driven.folder / GRAPH).read_bytes()
    sentence = rf"is being carried out on a Ray cluster.*process {os.getpid()} on .*end the process"
    with pytest.raises(LarkError, match=sentence):
        main(["submit", *SETTINGS, *SLURM, f"outputs={driven.outputs}"])
    assert not list(slurm.glob("*.job"))
    assert (driven.folder / GRAPH).read_bytes() == graph_before


def test_the_graph_does_not_change_under_a_driver(
    driven: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_before = (driven.folder / GRAPH).read_bytes()
    main(["submit", *SETTINGS, *RAY[:2], "hardware.threads=2", f"outputs={driven.outputs}"])
    assert (driven.folder / GRAPH).read_bytes() == graph_before
    monkeypatch.setattr("experiments.submission.submit.plan_steps", lambda *_: [])
    with pytest.raises(LarkError, match="its inputs or the code are not those that it was submitted with"):
        main(["submit", *SETTINGS, *RAY, f"outputs={driven.outputs}"])


@pytest.fixture
def queued(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submission:
    """A sweep with one SLURM job, number 7, which is waiting."""
    monkeypatch.setattr("experiments.submission.submit.submit_jobs", lambda *_: 1)
    main(["submit", *SETTINGS, *SLURM, f"outputs={tmp_path / 'outputs'}"])
    submission = Submission(submitted(tmp_path / "outputs")[0])
    script = submission.folder / "logs" / next(iter(submission.steps)) / "7_submission.sh"
    script.parent.mkdir()
    script.touch()
    (slurm / "7.job").write_text("PENDING")
    return submission


def test_a_sweep_with_slurm_jobs_gets_no_driver(
    queued: Submission, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers: list[Path] = []
    monkeypatch.setattr("experiments.submission.submit.start_driver", drivers.append)
    submit = ["submit", *SETTINGS, *RAY, f"outputs={queued.outputs}"]
    with pytest.raises(LarkError, match=r"is being carried out on SLURM \(1 job: 7\).*scancel"):
        main(submit)
    assert not drivers
    (slurm / "7.job").write_text("CANCELLED")
    main(submit)
    assert drivers == [queued.folder]


def write_manifest(submission: Submission, step: SweepStep, **values: object) -> None:
    folder = submission.outputs / step.artifacts[0]
    folder.mkdir(parents=True, exist_ok=True)
    fingerprint = folder.name.rpartition("-")[2]
    (folder / "manifest.json").write_text(json.dumps({"fingerprint": fingerprint, "files": {}, **values}))


def test_the_store_says_what_became_of_a_step(planned: Submission) -> None:
    """Its manifest has the status and the reason, and whoever makes it holds its lock."""
    first = next(iter(planned.steps.values()))
    assert {s.state for s in situations(planned)} == {"waiting"}

    lock = lock_file(planned.outputs, Path(first.artifacts[0]))
    write_manifest(planned, first, status="started")
    with locked(lock, "step"):
        assert situations(planned)[0].state == "running"
    for values, note in [
        ({"status": "started"}, LOST),
        ({"status": "failed", "error": "no pool"}, "no pool"),
        ({"status": "finished"}, LOST),
    ]:
        write_manifest(planned, first, **values)
        situation = situations(planned)[0]
        assert (situation.state, situation.note) == ("failed", note)
        assert f"failed: {first.name}: {note}" in describe(planned)


def test_a_failure_from_before_the_driver_waits_for_its_next_attempt(planned: Submission) -> None:
    first = next(iter(planned.steps.values()))
    write_manifest(planned, first, status="failed", error="no pool")
    manifest = planned.outputs / first.artifacts[0] / "manifest.json"
    with locked(planned.folder / DRIVER, "sweep"):
        os.utime(manifest, (1, 1))
        assert situations(planned)[0].state == "waiting"
        os.utime(manifest)
        assert situations(planned)[0].state == "failed"


def test_a_step_that_cannot_be_planned_has_its_reason_in_the_store(planned: Submission) -> None:
    first, *_, last = planned.steps.values()
    with pytest.raises(LarkError, match=f"{last.name}: its inputs are not finished"):
        run_step(planned.folder, last.name)
    states = {s.step.name: s for s in situations(planned)}
    assert states[last.name].state == "failed" and "its inputs are not finished" in states[last.name].note
    assert states[first.name].state == "waiting"


def test_a_step_that_another_run_makes_is_not_marked_as_failed(planned: Submission) -> None:
    first = next(iter(planned.steps.values()))
    with locked(lock_file(planned.outputs, Path(first.artifacts[0])), "step"):
        planned.fail(first, "lost")
    assert not planned.attempts(first)


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": [1, 2]},
        {"title": None},
        {"steps": [{}]},
        {"steps": {}},
        {"trials": [1]},
        None,
    ],
)
def test_a_damaged_graph_is_reported_and_does_not_hide_other_sweeps(
    planned: Submission, change: dict[str, object] | None, caplog: pytest.LogCaptureFixture
) -> None:
    other = planned.folder.with_name("table1-demo-000000")
    shutil.copytree(planned.folder, other)
    values = json.loads((other / GRAPH).read_text())
    (other / GRAPH).write_text("{}" if change is None else json.dumps(values | change))
    status = ["status", "table1", f"outputs={planned.outputs}"]
    damaged = (
        f"The graph in {other} is damaged or of another version. End what is carrying it out, remove this"
        " folder, and submit the sweep again; finished steps are kept."
    )
    with caplog.at_level(logging.INFO):
        assert main(status) == damaged
    assert f"table1 ({planned.folder.name})" in caplog.text
    shutil.rmtree(planned.folder)
    assert main(status) == main(["status", f"outputs={planned.outputs}"]) == damaged
    assert "No sweep of kappa has been submitted" in str(
        main(["status", "kappa", f"outputs={planned.outputs}"])
    )


def test_a_sweep_on_slurm_has_a_status_where_slurm_does_not_answer(
    queued: Submission, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(slurm / "nothing"))
    status = describe(queued)
    assert "SLURM does not answer" in status and "assumed to be waiting" in status
    assert not re.search(r"^failed:", status, re.MULTILINE)
    with pytest.raises(LarkError, match=rf"SLURM does not answer.*remove {queued.folder}"):
        main(["submit", *SETTINGS, *RAY, f"outputs={queued.outputs}"])


@pytest.mark.parametrize("grows", [True, False])
def test_steps_that_no_node_can_take_are_reported(grows: bool, caplog: pytest.LogCaptureFixture) -> None:
    large = SweepStep("a", "score", ("a",), (), 0, (), cpus=8)
    steps = [large, SweepStep("b", "select", ("b",), (), 0, ())]
    sentence = "1 step of the sweep, such as score: no node has 8 CPUs and 0 GPUs. Lower hardware.threads"
    if not grows:
        with pytest.raises(LarkError, match=sentence):
            check_room(steps, [Node(2, 0)], grows)
    else:
        check_room(steps, [Node(2, 0)], grows)
        assert re.search(sentence, caplog.text)
    check_room(steps, [Node(2, 0), Node(8, 0)], grows)


def test_jobs_ask_for_the_gpus_of_their_step(tmp_path: Path) -> None:
    sweep = compose_sweep("table1", ["scale=paper", "student=qwen7b", "method=lark", "budget=1",
                                     "hardware=slurm",
                                     "hydra.launcher.account=me", f"outputs={tmp_path}"])  # fmt: skip
    steps = {step.title: step for step in plan_steps(sweep, Machine("cuda", 8, 1, 4, elsewhere=True))}
    train, select = (parameters(sweep.launcher, steps[title], ["7"]) for title in ("train", "select"))
    assert (train["gpus_per_node"], train["cpus_per_task"], train["timeout_min"]) == (8, 32, 1440)
    assert "gpus_per_node" not in select and select["cpus_per_task"] == 4
    assert select["slurm_dependency"] == "afterok:7" and select["slurm_account"] == "me"


def test_what_cannot_be_submitted_is_a_sentence(tmp_path: Path) -> None:
    for typed, why in [
        ("hardware=slurm", "there is no sbatch here"),
        ("hardware=cpu", "On one machine, use `python -m experiments run table1`"),
        ("force=[score]", "force= cannot be submitted"),
        ("dry_run=true", "dry_run=true cannot be submitted"),
    ]:
        with pytest.raises(LarkError, match=re.escape(why)):
            main(["submit", *ARGUMENTS, typed, f"outputs={tmp_path}"])
    assert "No sweep of table1 has been submitted" in str(main(["status", "table1", f"outputs={tmp_path}"]))
    assert "expected `status" in str(main(["status", "table1", "everything", f"outputs={tmp_path}"]))
    assert not list(tmp_path.glob("runs/sweeps/*"))
