"""The queue of shards: every shard is done once, the costliest first; what is lost or fails comes back."""

from hypothesis import given
from hypothesis import strategies as st

from lark.cluster.dispatch import SHARD_ATTEMPTS, SHARD_LOSSES, Dispatch
from lark.work.sharding import Shard

COSTS = st.lists(st.integers(1, 9), min_size=1, max_size=60)


def shards(costs: list[int]) -> list[Shard]:
    return [Shard(f"s{number}", cost=cost) for number, cost in enumerate(costs)]


@given(COSTS, st.integers(1, 9), st.booleans(), st.randoms())
def test_every_shard_is_done_once_whatever_is_lost_in_between(costs, workers, many, random):
    queue, done = Dispatch(shards(costs), many), []
    for _ in range(10_000):
        if not queue:
            break
        taken = queue.take(workers)
        assert taken
        if random.random() < 0.3 and max(queue.losses.values(), default=0) < SHARD_LOSSES - 1:
            assert queue.lost(taken) is None
        else:
            done += taken
    assert sorted(shard.name for shard in done) == sorted(shard.name for shard in shards(costs))


@given(COSTS)
def test_the_costliest_is_first(costs):
    queue = Dispatch(shards(costs))
    taken = [queue.take(3)[0].cost for _ in costs]
    assert taken == sorted(costs, reverse=True)


def test_shares_get_smaller_towards_the_end_and_a_failed_shard_is_alone():
    queue = Dispatch(shards([1] * 40), many=True)
    assert [len(queue.take(2)) for _ in range(4)] == [10, 8, 6, 4]
    share = queue.take(2)
    assert queue.failed(share) is None
    assert [len(queue.take(2)) for _ in share] == [1] * len(share)


def test_a_shard_that_fails_too_often_is_returned():
    queue = Dispatch(shards([1]))
    found = [queue.failed(queue.take(1)) for _ in range(SHARD_ATTEMPTS)]
    assert [shard and shard.name for shard in found] == [None] * (SHARD_ATTEMPTS - 1) + ["s0"]
    lost = [queue.lost(queue.take(1)) for _ in range(SHARD_LOSSES)]
    assert [shard and shard.name for shard in lost] == [None] * (SHARD_LOSSES - 1) + ["s0"]
