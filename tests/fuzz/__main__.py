"""Random damage to pools, settings, students, outputs and answers, and random kills: a sentence, or the
same result.

Run as: python -m tests.fuzz --minutes 10 --seed 0
        python -m tests.fuzz --seed 0 --case "stopped run:17"       one case again
        python -m tests.fuzz --only pool,settings --cases 50
"""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: forks must not inherit threads

from tests.fuzz import answers, runs, settings, students, tables
from tests.fuzz.case import STACK_TRACE, Case, Kind, Outcome, Result

log = logging.getLogger(__name__)

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*tables.KINDS, *settings.KINDS, *students.KINDS, *runs.KINDS, *answers.KINDS)
}


def import_workers() -> None:
    """Import what workers need, so that each case, a fork of this process, need not."""
    import lark.evaluation.generate
    import lark.evaluation.grade
    import lark.generation.hf
    import lark.scoring.worker
    import lark.training.worker  # noqa: F401


def run_case(case: Case, kind: Kind, folder: Path) -> Result:
    """One case in an empty folder. An error of the fuzz itself is a failure too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        return kind.run(case, folder)
    except Exception:
        return Result(STACK_TRACE, "in the fuzz itself", traceback.format_exc())


def fuzz(kinds: Sequence[Kind], seed: int, minutes: float, cases: int | None, folder: Path) -> Outcome:
    """Run cases of all kinds, by their shares of the time, until it is over or there were `cases` of each
    kind.
    """
    outcome, end = Outcome(seed), time.monotonic() + 60 * minutes
    shared = folder / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    numbers = dict.fromkeys((kind.name for kind in kinds), 0)
    prepared: set[str] = set()
    while True:
        left = [kind for kind in kinds if cases is None or numbers[kind.name] < cases]
        if not left or time.monotonic() > end:
            return outcome
        kind = min(left, key=lambda kind: outcome.seconds[kind.name] / kind.share)
        if kind.name not in prepared:
            kind.prepare(shared)
            prepared.add(kind.name)
        case = Case(seed, kind.name, numbers[kind.name])
        numbers[kind.name] += 1
        started = time.monotonic()
        result = run_case(case, kind, folder / "case")
        outcome.add(case, result, time.monotonic() - started)
        log.debug("%s, %s: %s\n  %s", case.name, result.outcome, result.what, result.details)
        if result.failed:
            again = f'python -m tests.fuzz --seed {seed} --case "{case.name}"'
            details = "\n  ".join(result.details.splitlines())
            log.info("FAILED %s: %s\n  again: %s\n  %s\n", result.outcome, result.what, again, details)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.fuzz", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="start no further case after this time (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, help="at most this many of each kind")
    parser.add_argument("--only", help=f"kinds, separated by commas: {', '.join(KINDS)}")
    parser.add_argument("--all", action="store_true", help="show every case, not only those that fail")
    parser.add_argument("--case", help="run this case again, e.g. pool:17, and keep its folder")
    parser.add_argument("--folder", type=Path, help="where files go (default: a temporary folder)")
    options = parser.parse_args(arguments)
    import_workers()
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    log.setLevel(logging.DEBUG if options.all else logging.INFO)
    if options.case:
        name, _, number = options.case.rpartition(":")
        folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
        (folder / "shared").mkdir(parents=True, exist_ok=True)
        KINDS[name].prepare(folder / "shared")
        result = run_case(Case(options.seed, name, int(number)), KINDS[name], folder / "case")
        log.info("%s: %s\n%s\n%s", result.outcome, result.what, result.details, folder / "case")
        sys.exit(1 if result.failed else 0)
    chosen = (
        [KINDS[name.strip()] for name in options.only.split(",")] if options.only else list(KINDS.values())
    )
    with tempfile.TemporaryDirectory() as scratch:
        outcome = fuzz(chosen, options.seed, options.minutes, options.cases, options.folder or Path(scratch))
    log.info("%s", outcome)
    sys.exit(1 if outcome.failures else 0)


if __name__ == "__main__":
    main()
