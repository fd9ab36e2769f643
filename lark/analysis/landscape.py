"""Δρ(q) = ρ(q) - ρ(p) over the simplex of a question, on the plane of the path of q̂(B) (paper, Fig. 3a).

The plane goes through the prior p along the first two principal components of q̂(B) - p, B = 1..K-1. Many q
of the simplex project to the same point of it; the one that is drawn is the closest to p, i.e. with the
smallest χ²(q ‖ p). It is unique, and for any plane that contains g-hat it is q̂ itself along the path
(Lemma 3). In the PCA plane this holds approximately, so each point of the path has its own exact Δρ.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls
from scipy.spatial import ConvexHull

from lark.analysis import decay_rate as rates
from lark.analysis.checks import check_plane
from lark.analysis.questions import Question
from lark.scoring.learnability import Floats

STIFFNESS = 1e5
"""Weight of the constraints against the distance to p in `lift`: they hold to about its inverse square."""
SAMPLES = 20_000
"""Number of random weights, for the share of the simplex on which Δρ is positive."""


@dataclass(frozen=True)
class Landscape:
    """The data of one question's plot."""

    question_id: str
    grid_x: Floats
    grid_y: Floats
    gain: Floats
    """[n, n] Δρ on the grid; NaN outside the projected simplex."""
    path: pd.DataFrame
    """One row per budget: x, y, gain."""
    vertices: pd.DataFrame
    """One row per trajectory: x, y, gain, candidate_id, teacher."""
    explained: float
    """Share of the path's variance that the plane explains."""
    prior_rate: float
    """ρ(p)."""
    random_gain: Floats
    """Δρ of random weights, uniform on the simplex."""

    def facts(self) -> dict[str, float]:
        """The numbers of the caption."""
        return {
            "budgets": len(self.path),
            "budgets_with_gain": int((self.path["gain"] >= 0).sum()),
            "lowest_gain_on_path": float(self.path["gain"].min()),
            "largest_gain_on_path": float(self.path["gain"].max()),
            "largest_possible_gain": float(self.vertices["gain"].max()),
            "random_share_with_gain": float((self.random_gain > 0).mean()),
            "explained": self.explained,
            "prior_rate": self.prior_rate,
        }

    def table(self) -> pd.DataFrame:
        """All data of the plot as a tidy table: kind, budget or candidate, x, y, gain."""
        x, y = np.meshgrid(self.grid_x, self.grid_y)
        inside = np.isfinite(self.gain)
        grid = pd.DataFrame({"x": x[inside], "y": y[inside], "gain": self.gain[inside]})
        parts = {"path": self.path, "vertex": self.vertices, "grid": grid}
        table = pd.concat([part.assign(kind=kind) for kind, part in parts.items()], ignore_index=True)
        return table.assign(question_id=self.question_id)


def landscape(question: Question, resolution: int = 101, seed: int = 0) -> Landscape:
    """Δρ on a grid, along the path, at the vertices and at random weights."""
    K = question.K
    prior = rates.uniform(K)
    prior_rate = float(rates.rate(question.gram.gram, question.losses, prior))

    def gain(q: Floats) -> Floats:
        return np.asarray(rates.rate(question.gram.gram, question.losses, q) - prior_rate)

    path = rates.budget_path(question.surrogate)
    # Deviations from the prior, not from their mean: the plane must contain the prior.
    plane, explained = principal_plane(path - prior)
    corners = (np.eye(K) - prior) @ plane.T
    x = np.linspace(*_padded(corners[:, 0]), resolution)
    y = np.linspace(*_padded(corners[:, 1]), resolution)
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    inside = _inside(corners, points)
    grid = np.full(len(points), np.nan)
    grid[inside] = gain(np.array([lift(plane, point) for point in points[inside]]))
    walked = (path - prior) @ plane.T
    steps = {"budget": range(1, K), "x": walked[:, 0], "y": walked[:, 1], "gain": gain(path)}
    vertices = {
        "candidate_id": question.table["candidate_id"],
        "teacher": question.table["teacher"],
        "x": corners[:, 0],
        "y": corners[:, 1],
        "gain": rates.single_rates(question.gram.gram, question.losses) - prior_rate,
    }
    return Landscape(
        question.question_id,
        x,
        y,
        grid.reshape(resolution, resolution),
        pd.DataFrame(steps),
        pd.DataFrame(vertices),
        explained,
        prior_rate,
        gain(np.random.default_rng(seed).dirichlet(np.ones(K), SAMPLES)),
    )


def path_gains(question: Question) -> pd.DataFrame:
    """Δρ(q̂(B)) and Δρ/ρ(p) for B = 1..K-1."""
    G = question.gram.gram
    prior_rate = float(rates.rate(G, question.losses, rates.uniform(question.K)))
    gain = rates.rate(G, question.losses, rates.budget_path(question.surrogate)) - prior_rate
    columns = {"budget": range(1, question.K), "gain": gain, "relative_gain": gain / prior_rate}
    return pd.DataFrame({"question_id": question.question_id, **columns})


def principal_plane(deviations: Floats) -> tuple[Floats, float]:
    """[2, K] an orthonormal basis of the plane of most variance of deviations from p [n, K], and its share.

    Signs are fixed (the largest entry of each axis is positive), so that the same question gives the same
    picture anywhere.
    """
    _, singular, axes = np.linalg.svd(deviations, full_matrices=False)
    check_plane(int((singular > 1e-9 * singular[0]).sum()))
    plane = axes[:2]
    signs = np.sign(plane[np.arange(2), np.abs(plane).argmax(axis=1)])
    return plane * signs[:, None], float((singular[:2] ** 2).sum() / (singular**2).sum())


def lift(plane: Floats, point: Floats) -> Floats:
    """The q of the simplex that projects to `point` and is closest to p: least squares with q ≥ 0."""
    K = plane.shape[1]
    prior = rates.uniform(K)
    constraints = np.concatenate([plane, np.ones((1, K))])
    targets = np.array([*(plane @ prior + point), 1.0])
    # Non-negative least squares knows no equalities: they are rows with a large weight.
    matrix = np.concatenate([np.eye(K), STIFFNESS * constraints])
    q, _ = nnls(matrix, np.concatenate([prior, STIFFNESS * targets]))
    return np.asarray(q / q.sum())


def _padded(values: Floats) -> tuple[float, float]:
    margin = 0.04 * float(np.ptp(values))
    return float(values.min()) - margin, float(values.max()) + margin


def _inside(corners: Floats, points: Floats) -> np.ndarray:
    """A mask of the points inside the projected simplex, the convex hull of its projected vertices."""
    # A point is inside if no facet's half-plane excludes it, up to rounding.
    facets = ConvexHull(corners).equations
    return np.asarray((points @ facets[:, :2].T + facets[:, 2] <= 1e-12).all(axis=1))
