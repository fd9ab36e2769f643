"""The command line and the tables of the benchmarks.

`make bench` runs all modules of this folder but those whose names begin with an underscore. This one does not
import torch: it would count as memory of a process that reads a pool (pool.py).
"""

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from lark.printing import text_table

FOLDER = Path("outputs/bench")


def command_line(description: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser with --quick, which `make bench ARGS=--quick` gives to every script. `quick`: its effect."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "NOT reached"


def write_csv(results: Sequence[Any], name: str) -> None:
    """Write results, dataclasses of one type, to a file of outputs/bench."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / name).open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(field.name for field in fields(results[0]))
        writer.writerows(map(astuple, results))


def table(results: Iterable[Any], columns: Mapping[str, str], right: int) -> str:
    """A table for the terminal. `columns`: formats of a result `r` by header; `right`: the first column that
    is right-aligned.
    """
    rows = []
    for result in results:
        rows.append([form.format(r=result) for form in columns.values()])
    return text_table(list(columns), rows, right)
