"""Pools on the Hugging Face hub: streamed with `datasets`, or downloaded once and kept in the hub's cache."""

import logging
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lark.config import Source
from lark.errors import LarkError, first_line
from lark.reading.rows import Row


def is_remote(source: Source) -> bool:
    """Whether the source is a dataset id (owner/name) rather than a path on this machine."""
    path = os.path.expanduser(source.path or "")  # noqa: PTH111  # unlike Path, os.path accepts any text
    if source.format == "hub":
        return not os.path.isdir(path)  # noqa: PTH112
    is_dataset_id = re.fullmatch(r"\w[\w.-]*/[\w.-]+", path) is not None
    return source.format == "rsr" and is_dataset_id and not os.path.exists(path)  # noqa: PTH110


def snapshot(source: Source) -> Path:
    """The folder of a dataset's JSON files. They are downloaded if they are not in the hub's cache;
    offline, the cache is used.
    """
    return _snapshot(str(source.path), source.revision)


# Once per process: a pool is read several times if its questions are sampled.
@cache
def _snapshot(path: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415  # only this source needs it

    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request
    try:
        return Path(
            snapshot_download(
                path, repo_type="dataset", revision=revision, allow_patterns=["*.json", "*.json.gz"]
            )
        )
    except Exception as error:  # network, authorisation, disk, a missing or interrupted download
        option = f" --revision {revision}" if revision else ""
        raise LarkError(
            f"pool.path={path}: there is no such folder here, and the dataset cannot be downloaded"
            f" ({type(error).__name__}: {first_line(error)}). On a machine with a network, run `hf download"
            f" {path} --repo-type dataset{option} --local-dir rsr`, copy the folder to this machine, and set"
            " pool.path=<folder> (or put it at data/rsr)."
        ) from error


def hub_rows(source: Source) -> Iterator[Row]:
    """The rows of a dataset, one at a time."""
    number = 0
    try:
        for number, values in enumerate(_dataset(source), start=1):
            yield Row(values, f"{source.path}, row {number}")
    except LarkError:
        raise
    except Exception as error:  # what a network, a disk or a damaged file make `datasets` raise
        raise _unreadable(source, number, error) from error


def _unreadable(source: Source, number: int, error: Exception) -> LarkError:
    """The refusal of a dataset after `number` rows. After the first, the network is the likely cause."""
    place = f" after row {number}" if number else ""
    remedy = "Run the command again" if number else "Check pool.path, pool.subset and pool.split"
    return LarkError(
        f"pool.path={source.path}: the dataset cannot be read{place} ({type(error).__name__}:"
        f" {first_line(error)}). {remedy}, or download the dataset and give its folder as pool.path."
    )


def _dataset(source: Source) -> Any:
    import datasets  # noqa: PLC0415  # only this format needs it

    folder = Path(str(source.path)).expanduser()
    if not ((folder / "dataset_info.json").exists() or (folder / "dataset_dict.json").exists()):
        return datasets.load_dataset(
            source.path, source.subset, split=source.split, revision=source.revision, streaming=True
        )
    data = datasets.load_from_disk(str(folder))
    if not isinstance(data, datasets.DatasetDict):
        return data
    if source.split not in data:
        raise LarkError(
            f"pool.split={source.split}: {source.path} has the splits {', '.join(data)}; choose one of them."
        )
    return data[source.split]
