"""The public datasets of benchmarks: one file of a hub dataset, downloaded once into the hub's cache."""

import logging
from dataclasses import replace
from typing import Any

from lark.config import Task
from lark.config.checks import user_path
from lark.config.evaluation import PublicFile
from lark.evaluation import checks


def is_public(name: str, task: Task) -> bool:
    """True if a benchmark is read from its public dataset: it has one, and its own file is not here."""
    if task.public is None or task.path != task.public.instead_of:
        return False
    return not user_path(f"benchmark.tasks.{name}.path", task.path).exists()


def origin(name: str, task: Task) -> dict[str, Any]:
    """The public dataset that a benchmark was read from completely, for its manifest: results are published
    under its id. Empty if the benchmark is a file or a part of a dataset.
    """
    if not is_public(name, task) or task.limit is not None:
        return {}
    source = _source(task)
    return {"dataset": {"id": source.dataset, "revision": source.revision, "task_id": source.task_id}}


def cached(task: Task) -> Task | None:
    """A public benchmark with its file in the hub's cache as its path. None if it has not been downloaded."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  # only these benchmarks need it

    source = _source(task)
    path = try_to_load_from_cache(source.dataset, source.file, repo_type="dataset", revision=source.revision)
    return _read_from(task, path) if isinstance(path, str) else None


def downloaded(name: str, task: Task) -> Task:
    """A public benchmark with its file in the hub's cache as its path, downloaded if necessary."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415
    from huggingface_hub.errors import GatedRepoError  # noqa: PLC0415

    cached_task = cached(task)
    if cached_task is not None:
        return cached_task
    source = _source(task)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request
    try:
        path = hf_hub_download(source.dataset, source.file, repo_type="dataset", revision=source.revision)
    except Exception as error:  # network, authorisation, disk, an interrupted download
        is_gated = isinstance(error, GatedRepoError)
        raise checks.not_downloaded(name, source, error, is_gated) from error
    return _read_from(task, path)


def _source(task: Task) -> PublicFile:
    assert task.public is not None
    return task.public


def _read_from(task: Task, path: str) -> Task:
    question = _source(task).question_field or task.question_field
    return replace(task, path=path, question_field=question, public=None)
