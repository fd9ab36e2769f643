"""The processes of the gradient passes: `gram` sketches gradients from a forward pass alone, `exact` with a
backward pass.

Both need all candidates of a question together, so shards consist of whole questions. What is kept of a
question is each candidate's g*, from the Gram matrix of the sketches, and its gradient's norm; of `exact`
also a short vector of each gradient, if a method compares gradients of different questions (method=less).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from tqdm import tqdm

from lark.config import Config
from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.load import load_chat
from lark.models.recompute import recompute_activations
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.pool.trajectory import Trajectory
from lark.scoring import influence as influences
from lark.scoring.by_question import Floats
from lark.scoring.forward import LoadedStudent, batches
from lark.scoring.gradient_sketches import BackwardSketcher, ForwardSketcher, Sketcher, TrajectoryGradient
from lark.scoring.influence import cosines, directions, held_out_cosines
from lark.scoring.learnability import exact_score
from lark.scoring.pool_pass import Advance, Content, Rows, id_table, naming, pass_over
from lark.scoring.shards import SKETCH_BYTES, Shards
from lark.scoring.sketches import Fold, Sizes
from lark.scoring.sources import EXACT_TABLE, FEATURES_TABLE, GRAM_TABLE, INFLUENCE_TABLE
from lark.store.store import atomic
from lark.work.devices import start_torch
from lark.work.operation import Job
from lark.work.sharding import Work, in_shards


@in_shards
def gram(job: Job) -> Work:
    """g* from sketches of a forward pass (method=lark_gram)."""
    cut = Shards.by_question(job.inputs["lengths"], job.config.scoring.shard_tokens)
    return pass_over(
        job, cut, "scoring", lambda student: GradientScorer(forward_sketcher(student, job.config), job)
    )


@in_shards
def exact(job: Job) -> Work:
    """g* from sketches of a forward and a backward pass (method=lark_exact and others)."""
    cut = Shards.by_question(job.inputs["lengths"], job.config.scoring.shard_tokens)

    def scorer(student: LoadedStudent) -> GradientScorer:
        return GradientScorer(backward_sketcher(student, job.config), job)

    return pass_over(job, cut, "sketching gradients", scorer, gradients=True)


def forward_sketcher(student: LoadedStudent, config: Config) -> ForwardSketcher:
    sketch = config.sketch
    return ForwardSketcher(
        student, Sizes(sketch.gram, sketch.gram), Sizes(sketch.words, sketch.states), sketch.seed
    )


def backward_sketcher(student: LoadedStudent, config: Config) -> BackwardSketcher:
    """On a GPU, activations are recomputed."""
    sketch = config.sketch
    if student.head.weight.is_cuda:
        recompute_activations(student.model)
    return BackwardSketcher(
        student, Sizes(sketch.exact, sketch.exact), Sizes(sketch.words, sketch.states), sketch.seed
    )


@dataclass(frozen=True)
class Candidates:
    """The gradients of a question's candidates, as their Gram matrix."""

    layers: Floats
    """[K, K] Inner products over the output projections."""
    head: Floats
    """[K, K] Over the head."""
    losses: Floats

    @classmethod
    def of(cls, gradients: Sequence[TrajectoryGradient]) -> "Candidates":
        layers, head = (_inner(gradients, part) for part in ("layers", "head"))
        return cls(layers, head, np.array([g.loss for g in gradients]))

    @property
    def gram(self) -> Floats:
        return self.layers + self.head

    @property
    def g_star(self) -> Floats:
        return exact_score(self.gram, self.losses)

    @property
    def norms(self) -> Floats:
        """||∇ℓ_k||."""
        return np.sqrt(np.diagonal(self.gram))


def _inner(gradients: Sequence[TrajectoryGradient], part: str) -> Floats:
    stacked = torch.stack([getattr(g, part) for g in gradients]).double()
    return np.asarray((stacked @ stacked.T).cpu().numpy())


class GradientScorer:
    """Scores the rows of a shard, which are whole questions: a `ShardScorer`."""

    def __init__(self, sketcher: Sketcher, job: Job) -> None:
        self.sketcher, self.outputs = sketcher, set(job.outputs)
        backward = isinstance(sketcher, BackwardSketcher)
        self.budget = job.config.hardware.train_tokens if backward else job.config.hardware.score_tokens
        self.fold = feature_fold(sketcher, job.config)

    def __call__(self, rows: Rows, encoded: Sequence[Encoded], advance: Advance) -> dict[str, Content]:
        g_star, norm = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        nll: dict[int, float] = {}
        features: dict[int, bytes] = {}
        for questions in self._together(rows, encoded):
            usable = [i for question in questions for i in question]
            found = self._gradients(rows, encoded, usable, advance)
            for question in questions:
                candidates = Candidates.of([found[i] for i in question])
                if not (np.isfinite(candidates.gram).all() and np.isfinite(candidates.losses).all()):
                    name = rows[question[0]]["question_id"]
                    raise LarkError(
                        f"A gradient of question {name} is not finite: check the student's weights."
                    )
                g_star[question], norm[question] = candidates.g_star, candidates.norms
            nll |= {i: gradient.nll for i, gradient in found.items()}
            if FEATURES_TABLE.name in self.outputs:
                features |= {i: feature(gradient, self.fold) for i, gradient in found.items()}
        losses = [nll.get(i, np.nan) for i in range(len(rows))]
        scored = id_table(rows, encoded, nll=losses, gradient_norm=norm)
        empty = bytes(2 * self.fold.kept)
        vectors = id_table(
            rows, encoded, gradient_norm=norm, feature=[features.get(i, empty) for i in range(len(rows))]
        )
        return {
            GRAM_TABLE.name: pa.Table.from_pandas(scored.assign(g_gram=g_star), preserve_index=False),
            EXACT_TABLE.name: pa.Table.from_pandas(scored.assign(g_exact=g_star), preserve_index=False),
            FEATURES_TABLE.name: pa.Table.from_pandas(vectors, preserve_index=False),
        }

    def _together(self, rows: Rows, encoded: Sequence[Encoded]) -> Iterator[list[list[int]]]:
        """Indices of the candidates with a response of each question, for several questions whose sketches
        fit into memory.
        """
        most = max(1, SKETCH_BYTES // (4 * self.sketcher.numbers))
        group: list[list[int]] = []
        for _, each in groupby(range(len(rows)), key=lambda i: rows[i]["question_id"]):
            question = [i for i in each if encoded[i].n_response > 0]
            if group and sum(map(len, group)) + len(question) > most:
                yield group
                group = []
            if question:
                group.append(question)
        if group:
            yield group

    def _gradients(
        self, rows: Rows, encoded: Sequence[Encoded], usable: list[int], advance: Advance
    ) -> dict[int, TrajectoryGradient]:
        found: dict[int, TrajectoryGradient] = {}
        padded = not self.sketcher.student.packs
        for batch in batches([len(encoded[i].ids) for i in usable], self.budget, padded):
            chosen = [usable[i] for i in batch]
            with naming(rows, chosen):
                found |= zip(chosen, self.sketcher([encoded[i] for i in chosen]), strict=True)
            advance(sum(len(encoded[i].ids) for i in chosen))
        return found


def feature_fold(sketcher: Sketcher, config: Config) -> Fold:
    """The map from a sketched gradient to its short vector."""
    device = sketcher.student.head.weight.device
    return Fold.of(config.sketch.seed, "features", sketcher.numbers, config.sketch.features, device)


def feature(gradient: TrajectoryGradient, fold: Fold) -> bytes:
    """A short vector with the gradient's direction: length 1, in half precision. Inner products estimate
    cosines.
    """
    vector = fold(torch.cat([gradient.layers, gradient.head])[None])[0]
    return (vector / vector.norm().clamp_min(1e-30)).half().cpu().numpy().tobytes()


def influence(job: Job) -> dict[str, Any]:
    """The cosine of every trajectory's gradient with that of the validation set: `influence.parquet`
    (method=less).
    """
    table = pd.read_parquet(job.inputs[FEATURES_TABLE.name] / FEATURES_TABLE.file)
    vectors, norms = directions(table["feature"]), table["gradient_norm"].to_numpy()
    if job.config.method.validation.path is None:
        codes = pd.factorize(table["question_id"])[0].astype(np.int64)
        chosen = _validation_rows(job, table)
        found, count = held_out_cosines(vectors, norms, codes, chosen), len(chosen)
    else:
        target, count = _validation_gradient(job)
        found = cosines(vectors, target)
    scored = table[[*KEY, "n_tokens", "truncated"]].assign(influence=found)
    with atomic(job.folder / INFLUENCE_TABLE.file) as draft:
        scored.to_parquet(draft, index=False)
    return {"trajectories": len(scored), "validation_trajectories": count}


def _validation_rows(job: Job, table: pd.DataFrame) -> np.ndarray:
    """Rows of the table whose trajectories are the validation set: of a sample of the pool's questions."""
    asked = job.config.method.validation
    names = set(influences.sample(table["question_id"], asked.questions, asked.seed))
    rows = pools.iterate(
        job.inputs["pool"] / pools.FILE, columns=[field.name for field in fields(Trajectory)]
    )
    kept = influences.correct_or_all(
        [Trajectory(**row) for row in rows if row["question_id"] in names], job.config.pool
    )
    keys = {(trajectory.question_id, trajectory.candidate_id) for trajectory in kept}
    return np.flatnonzero([key in keys for key in table[KEY].itertuples(index=False, name=None)])


def _validation_gradient(job: Job) -> tuple[Floats, int]:
    """The mean gradient of the trajectories in `method.validation.path`, as a short vector, and their
    number.
    """
    asked, config = job.config.method.validation, job.config
    kept = influences.validation_set(config)
    chat = load_chat(job.weights, config.student, config.pool.turns == "last")
    encoded = [
        e for e in chat.encode_many([asdict(t) for t in kept], config.student.max_length) if e.n_response > 0
    ]
    if not encoded:
        raise LarkError(
            f"method.validation.path={asked.path}: no trajectory is left to compare with, because the prompts"
            " of all of them are longer than student.max_length. Give other trajectories."
        )
    student = LoadedStudent.load(job.weights, config.student, start_torch(job), gradients=True)
    sketcher = backward_sketcher(student, config)
    fold, total = feature_fold(sketcher, config), np.zeros(1)
    with tqdm(total=len(encoded), desc="gradients of the validation set", unit="traj") as bar:
        for batch in batches(
            [len(e.ids) for e in encoded], config.hardware.train_tokens, padded=not student.packs
        ):
            for gradient in sketcher([encoded[i] for i in batch]):
                total = (
                    total + fold(torch.cat([gradient.layers, gradient.head])[None])[0].double().cpu().numpy()
                )
            bar.update(len(batch))
    return total / len(encoded), len(encoded)
