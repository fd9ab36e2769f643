"""The public datasets of benchmarks: one file of a hub dataset, downloaded once and kept in the hub's
cache.
"""

import logging
from dataclasses import replace

from lark.config import Task
from lark.config.checks import user_path
from lark.config.evaluation import PublicFile
from lark.errors import LarkError, first_line


def is_public(name: str, task: Task) -> bool:
    """Whether a benchmark is read from its public dataset: it has one, and its own file is not here."""
    if task.public is None or task.path != task.public.instead_of:
        return False
    return not user_path(f"benchmark.tasks.{name}.path", task.path).exists()


def cached(task: Task) -> Task | None:
    """A public benchmark with its file in the hub's cache as its path. None if it has not been downloaded."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  # only these benchmarks need it

    source = _source(task)
    path = try_to_load_from_cache(source.dataset, source.file, repo_type="dataset", revision=source.revision)
    return _read_from(task, path) if isinstance(path, str) else None


def downloaded(name: str, task: Task) -> Task:
    """The same, after downloading the file if it is not in the cache."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415
    from huggingface_hub.errors import GatedRepoError  # noqa: PLC0415

    here = cached(task)
    if here is not None:
        return here
    source = _source(task)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request
    try:
        path = hf_hub_download(source.dataset, source.file, repo_type="dataset", revision=source.revision)
    except GatedRepoError as error:
        raise _gated(name, source) from error
    except Exception as error:  # network, authorisation, disk, an interrupted download
        raise _unreachable(name, source, error) from error
    return _read_from(task, path)


def _source(task: Task) -> PublicFile:
    assert task.public is not None
    return task.public


def _read_from(task: Task, path: str) -> Task:
    question = _source(task).question_field or task.question_field
    return replace(task, path=path, question_field=question, public=None)


def _gated(name: str, source: PublicFile) -> LarkError:
    return LarkError(
        f"benchmark {name}: its dataset {source.dataset} is gated. Accept its conditions on its page on the"
        " Hugging Face hub, log in with `hf auth login` (or set HF_TOKEN), and run the command again. If you"
        f" have the file, put it at {source.instead_of}. benchmark.skip=[{name}] continues without it."
    )


def _unreachable(name: str, source: PublicFile, error: Exception) -> LarkError:
    revision = f" --revision {source.revision}" if source.revision else ""
    gated = (
        " The dataset is gated: accept its conditions on its page and log in with `hf auth login` first."
        if source.gated
        else ""
    )
    return LarkError(
        f"benchmark {name}: there is no file {source.instead_of}, and its public dataset {source.dataset}"
        f" cannot be downloaded ({type(error).__name__}: {first_line(error)}). On a machine with a network,"
        f" the same command with stages=[fetch] downloads all inputs, and `hf download {source.dataset}"
        f" {source.file} --repo-type dataset{revision}` only this one; copy the hub's cache (HF_HOME) to this"
        f" machine.{gated} benchmark.skip=[{name}] continues without it."
    )
