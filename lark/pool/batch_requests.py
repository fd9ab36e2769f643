"""The requests of an OpenAI batch, which its output answers. The output itself has no questions."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lark.config import Source
from lark.errors import LarkError
from lark.pool.files import table_files
from lark.reading.fields import Fields
from lark.reading.rows import Row, rows


def request_files(source: Source) -> list[Path]:
    """The files of `pool.requests`."""
    if not source.requests:
        return []
    try:
        return table_files(replace(source, path=source.requests, exclude=[])).files
    except LarkError as error:
        raise LarkError(str(error).replace("pool.path=", "pool.requests=", 1)) from error


def requests(source: Source) -> dict[str, Mapping[str, Any]]:
    """The body of each request, by its custom_id."""
    bodies: dict[str, Mapping[str, Any]] = {}
    for file in request_files(source):
        for row in rows(file):
            fields = Fields(row.values, row.where, "Give the file that was sent to the batch API.")
            bodies[fields.identity("custom_id")] = fields.get("body")
    return bodies


def with_requests(stored: Iterable[Row], source: Source) -> Iterator[Row]:
    """The rows, each with the request that it answers."""
    bodies = requests(source)
    for row in stored:
        request = bodies.get(str(row.values.get("custom_id")))
        yield row if request is None else replace(row, values={**row.values, "request": request})
