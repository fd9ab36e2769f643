"""Summary of a pool, to check before spending hours on it."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from lark import config as conf
from lark.pool.read import Trajectory, is_compared, verdict
from lark.report.tables import text_table


class Summary:
    """Statistics of a pool, collected one trajectory at a time."""

    def __init__(self, pool: conf.Pool) -> None:
        self.pool = pool
        self.candidates: Counter[str] = Counter()
        self.lengths: defaultdict[str, array[int]] = defaultdict(lambda: array("L"))
        self.verdicts: Counter[tuple[str, bool | None]] = Counter()
        self.sources: set[str] = set()
        self.boxed = 0

    @property
    def trajectories(self) -> int:
        return self.candidates.total()

    def add(self, trajectory: Trajectory) -> None:
        self.candidates[trajectory.question_id] += 1
        self.lengths[trajectory.teacher].append(len(trajectory.response))
        known = verdict(trajectory, self.pool)
        self.verdicts[trajectory.teacher, known] += 1
        if known is not None:
            self.sources.add("the answer in the last \\boxed{}" if is_compared(trajectory) else "the pool's own verdict")
        self.boxed += trajectory.boxed is not None

    def to_dict(self) -> dict[str, Any]:
        sizes = sorted(self.candidates.values())
        return {
            "questions": len(self.candidates),
            "trajectories": self.trajectories,
            "candidates": {"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]} if sizes else {},
            "teachers": {teacher: self._part([teacher]) for teacher in sorted(self.lengths)},
            "all": self._part(list(self.lengths)),
            "boxed": self.boxed / max(1, self.trajectories),
            "verdicts": " and, without one, ".join(sorted(self.sources)),
        }

    def _part(self, teachers: list[str]) -> dict[str, Any]:
        """Number, lengths in characters and share of correct trajectories of some teachers together."""
        lengths = sorted(length for teacher in teachers for length in self.lengths[teacher])
        right, wrong = (sum(self.verdicts[teacher, v] for teacher in teachers) for v in (True, False))
        return {
            "trajectories": len(lengths),
            "characters": {
                "median": lengths[len(lengths) // 2] if lengths else 0,
                "mean": round(sum(lengths) / max(1, len(lengths)), 1),
                "max": lengths[-1] if lengths else 0,
            },
            "correct": right / (right + wrong) if right + wrong else None,
        }


def pool_summary(counts: Mapping[str, Any]) -> str:
    """The summary as text: one line per teacher, and one for all."""
    sizes = counts["candidates"]
    each = f"{sizes['min']} candidates each"
    if sizes["min"] != sizes["max"]:
        each = f"{sizes['min']} to {sizes['max']} candidates each (median {sizes['median']})"
    rows = [_pool_row(name, part) for name, part in [*counts["teachers"].items(), ("all", counts["all"])]]
    table = text_table(["teacher", "trajectories", "median length", "mean", "longest", "correct"], rows)
    notes = "Lengths in characters."
    notes += f" Correct by {counts['verdicts']}." if counts["all"]["correct"] is not None else " Correctness is not known."
    hints = "".join(f"Note: {hint}\n" for hint in _pool_hints(counts))
    return f"\n{counts['questions']:,} question{'' if counts['questions'] == 1 else 's'}, {each}\n\n{table}\n\n{hints}{notes}\n"


def _pool_row(name: str, part: Mapping[str, Any]) -> list[str]:
    lengths = (f"{part['characters'][key]:,.0f}" for key in ("median", "mean", "max"))
    return [name, f"{part['trajectories']:,}", *lengths, "–" if part["correct"] is None else f"{part['correct']:.1%}"]


def _pool_hints(counts: Mapping[str, Any]) -> list[str]:
    """Properties of the pool that often cause problems later."""
    hints = []
    if "dropped" in counts:
        hints.append(
            f"pool.correct_only dropped {counts['dropped']['trajectories']:,} wrong trajectories, and "
            f"{counts['dropped']['questions']:,} questions without a correct one."
        )
    if counts["boxed"] < 0.5:
        hints.append(
            f"only {counts['boxed']:.1%} of the responses have a \\boxed{{}} answer, and evaluation reads nothing else: "
            "a student trained on them may score 0. If answers are marked in another way, box them with a pattern, such as "
            "\"pool.answer_pattern='<answer>(.*?)</answer>'\" (with both kinds of quotes)."
        )
    correct = counts["all"]["correct"]
    if correct is not None and correct < 1:
        hints.append(f"{1 - correct:.1%} are known to be wrong and can be selected: pool.correct_only=true drops them.")
    return hints
