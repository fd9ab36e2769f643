"""Requirements on the command line of an experiment: each refusal is a function with its sentence."""

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from lark.config.hydra_errors import is_of_hydra, sentence
from lark.errors import LarkError, first_line

if TYPE_CHECKING:
    from experiments.harness.contest import Entrant
    from experiments.harness.sweep import Sweep, Trial
    from lark.selection.paired import Floats


def is_not_of_hydra(error: Exception) -> None:
    if is_of_hydra(error):
        raise LarkError(sentence(error)) from error


def can_be_drawn(error: Exception, sweep: "Sweep") -> None:
    """An unexpected error of a renderer means that it was not written for this sweep."""
    if not isinstance(error, LarkError):
        typed = " ".join(sweep.overrides) or "its default settings"
        raise LarkError(
            f"{sweep.title} cannot be drawn with {typed} ({type(error).__name__}: {first_line(error)}). It"
            f" draws the sweep of conf/experiment/{sweep.name}.yaml: change single values, and do not sweep"
            " over anything else."
        ) from error


def has_fixed_trials(title: str, fixed: bool) -> None:
    if not fixed:
        raise LarkError(
            f"{title} decides at run time which trials to run, so it cannot be submitted: use `python -m"
            " experiments run`."
        )


def is_a_setting(argument: str) -> None:
    if "=" not in argument and not argument.startswith("~"):
        raise LarkError(f"{argument}: expected key=value after the experiment's name, such as scale=paper.")


def is_known(name: str, experiments: Collection[str]) -> None:
    if name not in experiments:
        raise LarkError(f"{name}: there is no such experiment; choose one of {', '.join(experiments)}.")


def names_no_experiment(argument: str, key: str, title: str) -> None:
    if key == "experiment":
        raise LarkError(f"{argument}: the experiment is already {title}; give the other name instead of it.")


def has_one_scale(swept: Sequence[str]) -> None:
    for argument in swept:
        if argument.startswith("scale="):
            raise LarkError(f"{argument}: an experiment has one scale. Run the command once for each.")


def has_scale(scale: str, scales: Sequence[str], title: str) -> None:
    if scale not in scales:
        raise LarkError(f"scale={scale}: {title} can be run at scale {' or '.join(scales)}.")


def has_trials(batch: Sequence[Sequence[str]], swept: Sequence[str]) -> None:
    if not batch:
        raise LarkError(
            f"{' '.join(swept)}: the sweep has no trials. The second number of range() is excluded: use a"
            " higher one."
        )


SET_BY_COMPARISON = {
    "pool.questions": "pool.questions has no effect on a comparison: set compare.questions instead.",
    "training.seed": (
        "training.seed has no effect on a comparison, which sets the seeds itself:"
        " compare.seeds says how many."
    ),
    "stages": "stages has no effect on a comparison, which trains and evaluates every entrant. Leave it out.",
}
"""Settings that a comparison decides itself."""


def leaves_to_comparison(typed: Collection[str]) -> None:
    for key, reason in SET_BY_COMPARISON.items():
        if key in typed:
            raise LarkError(reason)


def has_one_student(trials: Sequence["Trial"]) -> None:
    students = sorted({trial.config.student.name for trial in trials})
    if len(students) > 1:
        raise LarkError(
            f"student={','.join(students)}: methods are compared for one student at a time; choose one."
        )


def all_train(trials: Sequence["Trial"]) -> None:
    if any(trial.config.weighting_name is None for trial in trials):
        raise LarkError(
            "method=base trains nothing, so it cannot be compared; the base model is evaluated anyway. Leave"
            " it out."
        )


def reverses_entrants(reverse: Collection[str], trials: Sequence["Trial"]) -> None:
    unknown = sorted(set(reverse) - {trial.config.method.name for trial in trials})
    if unknown:
        raise LarkError(
            f"compare.reverse: {', '.join(unknown)} is not among the methods that are compared; add it to"
            " method=…"
        )


def several_entrants(entrants: Sequence["Entrant"]) -> None:
    if len(entrants) < 2:
        raise LarkError("There is only one entrant: name at least two methods, such as method=random,lark.")


def different_entrants(one: "Entrant", other: "Entrant", same: bool) -> None:
    if same:
        raise LarkError(
            f"{one.name} and {other.name} are the same entrant: leave one out. Seeds are set by the"
            " comparison (compare.seeds)."
        )


OUTPUT = "{output}"
"""The place of the results' folder in compare.command."""


def command_not_started(program: str, error: OSError) -> LarkError:
    return LarkError(
        f"compare.command: {program} cannot be started ({error.strerror}). Give the path of an installed"
        " program."
    )


def command_too_long(minutes: int, log: Path) -> LarkError:
    return LarkError(
        f"compare.command took more than {minutes} minutes and was stopped. Raise compare.command_minutes, or"
        f" measure fewer problems. What it printed is in {log}."
    )


def command_succeeded(status: int, line: str, log: Path) -> None:
    if status:
        raise LarkError(
            f"compare.command failed with exit status {status}: {line[:200]} What it printed is in {log}."
        )


def are_scores(scores: list[float] | None, place: str) -> list[float]:
    """The scores of a command; refuses anything else than finite numbers."""
    if not scores or not all(map(isfinite, scores)):
        raise LarkError(
            f"compare.command: {place} is not a number. The command must write {OUTPUT}/scores.json (a"
            f" number, or a list with one number per problem), write samples of lm-eval into {OUTPUT}, or"
            " print a number as its last line; higher is better."
        )
    return scores


def sample_score(document: object, value: object, where: str) -> tuple[int, float]:
    """The number of a document and its score in a sample of lm-eval."""
    if not (isinstance(document, int) and isinstance(value, int | float)):
        raise LarkError(
            f"{where}: this is not a sample of lm-eval with a score: it needs `doc_id`, `metrics` and the"
            " number of the first metric."
        )
    return document, float(value)


def have_same_problems(scores: Mapping[str, Sequence["Floats"]]) -> None:
    """Refuse scores on different numbers of problems, which cannot be paired."""
    lengths = {name: sorted({len(run) for run in runs}) for name, runs in scores.items()}
    if len({length for found in lengths.values() for length in found}) > 1:
        listed = ", ".join(f"{name} {found}" for name, found in lengths.items())
        raise LarkError(
            f"compare.command gave scores of different numbers of problems ({listed}). It must measure the"
            " same problems for every student."
        )


def has_tasks(source: Path, present: Collection[str], tasks: Collection[str]) -> None:
    if not present:
        raise LarkError(
            f"{source} has no questions of {', '.join(tasks)}. Give a folder of result files of"
            " open-thought/reasoning-gym-eval (zero-shot/easy), or a pool with question ids such as gcd-017."
        )


EASY_TASKS = "data/reasoning_gym_easy"
"""Folder of the pool and the benchmarks of SCALE=smollm2, which experiments/reasoning_gym.py writes."""


def has_easy_tasks(paths: Collection[str | None]) -> None:
    missing = [path for path in paths if path and path.startswith(EASY_TASKS) and not Path(path).exists()]
    if missing:
        raise LarkError(
            f"{missing[0]} is not there. Clone the public repository open-thought/reasoning-gym-eval and run"
            " `python -m experiments.reasoning_gym reasoning-gym-eval/zero-shot/easy`, which writes the pool"
            " and the benchmarks of this scale."
        )


def has_results(folder: Path, files: Sequence[Path]) -> None:
    if not files:
        raise LarkError(f"{folder} has no results, and no run of this experiment is finished in this store.")


def have_the_same_problems(folder: Path, problems: Sequence[str]) -> None:
    """Refuse runs that cannot be paired."""
    if len(problems) > 1:
        raise LarkError(
            f"{folder}: its runs answered different problems (column `problems`: {', '.join(problems)}),"
            " so they cannot be one table. Divide the data in the same way everywhere, and move files of"
            " other problems away."
        )
