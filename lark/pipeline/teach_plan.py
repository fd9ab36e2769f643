"""The steps that make the pool of a run with teachers: questions, rollouts and verdicts of each teacher, and
the student's pass rates.
"""

import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lark.config import Config, Student
from lark.config.teacher import SELF, Teacher
from lark.models.students import weights_identity
from lark.pipeline.fingerprints import questions_part
from lark.pipeline.operations.teach import ASK, PASS_RATE, READ_QUESTIONS, VERIFY
from lark.pool.identity import source_identity
from lark.pool.mixing import named_after
from lark.store.store import Artifact, Checksums
from lark.teaching.pass_rates import PASS_RATES
from lark.teaching.question_files import QUESTIONS
from lark.teaching.rollouts import ROLLOUTS, in_order
from lark.teaching.verdicts import VERDICTS
from lark.work.operation import Operation, Step

WeightsOf = Callable[[Student], str | Artifact]


class TeachPlan:
    """The steps of the stage `teach`, and the artifacts that its pool is made of."""

    def __init__(self, config: Config, checksums: Checksums, weights_of: WeightsOf, elsewhere: bool) -> None:
        self.config = config
        self.checksums = checksums
        self.weights_of = weights_of
        self.steps: list[Step] = []
        self.rollouts: dict[str, Artifact] = {}
        self.verdicts: dict[str, Artifact] = {}
        self.pass_rates: Artifact | None = None
        self.questions = Artifact(QUESTIONS, _label(config), self._questions_part(elsewhere))
        self.steps.append(Step(READ_QUESTIONS, (self.questions,)))
        for name in in_order(config):
            self._add(name)

    @property
    def inputs(self) -> dict[str, Artifact]:
        """What the pool is made of."""
        inputs = {f"{ROLLOUTS.name}:{name}": artifact for name, artifact in self.rollouts.items()}
        inputs |= {f"{VERDICTS.name}:{name}": artifact for name, artifact in self.verdicts.items()}
        if self.pass_rates is not None:
            inputs[PASS_RATES.name] = self.pass_rates
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

    def _add(self, name: str) -> None:
        """The steps of one teacher."""
        config = self.config
        part = {"teacher": self._identity(name), "samples": config.teach.samples}
        inputs = {QUESTIONS.name: self.questions}
        if config.questions.pass_rate is not None and name != SELF:
            assert self.pass_rates is not None
            part["pass_rate"] = config.questions.pass_rate
            inputs[PASS_RATES.name] = self.pass_rates
        if config.teach.is_limited:
            part["limits"] = [config.teach.limit_tokens, config.teach.limit_money]
            inputs |= {f"{ROLLOUTS.name}:{other}": made for other, made in self.rollouts.items()}
        rollouts = Artifact(ROLLOUTS, name, part, inputs)
        self.rollouts[name] = rollouts
        ask = self._asking(name)
        self.steps.append(Step(ask, (rollouts,), self._weights(name), (name,), teacher=name))
        if config.teach.verify == "none":
            return
        verdicts = Artifact(VERDICTS, name, self._verification(), {ROLLOUTS.name: rollouts})
        self.verdicts[name] = verdicts
        judge = config.teach.judge if config.teach.verify == "judge" else None
        weights = self._weights(judge) if judge else ""
        self.steps.append(Step(self._verifying(judge), (verdicts,), weights, (name,), teacher=name))
        if name == SELF:
            self.pass_rates = Artifact(PASS_RATES, name, {}, {VERDICTS.name: verdicts})
            self.steps.append(Step(PASS_RATE, (self.pass_rates,)))

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
