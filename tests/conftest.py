"""Shared by all tests: the location of the repository, real data if it is present next to it, and ways to
run the program.
"""

import fcntl
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import settings

from lark import config
from lark.config import Config
from lark.models.shapes import DEMO
from lark.models.students import packaged_file
from lark.pipeline.machine_check import check_machine, check_steps
from lark.pipeline.plan import make_plan, wanted
from lark.store.store import Checksums
from lark.work.machine import Machine
from lark.work.operation import Job

ROOT = Path(__file__).parent.parent

# No test uses a network; those with a hub of their own (tests/hub.py) say so.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Ray starts workers with the lowest priority but four: beside other tests they would hardly run at all.
os.environ.setdefault("RAY_worker_niceness", "0")

# An example may take long while other processes use the cores.
settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")

SMALL = [
    "pool.questions=6", "training.epochs=2", "benchmark=demo_words", "benchmark.tasks.demo_words.limit=6",
    "benchmark.decoding.samples=2", "benchmark.decoding.seeds=[0,1]", "benchmark.decoding.max_new_tokens=24",
    "benchmark.decoding.repetition_penalty=1.0", "tracking=none", "hardware.threads=1",
]  # fmt: skip
"""Settings of a whole run that takes seconds."""


LONGEST = (
    *("test_ray", "test_pipeline", "test_submission", "test_gang", "test_running", "test_streaming"),
    *("test_fuzz", "test_liger", "test_triton_kernel"),
    *("test_rendering", "test_config", "test_compare", "test_worker", "test_public", "test_resume"),
    *("test_gradients", "test_vllm", "test_estimates", "test_paired", "test_sweep", "test_verify"),
    *("test_cheating", "test_browser", "test_statistics", "test_hostile"),
)
"""Files that take longest. They run first, so that all processes finish at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Benchmarks, tokenizers and a real pool, kept outside the repository. Tests that need them are skipped
    without them.
    """
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data next to the repository")
    return path


def composed(*overrides: str) -> Config:
    """The configuration that run.py would get from these arguments."""
    config.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return config.load(compose("config", overrides=list(overrides)))


@pytest.fixture(scope="session")
def gguf_file() -> Path:
    """SmolLM2-135M-Instruct as its package contains it (`make test` installs it)."""
    file = packaged_file(composed("student=smollm2").student)
    assert file is not None
    return file


@pytest.fixture(scope="session")
def smollm2(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real pretrained student as `student=smollm2` makes it: converted once, even if tests run in several
    processes.
    """
    from lark.models.gguf import dequantise

    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "smollm2"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft = folder.with_suffix(".draft")
            dequantise(gguf_file, draft)
            draft.rename(folder)
    return folder


SERVED_KEY = "SERVED_API_KEY"
"""The environment variable with the key of `vllm_endpoint`."""


@pytest.fixture(scope="session")
def vllm_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real `vllm serve` with the demo's student (model `demo`), which wants a key. Started
    once, even if tests run in several processes.
    """
    from lark.demo.vllm_server import serving

    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    address = folder / "vllm_endpoint"
    os.environ[SERVED_KEY] = "the-key-of-the-served-demo"
    with (folder / "vllm.lock").open("w") as lock, (folder / "vllm.users").open("w") as users:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if address.exists():
            fcntl.flock(users, fcntl.LOCK_SH)
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield address.read_text()
            return
        with serving(DEMO, folder / "vllm.log", key=os.environ[SERVED_KEY]) as url:
            address.write_text(url)
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield url
            fcntl.flock(lock, fcntl.LOCK_EX)
            address.unlink()
            fcntl.flock(lock, fcntl.LOCK_UN)
            # Other processes may still use the server.
            fcntl.flock(users, fcntl.LOCK_EX)


def start_program(*arguments: str, outputs: Path, **options: object) -> subprocess.Popen[str]:
    """Start run.py in a separate process, as a user does."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), f"outputs={outputs}", *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "200"},
        **options,  # type: ignore[call-overload]
    )


def run_program(*arguments: str, outputs: Path) -> tuple[int, str]:
    """Run run.py; return its exit code and its output."""
    process = start_program(*arguments, outputs=outputs)
    output, _ = process.communicate()
    return process.returncode, output


def interpreted(file: str) -> str:
    """Run the tests of a file in a process in which Triton interprets kernels; return pytest's summary."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


ALONE = Machine("cpu", 1, 1, 1)


def job_of(config: Config, folder: Path, **parts: Any) -> Job:
    """A job of one process on the CPU with the demo's student, unless `parts` override this."""
    defaults = {"operation": "test", "outputs": {}, "inputs": {}, "weights": str(DEMO), "machine": ALONE}
    return Job(**{**defaults, "folder": folder, "config": config, **parts})


def work_here(job: Job, target: str, *_: object) -> Any:
    """Replacement for `run_worker` that calls the function in this process."""
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)(job)


def checked(*overrides: str) -> Machine:
    """Run all checks that precede a run of this configuration."""
    config = composed(*overrides)
    machine = check_machine(config)
    with tempfile.TemporaryDirectory() as folder:
        steps = wanted(make_plan(config, Checksums(Path(folder)), elsewhere=True), config.stages)
    check_steps(config, machine, steps)
    return machine


@pytest.fixture
def unpatched() -> Iterator[None]:
    """Liger replaces classes in transformers' modules; other tests must not see them."""
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen2 import modeling_qwen2

    before = [(module, dict(vars(module))) for module in (modeling_llama, modeling_qwen2)]
    yield
    for module, names in before:
        vars(module).update(names)
