"""The inputs of a run, downloaded beforehand (`stages=[fetch]`): the student, the judge, the pool and the
benchmarks.

They go to the hub's cache (HF_HOME), which can be copied to a machine without a network. No GPU is needed.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lark.config import STAGES, Config, Source, Student, Task
from lark.errors import LarkError, first_line
from lark.evaluation import benchmarks, public
from lark.models.shapes import DEMO
from lark.models.students import PACKAGED, location
from lark.pipeline.plan import make_plan, wanted
from lark.pool import hub
from lark.printing import text_table
from lark.store.store import Checksums

log = logging.getLogger(__name__)

WEIGHTS = ["*.safetensors"]
OLDER_WEIGHTS = ["*.bin"]
"""For a model that has no safetensors."""
OTHER_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.spm"]
"""Configuration, tokenizer and chat template."""


@dataclass(frozen=True)
class Input:
    """One input of a run."""

    name: str
    source: str
    download: Callable[[], object] | None
    """None: nothing needs to be downloaded."""


def fetch(config: Config) -> None:
    """Download everything that a run reads. With `dry_run=true`, only list it."""
    rows = []
    for item in inputs(config):
        if item.download is None:
            state = "on this machine"
        elif config.dry_run:
            state = "to be fetched"
        else:
            log.info("fetching %s (%s) …", item.name, item.source)
            item.download()
            state = "fetched"
        rows.append([item.name, item.source, state])
    log.info("%s", text_table(["input", "from", "state"], rows, right=3))


def inputs(config: Config) -> Iterator[Input]:
    """All inputs of a run, whatever its stages."""
    plan = wanted(make_plan(config, Checksums(config.outputs_path), elsewhere=True), STAGES)
    yield _model("student", config.student)
    if any(step.operation.reads("method.judge") for step in plan):
        yield _model("judge", config.method.judge.model)
    sources = config.pool.mix if config.pool.format == "mix" else {"": config.pool}
    for name, source in sources.items():
        yield _pool(f"pool {name}".strip(), source)
    for name, task in config.benchmark.tasks.items():
        yield _benchmark(name, task)


def _model(name: str, model: Student) -> Input:
    folder = Path(location(model))
    if model.path in PACKAGED or folder.is_dir():
        return Input(name, "lark/demo" if folder == DEMO else model.path, None)
    return Input(name, f"{model.path}@{model.revision or 'main'}", lambda: _download_model(model))


def _pool(name: str, source: Source) -> Input:
    if not hub.is_remote(source):
        return Input(name, source.path or "lark/demo", None)
    if source.format != "rsr":
        return Input(name, str(source.path), lambda: _refuse_streamed(source))
    return Input(name, f"{source.path}@{source.revision or 'main'}", lambda: _download_pool(source))


def _benchmark(name: str, task: Task) -> Input:
    """A benchmark is also read, so that errors in it are found here."""
    if public.is_public(name, task):
        assert task.public is not None
        origin = f"{task.public.dataset}@{task.public.revision or 'main'}"
        return Input(f"benchmark {name}", origin, lambda: benchmarks.load(name, task))
    is_here = benchmarks.load_if_here(name, task) is not None
    download = None if is_here else lambda: benchmarks.load(name, task)
    return Input(f"benchmark {name}", task.path or "", download)


def _download_model(model: Student) -> None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415  # only this stage needs it

    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request
    try:
        _require_hub(model.path, model.revision, "model")
        folder = snapshot_download(
            model.path, revision=model.revision, allow_patterns=[*WEIGHTS, *OTHER_FILES]
        )
        if not list(Path(folder).glob(WEIGHTS[0])):
            snapshot_download(model.path, revision=model.revision, allow_patterns=OLDER_WEIGHTS)
    except Exception as error:  # network, authorisation, disk, an interrupted download
        raise LarkError(
            f"{model.setting}.path={model.path}: the model cannot be downloaded ({type(error).__name__}:"
            f" {first_line(error)}). If it is gated, accept its conditions on its page on the Hugging Face"
            " hub and log in with `hf auth login`. Otherwise check the name and the network, and run the"
            " command again; it resumes."
        ) from error


def _download_pool(source: Source) -> None:
    assert source.path is not None
    try:
        _require_hub(source.path, source.revision, "dataset")
    except Exception as error:  # network, authorisation
        raise LarkError(
            f"pool.path={source.path}: the dataset cannot be downloaded ({type(error).__name__}:"
            f" {first_line(error)}). Check the name and the network, and run the command again; it resumes."
        ) from error
    hub.snapshot(source)


def _require_hub(path: str, revision: str | None, kind: str) -> None:
    """Ask the hub for a repository. Without an answer, `snapshot_download` would be content with a part of
    it in the cache.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415

    HfApi().repo_info(path, revision=revision or "main", repo_type=kind)


def _refuse_streamed(source: Source) -> None:
    raise LarkError(
        f"pool.path={source.path}: this dataset is streamed while it is read, so it cannot be fetched"
        f" beforehand. Run `hf download {source.path} --repo-type dataset --local-dir <folder>` and set"
        " pool.path=<folder>."
    )
