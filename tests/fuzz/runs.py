"""Damaged outputs of finished and of interrupted runs, and runs that are killed: the same command ends with
the same files.
"""

import errno
import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lark.errors import DamagedError
from lark.pipeline import pipeline as pipelines
from lark.store import locks
from lark.store.integrity import verify
from lark.store.manifest import MANIFEST
from lark.store.store import CARD
from tests.conftest import work_here
from tests.fuzz.case import DIFFERENT, Case, Result, judged
from tests.fuzz.kills import SETTINGS, data
from tests.fuzz.mutations import change_file, replace
from tests.hostile import Ended, forked, program

SECONDS = 240.0
UNCHECKED = (CARD, "log.txt", "job.json", "lark.log")
"""Files that users may edit, and logs."""
TIME = "seconds.txt"
"""How long the finished run took."""
STOPS = {
    "scoring": ("scores/*/shard-*.parquet", 3),
    "training": ("checkpoint/*/checkpoints/checkpoint-*/complete", 2),
    "generating": ("generations/*lark*/shard-*.jsonl", 1),
}
"""Where runs are interrupted: when there are this many such files."""


def run(
    outputs: Path,
    seconds: float = SECONDS,
    largest: int = resource.RLIM_INFINITY,
    prepare: Callable[[], object] = lambda: None,
) -> Ended:
    """A whole run in one process: its workers are calls of functions. `largest`: bytes that a file may
    have.
    """

    def here() -> None:
        prepare()
        pipelines.run_worker = work_here  # type: ignore[assignment]
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    return forked(
        lambda: program((f"outputs={outputs}", *SETTINGS, "hardware.warm=false"), prepare=here), seconds
    )


def interrupted(outputs: Path, when: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Start such a run and kill it as soon as `when` is true. False if it ended before."""
    child = os.fork()
    if child == 0:
        os.setsid()
        ended = run_silently(outputs)
        os._exit(ended)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        if when():
            break
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def run_silently(outputs: Path) -> int:
    """Be such a run, without output."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    pipelines.run_worker = work_here  # type: ignore[assignment]
    try:
        program((f"outputs={outputs}", *SETTINGS, "hardware.warm=false"))
    except SystemExit as end:
        return 0 if end.code in (0, None) else 1
    return 0


def difference(outputs: Path, expected: dict[str, bytes]) -> str | None:
    """A file that is not the expected one, and whose artifact does not count as damaged either."""
    found = data(outputs)
    for name, content in expected.items():
        if found.get(name) == content:
            continue
        folder = outputs / Path(*Path(name).parts[:2])
        if (folder / MANIFEST).is_file() and _is_known_damage(folder):
            continue  # nothing in this run has read it
        return f"{name} is {'missing' if name not in found else 'different'}"
    return None


def _is_known_damage(folder: Path) -> bool:
    try:
        verify(folder)
    except DamagedError:
        return True
    return json.loads((folder / MANIFEST).read_text()).get("status") == "damaged"


def files(outputs: Path) -> list[Path]:
    """The files of a run that are checked."""
    found = [path for path in outputs.rglob("*") if path.is_file() and path.name not in UNCHECKED]
    return sorted(path for path in found if path.relative_to(outputs).parts[0] != "runs")


def unseal(outputs: Path, rng: random.Random) -> str:
    """Make some finished artifacts unfinished, as if the run had been killed before it wrote their
    manifests.
    """
    chosen = rng.sample(sorted(outputs.glob(f"*/*/{MANIFEST}")), rng.choice([1, 1, 2, 3]))
    for path in chosen:
        values = json.loads(path.read_text())
        values.pop("files", None)
        values.pop("counts", None)
        path.write_text(json.dumps({**values, "status": rng.choice(["started", "failed"])}))
    return "unsealed " + ", ".join(path.parent.parent.name for path in chosen)


def disturb(outputs: Path, rng: random.Random) -> str:
    """Damage some files; sometimes a whole folder."""
    said = []
    if rng.random() < 0.4:
        said.append(unseal(outputs, rng))
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        paths = files(outputs)
        if rng.random() < 0.12:
            folder = rng.choice(sorted({path.parent for path in paths} - {outputs}))
            how = rng.choice(["missing", "file", "loop", "dangling", "folder"])
            replace(folder, how)
            said.append(f"{folder.relative_to(outputs)}: {how}")
        elif paths:
            path = rng.choice(paths)
            others = [other for other in paths if other != path]
            alike = [other for other in others if other.suffix == path.suffix]
            said.append(change_file(path, alike or others, rng))
    return "; ".join(said)


@dataclass
class Damage:
    """Damaged outputs of a finished run, or of one that was interrupted in a step."""

    name: str
    share: float
    stop: str | None = None
    states: list[Path] = field(default_factory=list)
    expected: dict[str, bytes] = field(default_factory=dict)

    def prepare(self, shared: Path) -> None:
        whole = undisturbed(shared)
        self.expected = data(whole)
        self.states = [whole] if self.stop is None else [stopped(shared, name) for name in STOPS]

    def run(self, case: Case, folder: Path) -> Result:
        rng = case.rng
        state = rng.choice(self.states)
        outputs = Path(shutil.copytree(state, folder / "outputs", symlinks=True))
        what = f"{state.name}: {disturb(outputs, rng)}"
        return judged(run(outputs), what, lambda: difference(outputs, self.expected))


class Kills:
    """Runs that are killed at random moments, in one process (`tests.fuzz.kills` also kills single
    workers).
    """

    name = "kills"
    share = 1.0

    def prepare(self, shared: Path) -> None:
        self.expected = data(undisturbed(shared))
        self.seconds = float((shared / TIME).read_text())

    def run(self, case: Case, folder: Path) -> Result:
        rng, outputs, said = case.rng, folder / "outputs", []
        for _ in range(rng.choice([1, 2, 3])):
            end = time.monotonic() + rng.uniform(0.5, self.seconds)
            if not interrupted(outputs, lambda end=end: time.monotonic() > end):  # type: ignore[misc]
                break
            said.append(
                ", ".join(sorted(path.parent.parent.name for path in outputs.glob(f"*/*/{MANIFEST}"))[-1:])
                or "start"
            )
        return judged(run(outputs), f"killed after {said}", lambda: difference(outputs, self.expected))


def without_locks() -> None:
    """Let `flock` fail as on some network file systems."""

    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    locks.fcntl.flock = fails  # type: ignore[assignment]


class Together:
    """Two runs of the same command at once, with the kernel's locks or without; one may be killed."""

    name = "two runs"
    share = 1.0

    def prepare(self, shared: Path) -> None:
        self.expected = data(undisturbed(shared))
        self.seconds = float((shared / TIME).read_text())

    def run(self, case: Case, folder: Path) -> Result:
        rng, outputs = case.rng, folder / "outputs"
        prepare = rng.choice([without_locks, lambda: None])
        wait, is_killed = rng.choice([0.0, rng.uniform(0, self.seconds)]), rng.random() < 0.4
        locks = "without" if prepare is without_locks else "with"
        what = f"{wait:.1f} s apart, {locks} locks{', one killed' * is_killed}"
        other = os.fork()
        if other == 0:
            os.setsid()
            prepare()
            os._exit(run_silently(outputs))
        time.sleep(wait)
        if is_killed:
            time.sleep(rng.uniform(0, self.seconds))
            os.killpg(other, signal.SIGKILL)
        result = judged(run(outputs, prepare=prepare), what, lambda: difference(outputs, self.expected))
        code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
        if not result.failed and code not in (0, -signal.SIGKILL):
            return Result(DIFFERENT, what, f"the other run ended with {code}")
        return result


class FullDisks:
    """Runs on a disk that is full: no file can be larger than some number of bytes. With enough space, they
    resume.
    """

    name = "full disks"
    share = 1.0

    def prepare(self, shared: Path) -> None:
        self.expected = data(undisturbed(shared))

    def run(self, case: Case, folder: Path) -> Result:
        rng, outputs, said = case.rng, folder / "outputs", []
        for _ in range(rng.choice([1, 1, 2])):
            largest = int(10 ** rng.uniform(1.5, 7.3))
            said.append(f"{largest:,} bytes")
            first = judged(run(outputs, largest=largest), f"a disk with {said}")
            if first.failed:
                return first
        return judged(run(outputs), f"resumed after {said}", lambda: difference(outputs, self.expected))


def undisturbed(shared: Path) -> Path:
    """A finished run, made once."""
    outputs = shared / "finished"
    if not outputs.exists():
        started = time.monotonic()
        ended = run(outputs)
        assert ended.code == 0, ended.output
        (shared / TIME).write_text(str(time.monotonic() - started))
    return outputs


def stopped(shared: Path, name: str) -> Path:
    """A run that was killed in a step, made once."""
    outputs, (pattern, count) = shared / name, STOPS[name]
    if not outputs.exists():
        assert interrupted(outputs, lambda: len(list(outputs.glob(pattern))) >= count), (
            f"the run ended before {name}"
        )
    return outputs


KINDS = (
    Damage("finished run", 3.0),
    Damage("stopped run", 3.0, stop="all"),
    Kills(),
    Together(),
    FullDisks(),
)
