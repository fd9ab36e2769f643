"""The operations of teaching: read questions, ask a teacher, verify its rollouts, and the student's pass
rates.
"""

import logging
from dataclasses import replace
from typing import Any

from lark.config import Config
from lark.evaluation import benchmarks
from lark.generation.checks import key_of
from lark.generation.engine import check_engine
from lark.pipeline.operations.teach_costs import teach_cost
from lark.selection.leads import decide
from lark.teaching import asked, checks, earlier, question_files, rollouts, verdicts
from lark.teaching.heats import Standing, heat_line
from lark.teaching.pass_rates import write_pass_rates
from lark.teaching.verdicts import verdict_line
from lark.work.machine import Machine
from lark.work.operation import Counts, Job, Operation

log = logging.getLogger(__name__)


def _read_questions(job: Job) -> Counts:
    source = job.config.questions
    pool = job.config.pool
    counts = question_files.Counts()
    every = list(question_files.read(source, counts))
    similar: dict[str, str] = {}
    if pool.decontaminate:
        from lark.analysis.contamination import contaminated  # noqa: PLC0415  # imports scipy

        texts = {question.question_id: question.question for question in every}
        similar = contaminated(texts, pool, job.config.benchmark)
    chosen = question_files.sampled(iter(every), source, similar)
    checks.any_questions(source, len(chosen))
    question_files.write(chosen, job.folder)
    with_answer = sum(question.answer is not None for question in chosen)
    made: dict[str, Any] = {"questions": len(chosen), "read": counts.read, "with_answer": with_answer}
    if counts.repeated:
        made["repeated"] = counts.repeated
    if similar:
        examples = dict(list(similar.items())[:5])
        made["contaminated"] = {"questions": len(similar), "examples": examples}
    return made


def _check(config: Config, machine: Machine) -> None:
    """Engines that are missing, and keys of endpoints."""
    for name, teacher in config.teacher.items():
        if teacher.is_local:
            engine = replace(config.engine, name=teacher.engine)
            check_engine(engine, machine, {f"teacher.{name}.tensor_parallel": teacher.tensor_parallel})
        else:
            key_of(name, teacher)


def _fetch(config: Config) -> bool:
    return config.pool.decontaminate and benchmarks.fetch(config.benchmark)


def _about_questions(config: Config, counts: Counts, made: bool) -> None:
    left_out = []
    if counts.get("repeated"):
        left_out.append(f"{counts['repeated']} rows with the text of an earlier question")
    if counts.get("contaminated"):
        similar = counts["contaminated"]
        named = ", ".join(f"{question} ({problem})" for question, problem in similar["examples"].items())
        left_out.append(f"{similar['questions']} that are in a benchmark: {named}")
    without = counts["questions"] - counts["with_answer"]
    if made:
        rest = f"; left out: {'; '.join(left_out)}" if left_out else ""
        unknown = f", {without} of them without an answer" if without else ""
        log.info("          %s questions%s%s", f"{counts['questions']:,}", unknown, rest)


def _about_rollouts(config: Config, counts: Counts, made: bool) -> None:
    """What a teacher has given, and what was taken over from earlier runs."""
    if not made:
        return
    taken = sum(counts.get("taken", {}).values())
    parts = [f"{counts['rollouts']:,} rollouts of {counts['questions']:,} questions"]
    if taken:
        parts.append(f"{taken:,} of them taken over")
    parts.append(f"{counts['tokens']:,} tokens")
    if counts["cost"]:
        parts.append(f"cost {counts['cost']:,.2f}")
    parts += [f"{number:,} questions unanswered ({reason})" for reason, number in _failures(counts)]
    if counts.get("spared"):
        parts.append(f"{counts['spared']:,} questions spared")
    if counts.get("not_asked"):
        parts.append(f"{counts['not_asked']:,} questions not asked: a limit was reached")
    log.info("          %s", ", ".join(parts))


def _failures(counts: Counts) -> list[tuple[str, int]]:
    return list(counts.get("failures", {}).items())


def _about_verdicts(config: Config, counts: Counts, made: bool) -> None:
    if made:
        log.info("          %s", verdict_line(counts))


def _about_pass_rates(config: Config, counts: Counts, made: bool) -> None:
    if made and counts["known"]:
        log.info(
            "          the student solves %.1f%% of its samples; %s of %s questions never, %s always",
            100 * counts["mean"],
            f"{counts['never']:,}",
            f"{counts['known']:,}",
            f"{counts['always']:,}",
        )


def _about_heat(config: Config, counts: Counts, made: bool) -> None:
    """Which teachers a heat has stopped, and why."""
    log.info("          %s", heat_line(Standing.of(counts)))


READ_QUESTIONS = Operation("read_questions", "teach", _read_questions, fetch=_fetch, notice=_about_questions)
ASK = Operation(
    "teach", "teach", "lark.teaching.rollouts:teach", processes="sharing", carry=earlier.carry,
    prepare=earlier.take_over, check=_check, collect=rollouts.merge, cost=teach_cost, notice=_about_rollouts,
)  # fmt: skip
VERIFY = Operation(
    "verify_rollouts", "teach", "lark.teaching.verdicts:verify", processes="one", on_cpu=True,
    prepare=verdicts.take_over, collect=verdicts.merge, notice=_about_verdicts,
)  # fmt: skip
PASS_RATE = Operation("count_pass_rates", "teach", write_pass_rates, notice=_about_pass_rates)
DRAW = Operation("draw_questions", "teach", asked.draw)
DECIDE = Operation("decide_heat", "teach", decide, notice=_about_heat)

OPERATIONS = (READ_QUESTIONS, DRAW, ASK, VERIFY, PASS_RATE, DECIDE)
