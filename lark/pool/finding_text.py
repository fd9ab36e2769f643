"""The findings of a pool (findings.py) as sentences of its summary."""

from collections.abc import Iterator, Mapping
from typing import Any

from lark.printing import some

FAULTS = {
    "loops": "repeat {threshold:.0%} of their text or more",
    "conclusion": "give the gold answer as their conclusion with {threshold:.0%} of their reasoning still"
    " to come",
    "scripts": "have {threshold:.1%} or more of their text in a script that the question does not have",
    "branching": "turn to another thought (Wait, Alternatively, …) {threshold:g} or more times per 1,000"
    " words",
    "empty": "have fewer than {threshold:g} words beside their final answer",
    "refusals": "decline to answer",
}
"""What is wrong with trajectories, by their faults."""
PLACES = {
    "tags": "have an answer in <answer> tags",
    "hashes": "have an answer after ####",
    "last_number": "end with a number",
    "box": "have an answer in a box",
}
"""What responses have at the places of `pool.answer_from`."""
WORTH = 0.05
"""The share of right answers from which another place is proposed. Fewer are chance."""


def shown(name: str, longest: int = 60) -> str:
    """A name from a file, for the terminal: on one line, without control characters, and not too long."""
    plain = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
    return plain if len(plain) <= longest else f"{plain[:longest]}…"


def finding_hints(counts: Mapping[str, Any]) -> Iterator[str]:
    for fault, finding in counts.get("faults", {}).items():
        yield _fault(fault, finding)
    if "trimmed" in counts:
        yield f"pool.trim=conclusion cut the text after the conclusion of {counts['trimmed']:,} trajectories."
    if "branching" in counts:
        rates = (f"{shown(teacher)} {rate:g}" for teacher, rate in counts["branching"].items())
        yield f"turns of thought (Wait, Alternatively, …) per 1,000 words: {some(rates)}."
    if "disagreements" in counts:
        yield _disagreement(counts["disagreements"])
    if "unread" in counts:
        yield from _unread(counts["unread"])


def _fault(fault: str, finding: Mapping[str, Any]) -> str:
    teachers = finding["teachers"]
    shares = some(f"{shown(teacher)} {count:,}" for teacher, count in teachers.items())
    remedy = f"pool.drop=[{fault}] drops them"
    if fault == "conclusion":
        remedy += ", pool.trim=conclusion cuts what follows"
    examples = some(shown(name) for name in finding["examples"])
    what = FAULTS[fault].format(threshold=finding["threshold"])
    return f"{sum(teachers.values()):,} trajectories {what} ({shares}): {examples}. {remedy}."


def _disagreement(finding: Mapping[str, Any]) -> str:
    total = finding["right"] + finding["wrong"]
    groups = some(f"{shown(name)} {count:,}" for name, count in finding["groups"].items())
    examples = some(shown(name, 120) for name in finding["examples"])
    return (
        f"the pool's verdict and the answer in the response disagree on {total:,} of {finding['compared']:,}"
        f" trajectories ({finding['right']:,} are right by the pool), by {finding['by']}: {groups}. The"
        " pool's"
        f" verdict counts. Examples: {examples}."
    )


def _unread(finding: Mapping[str, Any]) -> Iterator[str]:
    """Answers that were not read, and the setting that reads them."""
    total = finding["trajectories"]
    sentences = []
    for place, counts in finding["places"].items():
        if place in PLACES and counts["right"] >= WORTH * total:
            sentences.append(
                f"{counts['read']:,} {PLACES[place]}, and {counts['right']:,} of these are the gold answer"
                f" ({setting(place, finding)})"
            )
    note = (
        f"{total:,} trajectories have a gold answer, but no answer that was read, so their correctness is"
        " unknown"
    )
    yield f"{note}: {'; '.join(sentences)}." if sentences else f"{note} (see pool.answer_from)."


def setting(place: str, finding: Mapping[str, Any]) -> str:
    """The setting that reads these answers, and gold answers like `#### 540` if there are any."""
    places = dict.fromkeys(["box", place])
    reason = ""
    if finding["gold_after_hashes"]:
        places["hashes"] = None
        reason = (
            "; `hashes` because the pool's own answers are whole solutions that end with #### and the answer"
        )
    return f"pool.answer_from=[{','.join(places)}]{reason}"
