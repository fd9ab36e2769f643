"""Start workers: a plain process, or torchrun on one or several nodes. One code path for a laptop and a cluster.

A worker reads its job from a file and writes its result to the artifact's folder. Its output is shown and saved in
`log.txt`. If it fails, the user sees the worker's own error, not the launcher's.
"""

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Protocol

from lark.config import from_dict
from lark.errors import LarkError, WorkerMemoryError
from lark.reading.untrusted import readable_object
from lark.runtime.devices import for_allocator, for_workers
from lark.runtime.disk import no_space, removed
from lark.runtime.heartbeat import Watch
from lark.runtime.machine import Machine
from lark.runtime.nodes import Leader, Line, join
from lark.runtime.operation import Job
from lark.runtime.store import write_text
from lark.secrets import Redactor

ROOT = Path(__file__).parents[2]
JOB, RESULT, ERROR, LOG = "job.json", ".result.json", ".error.json", "log.txt"
GRACE_SECONDS = 15
DISK_FULL, NOT_WRITTEN = 28, 30
"""Exit codes of a worker that could not write its error because the disk is full, or for another reason."""


class Process(Protocol):
    """A started worker: a `subprocess.Popen`, or one with the same interface. `pid` is also the id of its process group."""

    pid: int
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Start = Callable[[list[str], dict[str, str]], Process]
"""Starts a command with an environment."""


def start_process(arguments: list[str], env: dict[str, str]) -> Process:
    return subprocess.Popen(
        arguments, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
    )  # fmt: skip


def run_worker(
    job: Job, target: str, processes: int | None = None, leader: Leader | None = None, start: Start = start_process
) -> dict[str, Any]:
    """Run a job in workers, which call the function `target` ("package.module:function"); return its result.

    `processes`: per node; None: as many as the machine has. Runs on this node only, or with a `leader` on all of its nodes.
    """
    folder, machine = job.folder, job.machine
    for stale in (RESULT, ERROR):
        (folder / stale).unlink(missing_ok=True)
    write_job(job, target)
    if leader is None:
        watch = Watch(folder, job.config.hardware.silence)
        env = environment(machine, processes, job.gpus, job.allocator)
        code = _run(command(folder, machine, processes), folder, env, watch=watch, start=start)
    else:
        code = _lead(folder, machine, processes, leader, job.gpus, job.config.hardware.silence)
    if code != 0 or not (folder / RESULT).exists():
        raise _failure(job.operation, folder, code)
    result = dict(json.loads((folder / RESULT).read_text(encoding="utf-8")))
    (folder / RESULT).unlink()
    return result


def write_job(job: Job, target: str) -> Path:
    """Write the job for workers, as `job.json` in its folder; return the file's path."""
    path = job.folder / JOB
    write_text(path, json.dumps({**asdict(job), "run": target}, indent=2, default=str))
    return path


def read_job(path: Path) -> tuple[Job, str]:
    """Read a job, with the rank of this process, and the function that runs it."""
    values = json.loads(path.read_text(encoding="utf-8"))
    job = Job(
        operation=values["operation"],
        folder=Path(values["folder"]),
        outputs={label: Path(folder) for label, folder in values["outputs"].items()},
        inputs={name: Path(folder) for name, folder in values["inputs"].items()},
        weights=values["weights"],
        config=from_dict(values["config"]),
        machine=Machine(**values["machine"]),
        gpus=values["gpus"],
        allocator=values["allocator"],
        rank=int(os.environ.get("RANK", "0")),
        world=int(os.environ.get("WORLD_SIZE", "1")),
    )
    return job, values["run"]


def command(folder: Path, machine: Machine, processes: int | None = None, endpoint: str | None = None) -> list[str]:
    """The command line of a worker, as `dry_run=true` shows it. `endpoint`: host:port where the nodes' processes meet."""
    worker = ["-m", "lark.runtime.worker", str(folder / JOB)]
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={processes or machine.processes}"]
    if endpoint is not None:
        nodes = [f"--nnodes={machine.nodes}", f"--node_rank={machine.node}", "--rdzv_backend=static"]
        return [sys.executable, *torchrun, *nodes, f"--rdzv_endpoint={endpoint}", *worker]
    if (processes or machine.processes) == 1:
        return [sys.executable, *worker]
    return [sys.executable, *torchrun, "--standalone", *worker]


def follow(machine: Machine) -> None:
    """Run the workers that node 0 starts until it is done. The main loop of all nodes except node 0."""
    line = join(machine)
    while message := line.receive():
        if "run" in message:
            folder = Path(message["run"])
            arguments = command(folder, machine, message["processes"], message["endpoint"])
            env = environment(machine, message["processes"], message["gpus"])
            code = _run(arguments, folder, env, f"log-node{machine.node}.txt", [line])
            line.send({"code": code})
        elif message.get("end") == "finished":
            return
        elif "end" in message:
            raise LarkError("The run has failed; see the error on node 0.")
    raise LarkError("Node 0 has disconnected. Start the same command on every node again to resume.")


def _lead(folder: Path, machine: Machine, processes: int | None, leader: Leader, gpus: int = 1, silence: float = 0.0) -> int:
    """Run a worker on all nodes; return its exit code. The first failure on any node ends it on all nodes."""
    arguments = command(folder, machine, processes, leader.start(folder, processes, gpus))
    lines = {line: node for node, line in leader.followers.items()}
    reports: dict[int, int] = {}

    def report(line: Line) -> bool:
        message = line.receive()
        if message is None:
            raise LarkError(f"Node {lines[line]} has disconnected. Start the same command on every node again to resume.")
        code = message.get("code")
        reports[lines[line]] = code if isinstance(code, int) else 1
        return reports[lines[line]] == 0

    code = 1
    watch = Watch(folder, silence)
    try:
        code = _run(arguments, folder, environment(machine, processes, gpus), LOG, list(lines), report, watch)
    finally:
        if code != 0:
            leader.stop()
    for line, node in lines.items():
        if node not in reports:
            report(line)
    return code or next((value for value in reports.values() if value), 0)


SPINS = "3000"
"""How often a waiting OpenMP thread polls before it yields its core. GNU OpenMP's default is 300,000: if another process wants
the core, each of thousands of small matrix products waits that long. The lower value reduced 57 s to 17 s. On an idle machine
it makes the demo's training 9% slower."""


ROPE = "nvidia-triton"
"""Liger's implementation of RoPE. On H100 Liger would choose another one (CuTe), so that A100 and H100 would run other code."""


def environment(machine: Machine, processes: int | None = None, gpus: int = 1, allocator: str = "") -> dict[str, str]:
    """Environment variables of workers, with `processes` of them on this node (None: as many as the machine has)."""
    # Only the run itself uses W&B, which sets variables of its own when it starts.
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env["PYTHONUNBUFFERED"] = "1"
    env["OMP_NUM_THREADS"] = str(machine.threads)
    env["TOKENIZERS_PARALLELISM"] = "true"
    env["RAYON_NUM_THREADS"] = str(max(1, machine.threads * machine.processes // (processes or machine.processes)))
    if not sys.stderr.isatty():
        env.setdefault("TQDM_MININTERVAL", "10")  # seconds; in a log file, every update of a bar is a new line
    if machine.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
        env["DS_ACCELERATOR"] = "cpu"
        if "OMP_WAIT_POLICY" not in env:
            env.setdefault("GOMP_SPINCOUNT", SPINS)
    else:
        env |= for_workers(processes or machine.processes, gpus) | for_allocator(allocator, env)
        env.setdefault("LIGER_KERNEL_IMPL_ROPE", ROPE)
    return env


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, so that `kill -9` on a run leaves nothing behind."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _run(
    arguments: list[str],
    folder: Path,
    env: dict[str, str],
    log_name: str = LOG,
    lines: Sequence[Line] = (),
    heard: Callable[[Line], bool] = lambda line: False,
    watch: Watch | None = None,
    start: Start = start_process,
) -> int:
    """Run a command, copy its output to the terminal and the log, and end its children when interrupted; return its exit code.

    `lines` are connections to other nodes: the worker is ended if a message arrives on one and `heard` returns False for it.
    `watch`: also if one of its processes shows no sign of life.
    """
    process, output = start(arguments, env), Redactor()
    assert process.stdout is not None
    try:
        with (folder / log_name).open("ab") as log_file, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            for line in lines:
                selector.register(line, selectors.EVENT_READ, data=line)
            while True:
                ready = [key.data for key, _ in selector.select(None if watch is None else watch.interval)]
                if watch is not None:
                    watch.check()
                for line in filter(None, ready):
                    selector.unregister(line)
                    if not heard(line):
                        return 1
                if None not in ready:
                    continue
                chunk = os.read(process.stdout.fileno(), 65536)
                shown = output.feed(chunk)
                log_file.write(shown)
                log_file.flush()
                # After a worker has written its error, all further output is torchrun's report of the failure.
                if not (folder / ERROR).exists():
                    sys.stderr.buffer.write(shown)
                    sys.stderr.buffer.flush()
                if not chunk:
                    break
        return process.wait()
    finally:
        _end(process)
        if watch is not None:
            watch.close()


def _end(process: Process) -> None:
    """End the worker and everything it started: first with SIGTERM, then with SIGKILL."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sig)
        except ProcessLookupError:
            return
        if process.poll() is None:
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                continue


def _failure(operation: str, folder: Path, code: int) -> LarkError:
    """The error of a failed worker: its own, if it left one."""
    log = f"Its log: {folder / LOG}"
    if (error := readable_object(folder / ERROR)) is not None:
        if error["memory"] is not None:
            requested = f" (it tried to allocate another {error['memory']})" if error["memory"] else ""
            return WorkerMemoryError(f"The {operation} worker ran out of memory{requested}. {log}")
        return LarkError(error["message"] if error["expected"] else f"The {operation} worker failed: {error['message']}\n{log}")
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return WorkerMemoryError(f"The {operation} worker was killed, most likely because it ran out of memory. {log}")
    said = {
        DISK_FULL: no_space(folder),
        NOT_WRITTEN: f"{folder}: the {operation} worker cannot write here. Check the folder's permissions and the disk.",
    }
    if not folder.is_dir():
        return LarkError(removed(folder))
    return LarkError(said.get(code, f"The {operation} worker exited with code {code} without a message. {log}"))
