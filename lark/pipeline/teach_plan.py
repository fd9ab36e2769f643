"""The steps that make the pool of a run with teachers: questions, rollouts and verdicts of each teacher, and
the student's pass rates; with heats, those of each heat, its scores and its decision.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lark.config import Config, Student
from lark.config.teacher import SELF, Teacher
from lark.models.students import weights_identity
from lark.pipeline.fingerprints import method_part, questions_part
from lark.pipeline.operations.teach import ASK, DECIDE, DRAW, PASS_RATE, READ_QUESTIONS, VERIFY
from lark.pool.identity import source_identity
from lark.pool.mixing import named_after
from lark.store.store import Artifact, Checksums, Kind
from lark.teaching.artifacts import PASS_RATES, ROLLOUTS, STANDING, VERDICTS
from lark.teaching.asked import entrants, in_order
from lark.teaching.question_files import QUESTIONS
from lark.work.operation import Operation, Step

WeightsOf = Callable[[Student], str | Artifact]
Inputs = Mapping[str, Artifact]
Scored = Callable[[Inputs, int], tuple[list[Step], Inputs]]
"""The steps that make and score the pool of a heat, and the tables that the method needs."""


class TeachPlan:
    """The steps of the stage `teach`, and the artifacts that its pool is made of."""

    def __init__(
        self, config: Config, checksums: Checksums, weights_of: WeightsOf, elsewhere: bool, scored: Scored
    ) -> None:
        self.config = config
        self.checksums = checksums
        self.weights_of = weights_of
        self.steps: list[Step] = []
        self.rollouts: dict[str, Artifact] = {}
        """Of the last heat so far, if there are several."""
        self.verdicts: dict[str, Artifact] = {}
        self.pass_rates: Artifact | None = None
        self.standing: Artifact | None = None
        self.source = Artifact(QUESTIONS, _label(config), self._questions_part(elsewhere))
        self.questions = self.source
        """Those that teachers are asked: all, or those of the heat."""
        self.steps.append(Step(READ_QUESTIONS, (self.source,)))
        names = entrants(config) if config.teach.heats else ()
        done: list[str] = []
        for name in in_order(config):
            if name not in names:
                self._add(name, done)
                done.append(name)
        for heat in range(1, len(config.teach.heats) + 1):
            self._add_heat(heat, names, done, scored)

    def _add_heat(self, heat: int, names: Sequence[str], done: Sequence[str], scored: Scored) -> None:
        """The steps of a heat: all teachers answer its questions, and then it is decided who stops. `done`:
        teachers that have answered all questions before.
        """
        self.questions = self._drawn(heat)
        self.steps.append(Step(DRAW, (self.questions,), labels=(str(heat),), heat=heat))
        for place, name in enumerate(names):
            self._add(name, [*done, *names[:place]], heat)
        if heat > self.config.teach.decisions:
            return
        steps, tables = scored(self.inputs, heat)
        inputs = {QUESTIONS.name: self.questions, **tables}
        inputs |= {f"{ROLLOUTS.name}:{name}": self.rollouts[name] for name in names}
        if self.standing is not None:
            inputs[STANDING.name] = self.standing
        part = method_part(self.config, self.checksums)
        part |= {"teachers": list(names), "heat": heat, "decisions": self.config.teach.decisions}
        self.standing = Artifact(STANDING, f"heat{heat}", part, inputs)
        self.steps += [replace(step, heat=heat) for step in steps]
        self.steps.append(Step(DECIDE, (self.standing,), labels=(str(heat),), heat=heat))

    def _drawn(self, heat: int) -> Artifact:
        """The questions of a heat."""
        teach = self.config.teach
        part: dict[str, Any] = {"first": teach.first_questions(heat), "seed": teach.seed}
        inputs = {QUESTIONS.name: self.source}
        if self.config.questions.pass_rate is not None:
            assert self.pass_rates is not None
            part["pass_rate"] = self.config.questions.pass_rate
            inputs[PASS_RATES.name] = self.pass_rates
        return Artifact(QUESTIONS, f"{self.source.name}-heat{heat}", part, inputs)

    @property
    def inputs(self) -> dict[str, Artifact]:
        """What the pool is made of."""
        inputs = _named(ROLLOUTS, self.rollouts) | _named(VERDICTS, self.verdicts)
        if self.pass_rates is not None:
            inputs[PASS_RATES.name] = self.pass_rates
        if self.standing is not None:
            inputs[STANDING.name] = self.standing
        return inputs

    def _questions_part(self, elsewhere: bool) -> dict[str, Any]:
        config = self.config
        source = replace(config.questions, pass_rate=None)
        with named_after("questions"):
            part = source_identity(source, self.checksums, elsewhere)
        if config.pool.decontaminate:
            tasks = config.benchmark.tasks
            part["benchmarks"] = {name: questions_part(name, task) for name, task in tasks.items()}
            part["similarity"] = config.pool.similarity
        return part

    def _add(self, name: str, earlier: Sequence[str], heat: int = 0) -> None:
        """The steps of one teacher. `earlier`: the teachers that are asked before it."""
        config = self.config
        part: dict[str, Any] = {"teacher": self._identity(name), "samples": config.teach.samples}
        inputs = {QUESTIONS.name: self.questions}
        if config.questions.pass_rate is not None and not heat and name != SELF:
            assert self.pass_rates is not None
            part["pass_rate"] = config.questions.pass_rate
            inputs[PASS_RATES.name] = self.pass_rates
        if self.standing is not None:
            inputs |= {STANDING.name: self.standing, ROLLOUTS.name: self.rollouts[name]}
        asked = {other: self.rollouts[other] for other in earlier}
        if config.teach.is_limited:
            part["limits"] = [config.teach.limit_tokens, config.teach.limit_money]
            inputs |= _named(ROLLOUTS, asked)
        is_last = heat == 0 or heat > config.teach.decisions
        if config.teach.enough is not None and is_last and earlier:
            part["enough"] = config.teach.enough
            verified = {other: self.verdicts[other] for other in earlier if other in self.verdicts}
            inputs |= _named(ROLLOUTS, asked) | _named(VERDICTS, verified)
        rollouts = Artifact(ROLLOUTS, name, part, inputs)
        self.rollouts[name] = rollouts
        ask = self._asking(name)
        self.steps.append(Step(ask, (rollouts,), self._weights(name), (name,), teacher=name, heat=heat))
        if config.teach.verify == "none":
            return
        verdicts = Artifact(VERDICTS, name, self._verification(), {ROLLOUTS.name: rollouts})
        self.verdicts[name] = verdicts
        judge = config.teach.judge if config.teach.verify == "judge" else None
        weights = self._weights(judge) if judge else ""
        verify = self._verifying(judge)
        self.steps.append(Step(verify, (verdicts,), weights, (name,), teacher=name, heat=heat))
        if name == SELF:
            self.pass_rates = Artifact(PASS_RATES, name, {}, {VERDICTS.name: verdicts})
            self.steps.append(Step(PASS_RATE, (self.pass_rates,), heat=heat))

    def _identity(self, name: str) -> dict[str, Any]:
        """Everything that can change a teacher's answers."""
        teacher = self.config.teacher[name]
        identity = {"name": name, **{key: getattr(teacher, key) for key in PROMPT_AND_SAMPLING}}
        identity["seed"] = self.config.teach.seed
        if teacher.is_local:
            model = weights_identity(teacher.local_model(name), self.checksums)
            return identity | {"engine": teacher.engine, "model": model}
        return identity | {key: getattr(teacher, key) for key in ("model", "extra", "template_options")}

    def _weights(self, name: str) -> str | Artifact:
        teacher = self.config.teacher[name]
        return self.weights_of(teacher.local_model(name)) if teacher.is_local else ""

    def _asking(self, name: str) -> Operation:
        return _on_devices(ASK, self.config.teacher[name])

    def _verifying(self, judge: str | None) -> Operation:
        return VERIFY if judge is None else _on_devices(VERIFY, self.config.teacher[judge])

    def _verification(self) -> dict[str, Any]:
        """Everything that can change a verdict."""
        config = self.config
        teach = config.teach
        if teach.verify == "command":
            words = shlex.split(teach.command.run or "")
            files = [word for word in words if Path(word).is_file()]
            checksums = {word: self.checksums(Path(word)) for word in files}
            return {"verify": "command", **asdict(teach.command), "files": checksums}
        if teach.verify == "judge":
            assert teach.judge is not None
            return {"verify": "judge", "judge": self._identity(teach.judge)}
        pool = config.pool
        return {
            "verify": "answer",
            "grader": teach.grader,
            "format": pool.answer_format,
            "from": pool.answer_from,
        }


PROMPT_AND_SAMPLING = (
    *("temperature", "top_p", "top_k", "max_new_tokens", "logprobs", "system", "instruction", "thinking"),
    "tags",
)


def _named(kind: Kind, artifacts: Inputs) -> dict[str, Artifact]:
    """Artifacts of several teachers as inputs of a step."""
    return {f"{kind.name}:{name}": artifact for name, artifact in artifacts.items()}


def _on_devices(operation: Operation, teacher: Teacher) -> Operation:
    """The operation on the devices that a teacher needs. An endpoint needs none."""
    if not teacher.is_local:
        return replace(operation, processes="one", on_cpu=True)
    gpus = teacher.tensor_parallel
    return replace(operation, processes="sharing", gpus=lambda config: gpus, on_cpu=False)


def _label(config: Config) -> str:
    """The name of the questions' artifact: that of their file or dataset."""
    path = config.questions.path or "questions"
    return Path(path.rstrip("/")).name.split(".")[0] or "questions"
