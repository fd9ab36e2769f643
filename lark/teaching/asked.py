"""Which questions a teacher is asked, in which order teachers are asked, and how much each may spend."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lark.config import Config
from lark.config.teacher import SELF
from lark.pool.hashing import hash64
from lark.pool.taught import pass_rates, verified
from lark.store.manifest import read_manifest
from lark.teaching import checks
from lark.teaching.artifacts import PASS_RATES, ROLLOUTS, VERDICTS
from lark.teaching.heats import Standing, standing_of
from lark.teaching.question_files import QUESTIONS, AskedQuestion, stored, write
from lark.work.operation import Job


def in_order(config: Config) -> list[str]:
    """The teachers in the order in which they are asked: those of `teacher=`, without the judge. The student
    is first if the others depend on its pass rates.
    """
    judge = config.teach.judge if config.teach.verify == "judge" else None
    names = [name for name in config.teacher if name != judge]
    if config.questions.pass_rate is not None:
        names.sort(key=lambda name: name != SELF)
    return names


def entrants(config: Config) -> list[str]:
    """The teachers that heats compare. The student answers all questions first if the others depend on its
    pass rates, so it cannot stop.
    """
    names = in_order(config)
    return [name for name in names if config.questions.pass_rate is None or name != SELF]


def first_of(questions: Iterable[AskedQuestion], number: int | None, seed: int) -> list[AskedQuestion]:
    """The questions of a heat, in the order of all heats: a sample that does not depend on their order in
    the source.
    """

    def place(question: AskedQuestion) -> int:
        return hash64("heats", str(seed), question.key)

    return sorted(questions, key=place)[:number]


def draw(job: Job) -> dict[str, Any]:
    """Write the questions of a heat, whose number is the label of the output."""
    (heat, folder), *_ = job.outputs.items()
    teach = job.config.teach
    chosen = first_of(_between_rates(job), teach.first_questions(int(heat)), teach.seed)
    write(chosen, folder)
    return {heat: {"questions": len(chosen)}}


def asked(job: Job, name: str) -> tuple[list[AskedQuestion], int]:
    """The questions that a teacher is asked, and the number of those that it is spared: of heats after it
    stopped, or with enough rollouts.
    """
    questions = _between_rates(job)
    standing = standing_of(job.inputs)
    chosen = questions[: standing.questions]
    if name in standing.stopped:
        chosen = questions[: standing.stopped[name].questions]
    else:
        chosen += _not_enough(questions[standing.questions :], job, standing)
    return chosen, len(questions) - len(chosen)


def _between_rates(job: Job) -> list[AskedQuestion]:
    """The questions of the job: all, or those that the student neither always nor never solves."""
    questions = list(stored(job.inputs[QUESTIONS.name]))
    rates = job.inputs.get(PASS_RATES.name)
    if rates is None:
        return questions
    chosen = list(between(questions, rates, job.config.questions.pass_rate))
    checks.any_asked(len(chosen), job.config.questions)
    return chosen


def between(
    questions: Iterable[AskedQuestion], folder: Path, interval: Sequence[float] | None
) -> Iterator[AskedQuestion]:
    """The questions whose pass rate is in an interval, and those without one."""
    assert interval is not None
    least, most = interval
    rates = pass_rates(folder)
    for question in questions:
        if least <= rates.get(question.question_id, least) <= most:
            yield question


def _not_enough(questions: list[AskedQuestion], job: Job, standing: Standing) -> list[AskedQuestion]:
    """Those of the questions that lack rollouts. All of them before the last heat: whoever is compared
    answers the same questions.
    """
    enough = job.config.teach.enough
    if enough is None or standing.heat < job.config.teach.decisions:
        return questions
    texts = different_texts(job.inputs)
    return [question for question in questions if len(texts[question.key]) < enough]


def different_texts(inputs: Mapping[str, Path]) -> defaultdict[str, set[int]]:
    """Hashes of the rollouts that the earlier teachers have for each question, without those that are cut
    off or known to be wrong. White space makes no difference.
    """
    texts: defaultdict[str, set[int]] = defaultdict(set)
    for label, folder in inputs.items():
        kind, _, teacher = label.partition(":")
        if kind != ROLLOUTS.name or not teacher:
            continue
        for row in verified(folder, inputs.get(f"{VERDICTS.name}:{teacher}")):
            values = row.values
            if values.get("correct") is not False and values["finish_reason"] != "length":
                words = f"{values['reasoning_content'] or ''} {values['response']}".split()
                texts[values["key"]].add(hash64(*words))
    return texts


def limits(job: Job, name: str) -> tuple[float | None, float | None]:
    """The most tokens and money of a teacher: what it has spent in earlier heats, and an equal share of what
    all teachers together have left.
    """
    teach = job.config.teach
    return _share(job, name, "tokens", teach.limit_tokens), _share(job, name, "cost", teach.limit_money)


def _share(job: Job, name: str, count: str, limit: float | None) -> float | None:
    if limit is None:
        return None
    standing = standing_of(job.inputs)
    names = in_order(job.config)
    earlier = [other for other in names if f"{ROLLOUTS.name}:{other}" in job.inputs]
    later = [other for other in names if other not in earlier]
    left = limit
    for other in earlier:
        left -= read_manifest(job.inputs[f"{ROLLOUTS.name}:{other}"]).counts[count]
    spent = {other: standing.spent.get(other, {}).get(count, 0.0) for other in later}
    sharing = [other for other in later if other not in standing.stopped]
    return spent[name] + (left - sum(spent.values())) / max(1, len(sharing))
