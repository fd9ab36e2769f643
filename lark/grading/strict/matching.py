"""Compare two sequences item by item, in order or in any order."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def same_in_order(ours: Sequence[T], theirs: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def same_in_any_order(ours: Sequence[T], theirs: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    """True if the items are the same in some order, each as often as on the other side."""
    remaining = list(theirs)
    for item in ours:
        partner = next((i for i, other in enumerate(remaining) if same(item, other)), None)
        if partner is None:
            return False
        del remaining[partner]
    return not remaining
