"""Parts that several steps of a plan share: the student's weights, the pool and its lengths."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from lark.config import Config, Student
from lark.config.pool import TAUGHT
from lark.models.students import CONVERTED, location, packaged_file, tokenizer_identity, weights_identity
from lark.pipeline.fingerprints import questions_part
from lark.pipeline.operations.pool import READ_POOL, pool_of
from lark.pipeline.operations.student import CONVERT
from lark.pipeline.teach_plan import TeachPlan
from lark.pool import trajectories as pools
from lark.pool.hygiene import FAULTS_VERSION
from lark.pool.identity import pool_identity
from lark.pool.noise import DAMAGE
from lark.pool.trajectory import VERDICTS_VERSION
from lark.scoring.own_method import method_of
from lark.scoring.sources import LENGTHS_TABLE, SOURCES
from lark.store.store import Artifact, Checksums, Kind
from lark.work.operation import Operation, Step


class PlanBase:
    """The configuration of a plan, and the artifacts that several of its steps share."""

    def __init__(
        self,
        config: Config,
        checksums: Checksums,
        elsewhere: bool,
        scoring: Callable[["PlanBase"], list[Step]],
    ) -> None:
        """`scoring`: the steps that score the pool of a base (operations/score.py), for heats of teaching."""
        self.config = config
        self.checksums = checksums
        self.conversions: list[Step] = []
        """Conversions of packaged models, collected while the plan is made."""
        self.name = f"{config.student.name}-{config.pool.label}"
        self.weights = self.weights_of(config.student)
        self.identity = weights_identity(config.student, checksums)
        self.scoring = scoring
        self.teaching = None
        if config.pool.format == TAUGHT:
            self.teaching = TeachPlan(config, checksums, self.weights_of, elsewhere, self._scored)
        self._add_pool(elsewhere)

    def _add_pool(self, elsewhere: bool, inputs: Mapping[str, Artifact] | None = None) -> None:
        """The pool and its lengths. `inputs`: what the pool of a heat is made of."""
        if inputs is None:
            inputs = {} if self.teaching is None else self.teaching.inputs
        self.pool = self._pool_artifact(elsewhere, inputs)
        tokenizer = tokenizer_identity(self.config.student, self.checksums)
        self.lengths = Artifact(LENGTHS_TABLE, self.name, tokenizer, {"pool": self.pool})
        self.pool_and_lengths = {table.kind.name: table for table in (self.pool, self.lengths)}

    def _scored(self, inputs: Mapping[str, Artifact], heat: int) -> tuple[list[Step], Mapping[str, Artifact]]:
        """The steps that make and score the pool of a heat, and the tables that the method needs."""
        base = copy(self)
        base.name = f"{self.name}-heat{heat}"
        base._add_pool(False, inputs)
        scoring = self.scoring(base)
        return [Step(READ_POOL, (base.pool,)), *scoring], base.method_tables(scoring)

    def method_tables(self, scoring: Sequence[Step]) -> dict[str, Artifact]:
        """The pool and the tables that the method reads: not those that scoring.tokens adds."""
        sources = method_of(self.config.method).needs
        kinds = {LENGTHS_TABLE, *(SOURCES[source].kind for source in sources)}
        tables = {"pool": self.pool}
        for step in scoring:
            tables |= {table.kind.name: table for table in step.artifacts if table.kind in kinds}
        return tables

    def _pool_artifact(self, elsewhere: bool, inputs: Mapping[str, Artifact]) -> Artifact:
        pool = pool_of(self.config)
        part = pool_identity(pool, self.checksums, elsewhere)
        if pool.correct_only or pool.labels == "vote":
            part["verdicts"] = VERDICTS_VERSION
        if pool.drop or pool.trim != "none":
            part["faults"] = FAULTS_VERSION
        if pool.noise_share:
            part["damage"] = DAMAGE
        if pool.decontaminate:
            tasks = self.config.benchmark.tasks
            part["benchmarks"] = {name: questions_part(name, task) for name, task in tasks.items()}
        return Artifact(pools.POOL_TABLE, pool.label, part, inputs)

    @property
    def pool_steps(self) -> list[Step]:
        """The steps that make the pool."""
        teaching = [] if self.teaching is None else self.teaching.steps
        return [*teaching, Step(READ_POOL, (self.pool,))]

    def weights_of(self, model: Student) -> str | Artifact:
        """Where a model's weights are. A packaged model is converted first."""
        file = packaged_file(model)
        if file is None:
            return location(model)
        for step in self.conversions:
            if step.weights == str(file):  # the student and the judge are the same model
                return step.artifacts[0]
        # A judge shares the folder of the student with the same path.
        name = model.name if model is self.config.student else model.path
        artifact = Artifact(CONVERTED, name, {"gguf": self.checksums(file)})
        self.conversions.append(Step(CONVERT, (artifact,), str(file)))
        return artifact

    def table(self, kind: Kind, part: dict[str, Any] | None = None) -> Artifact:
        """A table of the student's statistics of the pool. `part`: what it depends on beside the student."""
        return Artifact(kind, self.name, {**self.identity, **(part or {})}, self.pool_and_lengths)

    def student_pass(self, operation: Operation, *tables: Artifact) -> Step:
        """A pass of the student over the pool, which may make several tables at once."""
        labels = tuple(table.kind.name for table in tables)
        return Step(operation, tables, self.weights, labels)
