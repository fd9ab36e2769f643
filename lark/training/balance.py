"""Distribute the packs of a global batch so that processes wait little for each other. Pure functions.

With ZeRO every backward pass is a collective, so in each micro-step all processes wait for the costliest
pack. Cost is not tokens: attention is quadratic, and a pack with one long trajectory costs more than a pack
with as many tokens in short ones. With the length c at which attention costs as much as everything else,

    cost of a trajectory of n tokens = n + n²/c.

Only the distribution over processes and micro-steps changes. The global batch is given.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lark.models.shapes import Shape

ATTENTION_RATE = 0.8
"""Operations per second of attention relative to those of matrix products. FlashAttention-2 reaches about 185
TFLOP/s on an A100, large products in bf16 about 235.
"""
ATTENTION_BACKWARD = 2.5
"""FLOPs of FlashAttention's backward pass relative to its forward pass: five products of [n, n] and [n, d]
instead of two, because the scores are not stored but computed again.
"""
MICRO_STEP = 800.0
"""Cost of one more micro-step in tokens: gradients are reduced once more. On 8 A100 with NVLink that takes
about 0.25 s for a 7B student, as long as 800 of its tokens, and both are proportional to its size.
"""
EXTRA_STEPS = 2
"""Micro-steps that are tried in addition to the fewest. With more, each holds more similar lengths."""
MOST_EXCHANGES = 8
"""Exchanges between packs after the first distribution. Later ones hardly improve it."""

Groups = list[list[int]]
"""The packs of one micro-step, one per process, as indices of trajectories. Some may be empty."""


def crossover(shape: Shape, recompute: float, frozen: bool) -> float:
    """The length c in tokens at which attention costs as much in training as everything else.

    Per token of a trajectory of n tokens, with f = 1 for the forward pass, b for the backward pass and r for
    the share of the layers that the backward pass computes again (`recompute`, gradient checkpointing):

        matrices   2 · P_layers · (f + b + r) + 2 · P_head · (f + b)           b = 2; 1 if weights are frozen
        attention  2 · layers · heads · head_size · n · (f + 2.5 + r) / 0.8    causal, so half of 4 · … · n

    c is the n at which the two are equal: 49,000 for qwen7b, 24,500 for qwen1.5b (with r = 1).
    """
    backward = 1.0 if frozen else 2.0
    matrices = shape.backbone_matrices * (1 + backward + recompute) + shape.head * (1 + backward)
    attention = shape.layers * shape.attention_width * (1 + ATTENTION_BACKWARD + recompute)
    return ATTENTION_RATE * matrices / attention


def trajectory_cost(length: int, crossover: float) -> float:
    """The cost of a trajectory, in tokens of a short one."""
    return length + length**2 / crossover


@dataclass
class _Pack:
    """One process's part of a micro-step."""

    members: list[int] = field(default_factory=list)
    tokens: int = 0
    cost: float = 0.0

    @classmethod
    def of(cls, members: Sequence[int], work: "_Work") -> "_Pack":
        pack = cls()
        for member in members:
            pack.change(member, None, work)
        return pack

    def change(self, joining: int | None, leaving: int | None, work: "_Work") -> None:
        """Add one trajectory and remove another."""
        if joining is not None:
            self.members.append(joining)
            self.tokens += work.lengths[joining]
            self.cost += work.costs[joining]
        if leaving is not None:
            self.members.remove(leaving)
            self.tokens -= work.lengths[leaving]
            self.cost -= work.costs[leaving]


_Plan = list[list[_Pack]]
"""The packs of each micro-step."""


@dataclass(frozen=True)
class _Work:
    """The trajectories of a global batch, and the packs that they have to go into."""

    lengths: Sequence[int]
    costs: Sequence[float]
    processes: int
    capacity: int


def balanced(
    lengths: Sequence[int], start: Sequence[Groups], capacity: int, crossover: float
) -> list[Groups]:
    """Packs of at most `capacity` tokens by micro-step, costliest first, for as many processes as in `start`.

    `start`: packs by micro-step, as few as possible. Of these and of new ones in as many micro-steps, or up
    to EXTRA_STEPS more, those with the least Σ_k max_r cost are chosen and improved. Micro-steps have a cost
    of their own.
    """
    costs = [trajectory_cost(length, crossover) for length in lengths]
    work = _Work(lengths, costs, len(start[0]), capacity)
    plans: list[_Plan] = [[[_Pack.of(group, work) for group in groups] for groups in start]]
    for steps in range(len(start), len(start) + EXTRA_STEPS + 1):
        plan = _filled(work, steps)
        if plan is not None:
            plans.append(plan)
    best = min(plans, key=_plan_cost)
    for _ in range(MOST_EXCHANGES):
        if not _exchange(best, work):
            break
    return _costliest_first(best)


def groups_cost(plan: Sequence[Groups], costs: Sequence[float]) -> float:
    """Σ_k max_r of the packs' costs: the time of a global batch, without the micro-steps' own cost."""
    return sum(max(sum(costs[i] for i in group) for group in groups) for groups in plan)


def _plan_cost(plan: _Plan) -> float:
    return sum(MICRO_STEP + _peak(packs) for packs in plan)


def _peak(packs: list[_Pack]) -> float:
    return max(pack.cost for pack in packs)


def _filled(work: _Work, steps: int) -> _Plan | None:
    """`steps` micro-steps: the longest trajectory first, each where it raises Σ_k max_r cost least.

    None if a trajectory fits nowhere.
    """
    # Ascending by cost, so that the candidates of each micro-step are next to each other.
    plan: _Plan = [[_Pack() for _ in range(work.processes)] for _ in range(steps)]
    for index in sorted(range(len(work.lengths)), key=lambda i: (-work.lengths[i], i)):
        places = []
        for step, packs in enumerate(plan):
            place = _place(packs, index, work)
            if place is not None:
                places.append((*place, step))
        if not places:
            return None
        _, _, number, step = min(places)
        pack = plan[step].pop(number)
        pack.change(index, None, work)
        insort(plan[step], pack, key=_cost)
    return plan


def _place(packs: list[_Pack], index: int, work: _Work) -> tuple[float, float, int] | None:
    """The best pack of a micro-step for a trajectory: (increase of the peak, distance to it, place).

    If there is room below the peak, the costliest pack with such room: the room of others stays whole. If
    not, the cheapest pack. None if there is room for its tokens nowhere. `packs`: ascending by cost.
    """
    most_tokens = work.capacity - work.lengths[index]
    cost = work.costs[index]
    peak = packs[-1].cost
    below = bisect_right(packs, peak - cost, key=_cost)
    for place in range(below - 1, -1, -1):
        if packs[place].tokens <= most_tokens:
            return 0.0, peak - packs[place].cost - cost, place
    for place in range(below, len(packs)):
        if packs[place].tokens <= most_tokens:
            increase = packs[place].cost + cost - peak
            return increase, increase, place
    return None


def _cost(pack: _Pack) -> float:
    return pack.cost


def _exchange(plan: _Plan, work: _Work) -> bool:
    """Make the best exchange of a trajectory in a micro-step's costliest pack for a cheaper one elsewhere, or
    for none. False if none lowers Σ_k max_r cost.
    """
    peaks = [_peak(packs) for packs in plan]
    most = 1e-6  # less is rounding
    best: tuple[_Pack, int, _Pack, int | None] | None = None
    for step, packs in enumerate(plan):
        ordered = sorted(packs, key=_cost)
        costliest = ordered[-1]
        second = ordered[-2].cost if len(ordered) > 1 else 0.0
        for index in costliest.members:
            for other_step, pack, partner in _partners(plan, costliest, index, work):
                moved = work.costs[index] - (0.0 if partner is None else work.costs[partner])
                raised = pack.cost + moved
                lowered = max(second, costliest.cost - moved)
                if other_step == step:
                    gain = peaks[step] - max(lowered, raised)
                else:
                    gain = peaks[step] - lowered - max(0.0, raised - peaks[other_step])
                if gain > most:
                    most = gain
                    best = (costliest, index, pack, partner)
    if best is None:
        return False
    costliest, index, pack, partner = best
    costliest.change(partner, index, work)
    pack.change(index, partner, work)
    return True


def _partners(
    plan: _Plan, costliest: _Pack, index: int, work: _Work
) -> Iterator[tuple[int, _Pack, int | None]]:
    """Shorter trajectories for which one can be exchanged, or None: (micro-step, pack, trajectory)."""
    length = work.lengths[index]
    for step, packs in enumerate(plan):
        for pack in packs:
            if pack is costliest:
                continue
            excess = pack.tokens + length - work.capacity
            if excess <= 0:
                yield step, pack, None
            for partner in pack.members:
                if excess <= work.lengths[partner] < length:
                    yield step, pack, partner


def _costliest_first(plan: _Plan) -> list[Groups]:
    """Micro-steps and their packs by cost: if the memory is not enough, it shows at once."""

    def order(pack: _Pack) -> tuple[float, list[int]]:
        """Sorts the costliest first, and packs of equal cost by their trajectories."""
        return -pack.cost, pack.members

    ordered = [sorted(packs, key=order) for packs in plan]
    ordered.sort(key=lambda packs: [order(pack) for pack in packs])
    return [[pack.members for pack in packs] for packs in ordered]
