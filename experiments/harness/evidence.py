"""Results that are kept with the code: runs of one experiment from several days and machines, as one table.

`python -m experiments record <name> scale=<scale>` writes experiments/results/<name>-<scale>/, from what is
finished in this store: base.csv, a CSV file per training seed, and README.md, the table of all files there.

A row is a run. Its columns are named after the benchmarks and have a character per problem, in the order of
the problems' ids: how many of its samples are right, in base 36. Decoding seeds are separated by `|`. So
rows of different stores can be compared problem by problem, and intervals need nothing else.
"""

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.harness import checks
from experiments.harness.report import Table, number
from experiments.harness.results import grades_of
from experiments.harness.sweep import ROOT, Sweep, Trial, method_label
from lark.evaluation.grade import METRICS
from lark.output.tables import Cell
from lark.pool.trajectories import POOL_TABLE
from lark.printing import counted
from lark.selection.paired import Comparison, Floats, compare
from lark.store.store import write_text
from lark.work.operation import Step

RESULTS = ROOT / "experiments" / "results"
BASE = "base"
RUN = ("student", "method", "budget", "seed")
"""Columns that identify a run. The base model has no budget and no training seed."""
SETTINGS = ("samples", "problems", "settings", "made_with")
"""Columns in front of the benchmarks."""
PACKAGES = ("torch", "transformers", "vllm")
REFERENCE = "random"
Row = Mapping[Hashable, str]


def record(sweep: Sweep, folder: Path | None = None) -> list[Path]:
    """Write the files of all finished runs, and the table of all files in the folder. Returns the paths."""
    folder = folder or RESULTS / f"{sweep.title}-{sweep.scale}"
    folder.mkdir(parents=True, exist_ok=True)
    data = collect(sweep)
    paths = []
    for seed, part in data.groupby("seed", sort=False):
        path = folder / (f"seed-{seed!s}.csv" if seed else f"{BASE}.csv")
        # Runs of another store stay.
        earlier = [_read(path)] if path.exists() else []
        rows = pd.concat([part, *earlier]).drop_duplicates(list(RUN)).sort_values(list(RUN)).fillna("")
        write_text(path, rows.to_csv(index=False, lineterminator="\n"))
        paths.append(path)
    table = folder / "README.md"
    write_text(table, summary(f"{sweep.title}, {sweep.scale}", read(folder)))
    return [*paths, table]


def read(folder: Path) -> pd.DataFrame:
    """The rows of all files."""
    files = sorted(folder.glob("*.csv"))
    checks.has_results(folder, files)
    data = pd.concat([_read(file) for file in files]).fillna("")
    checks.have_the_same_problems(folder, sorted(set(data["problems"])))
    return data


def _read(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, dtype=str, keep_default_na=False)


def collect(sweep: Sweep) -> pd.DataFrame:
    """A row for each finished run of a sweep, and for each student's base model."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for trial in sweep.trials:
        for step in trial.plan:
            if step.makes(METRICS) and not sweep.pending(step):
                row = _row(sweep, trial, step)
                rows[tuple(row[key] for key in RUN)] = row
    tasks = dict.fromkeys(task for trial in sweep.trials for task in trial.config.benchmark.tasks)
    return pd.DataFrame(rows.values(), columns=[*RUN, *SETTINGS, *tasks])


def _row(sweep: Sweep, trial: Trial, step: Step) -> dict[str, str]:
    config = trial.config
    is_base = step.model == BASE
    manifest = sweep.store.manifest(step.artifacts[0])
    versions = [f"{name} {manifest.versions[name]}" for name in PACKAGES if name in manifest.versions]
    row = {
        "student": config.student.name,
        "method": BASE if is_base else config.method.key,
        "budget": "" if is_base else str(config.budget.per_question),
        "seed": "" if is_base else str(config.training.seed),
        "samples": str(config.benchmark.decoding.samples),
        "settings": _settings(trial),
        "made_with": ", ".join([config.student.dtype, f"lark {manifest.git or 'unknown'}", *versions]),
    }
    problems = hashlib.sha256()
    for task, artifact in zip(step.labels, step.artifacts, strict=True):
        grades = grades_of(sweep.store.path(artifact), config.benchmark.grader)
        problems.update(json.dumps([task, sorted(grades)]).encode())
        row[task] = "|".join(_right(grades, seed) for seed in config.benchmark.decoding.seeds)
    return {**row, "problems": problems.hexdigest()[:12]}


def _right(grades: dict[str, dict[int, list[bool]]], seed: int) -> str:
    counts = [sum(grades[problem][seed]) for problem in sorted(grades)]
    return "".join(np.base_repr(count, 36).lower() for count in counts)


def _settings(trial: Trial) -> str:
    """A fingerprint of what all runs of a table share: student, pool, recipe and decoding."""
    config = trial.config
    student = {key: value for key, value in asdict(config.student).items() if key != "path"}
    training = {key: value for key, value in asdict(config.training).items() if key != "seed"}
    pool = trial.artifact(POOL_TABLE)
    shared: dict[str, Any] = {
        "student": student,
        "pool": None if pool is None else pool.fingerprint,
        "training": training,
        "decoding": asdict(config.benchmark.decoding),
        "grader": config.benchmark.grader,
    }
    text = json.dumps(shared, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def summary(title: str, data: pd.DataFrame) -> str:
    """The table of each student and budget, with paired differences, as Markdown."""
    parts = [f"# {title}", *_notes(data)]
    for student, runs in data.groupby("student", sort=False):
        base = runs[runs["method"] == BASE]
        trained = runs[runs["method"] != BASE]
        for budget, part in trained.groupby("budget", sort=False):
            compared = _compared(part)
            parts += [f"## {student}, B = {budget}", _verdict(compared)]
            parts.append(_table(pd.concat([base, part]), compared).markdown())
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _notes(data: pd.DataFrame) -> Iterator[str]:
    samples = data["samples"].iloc[0]
    yield (
        f"Acc@{samples} in percent, mean of the training seeds; Avg is the mean of the benchmarks, pass@1 the"
        " same for a single sample. Intervals are paired, over problems and training seeds; a star marks what"
        " is significant for all pairs of a table together."
    )
    kinds = data["settings"].str.cat(data["made_with"], sep=", ").value_counts()
    yield "\n".join(f"- {counted(count, 'run')}: settings {kind}" for kind, count in kinds.items())


def _tasks(data: pd.DataFrame) -> list[str]:
    return [column for column in data.columns if column not in (*RUN, *SETTINGS)]


def shares(row: Row, task: str, single: bool = False) -> Floats:
    """[P] Of each problem of a benchmark, the share of decoding seeds that solve it, or of its samples."""
    counts = np.array([[int(count, 36) for count in by_seed] for by_seed in row[task].split("|")])
    right = counts / int(row["samples"]) if single else counts > 0
    mean: Floats = right.mean(axis=0)
    return mean


def _run(row: Row, tasks: Sequence[str]) -> Floats:
    """[P] All problems, weighted so that benchmarks count equally."""
    parts = [shares(row, task) for task in tasks]
    problems = sum(map(len, parts))
    return np.concatenate([part * (problems / len(part) / len(tasks)) for part in parts])


def _compared(runs: pd.DataFrame) -> Comparison | None:
    tasks = _tasks(runs)
    tables = {}
    for method, part in runs.groupby("method", sort=False):
        tables[str(method)] = np.stack([_run(row, tasks) for row in part.to_dict("records")])
    return compare(tables) if len(tables) > 1 else None


def _verdict(compared: Comparison | None) -> str:
    """The leader, and who is significantly behind it."""
    if compared is None:
        return ""
    first, *others = compared.order
    leader = method_label(compared.names[first])
    behind = [method_label(compared.names[m]) for m in others if compared.significant[first, m]]
    text = f"{leader} leads with {100 * compared.means[first]:.1f}."
    if compared.seed_deviation is None:
        return f"{text} With one training seed, no difference is called significant."
    if not behind:
        return f"{text} No method is significantly behind it."
    tied = [method_label(compared.names[m]) for m in others if not compared.significant[first, m]]
    text += f" Significantly behind: {', '.join(behind)}."
    return f"{text} Not distinguished from it: {', '.join(tied)}." if tied else text


def _table(runs: pd.DataFrame, compared: Comparison | None) -> Table:
    tasks = _tasks(runs)
    rows = []
    for method, part in runs.groupby("method", sort=False):
        records = part.to_dict("records")
        means = [100 * np.mean([shares(row, task).mean() for row in records]) for task in tasks]
        single = [100 * np.mean([shares(row, task, True).mean() for row in records]) for task in tasks]
        cells = [Cell(method_label(str(method))), Cell("–" if method == BASE else str(len(records)))]
        cells += [number(mean, "{:.0f}") for mean in means]
        cells += [number(np.mean(means), "{:.1f}"), number(np.mean(single), "{:.1f}")]
        rows.append([*cells, Cell(_difference(str(method), compared))])
    header = ["Method", "seeds", *tasks, "Avg", "pass@1", f"minus {method_label(REFERENCE)}"]
    return Table(header, rows, labels=2)


def _difference(method: str, compared: Comparison | None) -> str:
    """The difference from random selection, with its interval."""
    if compared is None or REFERENCE not in compared.names or method not in compared.names:
        return ""
    i = compared.names.index(method)
    j = compared.names.index(REFERENCE)
    if i == j:
        return ""
    ends = (compared.difference[i, j], compared.low[i, j], compared.high[i, j])
    difference, low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in ends)
    is_significant = compared.significant[i, j] or compared.significant[j, i]
    return f"{difference} ({low} to {high}){' *' if is_significant else ''}"
