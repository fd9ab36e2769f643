"""The processes of the gradient passes: `gram` sketches gradients from a forward pass alone, `exact` with a
backward pass.

Both need all candidates of a question together, so shards consist of whole questions. The tables have each
candidate's g*, from the Gram matrix of the sketches, and its gradient's norm; `exact` also writes a short
vector of each gradient if a method compares gradients of different questions (method=less).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from lark.config import Config
from lark.models.chat import Encoded
from lark.models.load import load_chat
from lark.models.recompute import recompute_activations
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.pool.trajectory import Trajectory
from lark.scoring import influence as influences
from lark.scoring.by_question import Floats
from lark.scoring.checks import check_any_response, check_finite
from lark.scoring.correctness import TRAJECTORY_COLUMNS
from lark.scoring.forward import LoadedStudent, batches
from lark.scoring.gradient_sketches import BackwardSketcher, ForwardSketcher, Sketcher, TrajectoryGradient
from lark.scoring.influence import cosines, directions, held_out_cosines
from lark.scoring.learnability import exact_score
from lark.scoring.pass_sizes import job_tokens
from lark.scoring.pool_pass import Advance, Content, Rows, as_arrow, id_table, in_batches, naming, pass_over
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
    return _sketching(job, forward_sketcher, "scoring")


@in_shards
def exact(job: Job) -> Work:
    """g* from sketches of a forward and a backward pass (method=lark_exact and others)."""
    return _sketching(job, backward_sketcher, "sketching gradients", gradients=True)


def _sketching(
    job: Job, sketcher: Callable[[LoadedStudent, Config], Sketcher], label: str, gradients: bool = False
) -> Work:
    cut = Shards.by_question(job.inputs["lengths"], job.config.scoring.shard_tokens)

    def scorer(student: LoadedStudent) -> GradientScorer:
        return GradientScorer(sketcher(student, job.config), job)

    return pass_over(job, cut, label, scorer, gradients=gradients)


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
        layers = _inner([g.layers for g in gradients])
        head = _inner([g.head for g in gradients])
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


def _inner(gradients: list[Tensor]) -> Floats:
    stacked = torch.stack(gradients).double()
    return np.asarray((stacked @ stacked.T).cpu().numpy())


class GradientScorer:
    """Scores the rows of a shard, which are whole questions: a `ShardScorer`."""

    def __init__(self, sketcher: Sketcher, job: Job) -> None:
        self.sketcher = sketcher
        self.outputs = set(job.outputs)
        backward = isinstance(sketcher, BackwardSketcher)
        tokens = job.config.hardware.train_tokens
        self.budget = tokens if backward else job_tokens(job, job.config.student)
        self.fold = feature_fold(sketcher, job.config)

    def __call__(self, rows: Rows, encoded: Sequence[Encoded], advance: Advance) -> dict[str, Content]:
        g_star = np.full(len(rows), np.nan)
        norm = np.full(len(rows), np.nan)
        nll = np.full(len(rows), np.nan)
        features = [bytes(2 * self.fold.kept)] * len(rows)
        for questions in self._together(rows, encoded):
            gradients = self._gradients(rows, encoded, list(chain.from_iterable(questions)), advance)
            for question in questions:
                candidates = Candidates.of([gradients[row] for row in question])
                check_finite(rows[question[0]]["question_id"], candidates.gram, candidates.losses)
                g_star[question] = candidates.g_star
                norm[question] = candidates.norms
            for row, gradient in gradients.items():
                nll[row] = gradient.nll
                if FEATURES_TABLE.name in self.outputs:
                    features[row] = feature(gradient, self.fold)
        scored = id_table(rows, encoded, nll=nll, gradient_norm=norm)
        return {
            GRAM_TABLE.name: as_arrow(scored.assign(g_gram=g_star)),
            EXACT_TABLE.name: as_arrow(scored.assign(g_exact=g_star)),
            FEATURES_TABLE.name: as_arrow(id_table(rows, encoded, gradient_norm=norm, feature=features)),
        }

    def _together(self, rows: Rows, encoded: Sequence[Encoded]) -> Iterator[list[list[int]]]:
        """Rows of the candidates with a response of each question, for several questions whose sketches fit
        into memory.
        """
        most = max(1, SKETCH_BYTES // (4 * self.sketcher.numbers))
        group: list[list[int]] = []
        for _, candidates in groupby(range(len(rows)), key=lambda row: rows[row]["question_id"]):
            question = [row for row in candidates if encoded[row].n_response > 0]
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
        gradients: dict[int, TrajectoryGradient] = {}
        for batch in in_batches(self.sketcher.student, encoded, usable, self.budget, advance):
            with naming(rows, batch):
                gradients |= zip(batch, self.sketcher([encoded[row] for row in batch]), strict=True)
        return gradients


def feature_fold(sketcher: Sketcher, config: Config) -> Fold:
    """The map from a sketched gradient to its short vector."""
    device = sketcher.student.head.weight.device
    return Fold.of(config.sketch.seed, "features", sketcher.numbers, config.sketch.features, device)


def folded(gradient: TrajectoryGradient, fold: Fold) -> Tensor:
    """A gradient as a short vector."""
    return fold(torch.cat([gradient.layers, gradient.head])[None])[0]


def feature(gradient: TrajectoryGradient, fold: Fold) -> bytes:
    """A short vector with the gradient's direction: length 1, in half precision. Inner products estimate
    cosines.
    """
    vector = folded(gradient, fold)
    # The norm is stored apart, in full precision: in half precision, that of a gradient may overflow.
    return (vector / vector.norm().clamp_min(1e-30)).half().cpu().numpy().tobytes()


def influence(job: Job) -> dict[str, Any]:
    """The cosine of every trajectory's gradient with that of the validation set: `influence.parquet`
    (method=less).
    """
    table = pd.read_parquet(job.inputs[FEATURES_TABLE.name] / FEATURES_TABLE.file)
    vectors = directions(table["feature"])
    if job.config.method.validation.path is None:
        codes = pd.factorize(table["question_id"])[0].astype(np.int64)
        validation = _validation_rows(job, table)
        count = len(validation)
        similarity = held_out_cosines(vectors, table["gradient_norm"].to_numpy(), codes, validation)
    else:
        target, count = _validation_gradient(job)
        similarity = cosines(vectors, target)
    scored = table[[*KEY, "n_tokens", "truncated"]].assign(influence=similarity)
    with atomic(job.folder / INFLUENCE_TABLE.file) as draft:
        scored.to_parquet(draft, index=False)
    return {"trajectories": len(scored), "validation_trajectories": count}


def _validation_rows(job: Job, table: pd.DataFrame) -> np.ndarray:
    """Rows of the table whose trajectories are the validation set: of a sample of the pool's questions."""
    settings = job.config.method.validation
    questions = set(influences.sample(table["question_id"], settings.questions, settings.seed))
    rows = pools.iterate(job.inputs["pool"] / pools.FILE, columns=TRAJECTORY_COLUMNS)
    sampled = [Trajectory(**row) for row in rows if row["question_id"] in questions]
    validation = influences.correct_or_all(sampled, job.config.pool)
    keys = {(trajectory.question_id, trajectory.candidate_id) for trajectory in validation}
    return np.flatnonzero([key in keys for key in table[KEY].itertuples(index=False, name=None)])


def _validation_gradient(job: Job) -> tuple[Floats, int]:
    """The mean gradient of the trajectories in `method.validation.path`, as a short vector, and their
    number.
    """
    config = job.config
    rows = [asdict(trajectory) for trajectory in influences.validation_set(config)]
    chat = load_chat(job.weights, config.student, config.pool.turns == "last")
    encoded = [e for e in chat.encode_many(rows, config.student.max_length) if e.n_response > 0]
    check_any_response(encoded, config.method.validation.path)
    student = LoadedStudent.load(job.weights, config.student, start_torch(job), gradients=True)
    sketcher = backward_sketcher(student, config)
    fold = feature_fold(sketcher, config)
    total = np.zeros(1)
    lengths = [len(e.ids) for e in encoded]
    with tqdm(total=len(encoded), desc="gradients of the validation set", unit="traj") as bar:
        for batch in batches(lengths, config.hardware.train_tokens, padded=not student.packs):
            for gradient in sketcher([encoded[index] for index in batch]):
                total = total + folded(gradient, fold).double().cpu().numpy()
            bar.update(len(batch))
    return total / len(encoded), len(encoded)
