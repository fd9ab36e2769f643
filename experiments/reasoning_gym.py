"""Divide published answers to reasoning-gym's easy tasks into a training pool and a benchmark per task.

Run as: python -m experiments.reasoning_gym reasoning-gym-eval/zero-shot/easy
        python -m experiments.reasoning_gym my_rollouts.jsonl --to elsewhere --share 0.25

The source is a folder of result files of the public repository open-thought/reasoning-gym-eval, or any pool
whose questions have ids such as `gcd-017`. Of each task, a share of the questions is held out: those whose
texts have the lowest hashes, so neither the order nor the format of the source matters, and a question that
is there twice is on one side. The commands with SCALE=smollm2 read what is written here.
"""

import argparse
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor
from pathlib import Path
from typing import Any

from experiments.harness import checks
from lark.config import Pool
from lark.pool.findings import task_of
from lark.pool.hashing import hash64
from lark.pool.read import read
from lark.pool.trajectory import Trajectory
from lark.printing import counted, log_to
from lark.store.store import write_text
from lark.work.entry import run_main

log = logging.getLogger("experiments.reasoning_gym")

EASY = (
    "calendar_arithmetic", "chain_sum", "complex_arithmetic", "family_relationships", "gcd", "lcm",
    "leg_counting", "letter_counting", "needle_haystack", "number_sequence", "simple_equations", "syllogism",
)  # fmt: skip
"""Tasks of conf/benchmark/reasoning_gym_easy.yaml: their answers are short texts."""
FOLDER = Path(checks.EASY_TASKS)
POOL = f"{FOLDER.name}.jsonl"
"""Named so because the names of artifacts contain it."""
SHARE = 0.4
"""Share of a task's questions that is held out: 20 of the published 50."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    counts = divide(options.source, options.to, options.share)
    for name, number in counts.items():
        log.info("%s: %s", options.to / name, counted(number, "row"))
    missing = [task for task in EASY if f"{task}.jsonl" not in counts]
    if missing:
        log.warning(
            "No answers to %s: add benchmark.skip=[%s] to commands.", ", ".join(missing), ",".join(missing)
        )


def divide(source: Path, folder: Path = FOLDER, share: float = SHARE) -> dict[str, int]:
    """Write the pool and the benchmarks into a folder. Returns the rows of each file."""
    by_task = _by_task(source)
    checks.has_tasks(source, by_task, EASY)
    files: dict[str, list[dict[str, Any]]] = {POOL: []}
    for task in sorted(by_task):
        questions = by_task[task]
        ranked = sorted(questions)
        held_out = ranked[: floor(len(ranked) * share)]
        files[f"{task}.jsonl"] = [_problem(questions[key]) for key in held_out]
        for key in sorted(set(ranked).difference(held_out)):
            files[POOL] += _candidates(questions[key])
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        write_text(folder / name, _lines(rows))
    return {name: len(rows) for name, rows in files.items()}


def _by_task(source: Path) -> dict[str, dict[str, list[Trajectory]]]:
    """The trajectories of each question of each task, by the question's hash."""
    by_task: dict[str, dict[str, list[Trajectory]]] = defaultdict(lambda: defaultdict(list))
    for trajectory in _trajectories(source):
        task = task_of(trajectory.question_id)
        if task in EASY:
            by_task[task][_key(task, trajectory)].append(trajectory)
    return by_task


def _trajectories(source: Path) -> Iterator[Trajectory]:
    if not source.is_dir():
        yield from read(_pool(source))
        return
    # The folder has other tasks too, and files that are no results.
    for task in EASY:
        if next(source.glob(f"**/{task}.json"), None):
            yield from read(_pool(source / "**" / f"{task}.json"))


def _pool(path: Path) -> Pool:
    # Some completions were cut off before their first word.
    return Pool(format="rows", path=str(path), name="files", incomplete="drop")


def _key(task: str, trajectory: Trajectory) -> str:
    """An id that is the same wherever the question is from."""
    text = " ".join(trajectory.question.split())
    return f"{task}-{hash64(task, text):016x}"


def _problem(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    first = trajectories[0]
    task = task_of(first.question_id)
    return {"id": _key(task, first), "question": first.question, "answer": first.answer}


def _candidates(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Rows of a pool. The teachers' system prompt is left out: it asks for `<answer>` tags, students are
    asked for a box.
    """
    numbers = Counter[str]()
    rows = []
    for trajectory in sorted(trajectories, key=lambda one: (_name(one), one.question_id, one.rollout)):
        teacher = _name(trajectory)
        rows.append(
            {
                "question_id": _key(task_of(trajectory.question_id), trajectory),
                "teacher": teacher,
                "rollout": numbers[teacher],
                "question": trajectory.question,
                "response": trajectory.response,
                "answer": trajectory.answer,
                "correct": trajectory.correct,
            }
        )
        numbers[teacher] += 1
    return rows


def _name(trajectory: Trajectory) -> str:
    """The teacher without the organisation, which only folders name."""
    return trajectory.teacher.rpartition("/")[2]


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a folder of result files, or a pool")
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder to write (default: %(default)s)")
    parser.add_argument(
        "--share", type=float, default=SHARE, help="share that is held out (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    log_to()
    run_main(main)
