"""How the teachers of a pool were asked: models, rollouts, verdicts and costs, from the manifests."""

from collections.abc import Mapping
from typing import Any

from lark.explorer.listing import Entry
from lark.store.manifest import Manifest, readable_manifest

ROLLOUTS, VERDICTS = "rollouts:", "verdicts:"
"""Begin the names of a pool's inputs."""


def taught(pool: Entry) -> list[dict[str, Any]]:
    """One row per teacher; empty for a pool that was not written by the teachers of a run."""
    rows = []
    for name in pool.manifest.inputs:
        if name.startswith(ROLLOUTS):
            teacher = name.removeprefix(ROLLOUTS)
            rows.append(_row(teacher, _manifest(pool, name), _manifest(pool, VERDICTS + teacher)))
    return rows


def _manifest(pool: Entry, name: str) -> Manifest:
    """The manifest of an input; empty if there is none."""
    folder = pool.manifest.inputs.get(name)
    if folder is None:
        return Manifest()
    return readable_manifest(pool.folder.parents[1] / folder) or Manifest()


def _row(teacher: str, rollouts: Manifest, verdicts: Manifest) -> dict[str, Any]:
    asked = rollouts.counts
    judged = verdicts.counts
    rows = _number(asked, "rollouts")
    right = _number(judged, "right")
    known = None if right is None else right + (_number(judged, "wrong") or 0)
    distinct = _number(judged, "distinct")
    cost = _number(asked, "cost")
    return {
        "teacher": teacher,
        "models": [str(model) for model in _list(asked.get("models"))],
        "day": rollouts.started.partition("T")[0],
        "questions": _number(asked, "questions"),
        "rollouts": rows,
        "tokens": _ratio(_number(asked, "tokens"), rows),
        "cut": _ratio(_number(asked, "cut"), rows),
        "correct": _ratio(right, known),
        "distinct": distinct,
        "cost": cost,
        "cost_per_distinct": _ratio(cost, distinct),
        "failures": _failures(asked),
    }


def _failures(counts: Mapping[str, Any]) -> dict[str, int]:
    """Questions without an answer, by reason."""
    stated = counts.get("failures")
    reasons = {} if not isinstance(stated, Mapping) else dict(stated)
    if counts.get("not_asked"):
        reasons["not asked: a limit was reached"] = counts["not_asked"]
    return {str(reason): number for reason, number in reasons.items() if isinstance(number, int)}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(counts: Mapping[str, Any], key: str) -> float | None:
    value = counts.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
