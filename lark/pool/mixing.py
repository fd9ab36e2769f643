"""The sources of a mixed pool: how many questions each gives, and errors that name it.

Other pools have one source, without a name.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, fields
from fractions import Fraction
from math import ceil, floor

from lark import config as conf
from lark.config import Source
from lark.errors import LarkError
from lark.pool.cleaning import kept_by

SETTING = re.compile(rf"\bpool\.({'|'.join(field.name for field in fields(Source))})\b")
"""Settings of a pool that each source of a mixed pool has itself."""


def members(pool: conf.Pool) -> dict[str, conf.Pool]:
    """The sources of a mixed pool, each as a pool of its own."""
    shared = {**asdict(pool), "questions": None, "ids": [], "mix": {}}
    pools: dict[str, conf.Pool] = {}
    for name, source in pool.mix.items():
        settings = asdict(source)
        del settings["share"]
        pools[name] = conf.Pool(**{**shared, **settings, "name": name})
    return pools


def naming(source: str) -> AbstractContextManager[None]:
    """Let errors name a source and its settings: pool.mix.math.path instead of pool.path."""
    key = f"pool.mix.{source}"
    return named_after(key, f"{key}: ")


@contextmanager
def named_after(key: str, prefix: str = "") -> Iterator[None]:
    """Let errors name the settings below `key` instead of `pool`. `prefix`: begins errors that do not."""
    try:
        yield
    except LarkError as error:
        text = SETTING.sub(lambda match: f"{key}.{match[1]}", str(error))
        raise LarkError(text if text.startswith(key) else f"{prefix}{text}") from error


def quotas(sizes: Mapping[str, int], pool: conf.Pool) -> dict[str, int]:
    """Questions to take from each source, given how many it has: in proportion to the shares, with the
    largest remainders rounded up. Shares are exact fractions, so neither rounding nor overflow of floats
    decides.
    """
    for name, size in sizes.items():
        _check_not_empty(name, size, pool)
    shares = {name: Fraction(str(source.share)) for name, source in pool.mix.items()} or {"": Fraction(1)}
    total = sum(shares.values())
    count = pool.questions or floor(min(size * total / shares[name] for name, size in sizes.items()))
    exact = {name: count * share / total for name, share in shares.items()}
    taken = {name: floor(value) for name, value in exact.items()}
    # `sorted` keeps the order of equal remainders, so the same settings always take the same questions.
    by_remainder = sorted(exact, key=lambda name: taken[name] - exact[name])
    for name in by_remainder[: count - sum(taken.values())]:
        taken[name] += 1
    for name, quota in taken.items():
        _check_enough(name, quota, sizes[name], pool)
        if quota == 0:
            raise _none_taken(name, count, shares, sizes, pool)
    return taken


def _check_not_empty(name: str, size: int, pool: conf.Pool) -> None:
    if size:
        return
    place = f"pool.mix.{name}" if name else f"pool.path={pool.path}"
    remedies = ["Add trajectories"]
    if kept_by(pool):
        remedies.append("change the filters")
    if name:
        remedies.append("leave the source out")
    raise LarkError(f"{place} has no question{kept_by(pool)}. {' or '.join(remedies)}.")


def _check_enough(name: str, quota: int, size: int, pool: conf.Pool) -> None:
    if size >= quota:
        return
    place = f"the {quota} of pool.mix.{name}, but it" if name else f"but {pool.path}"
    otherwise = "as many as the shares allow" if name else "all"
    raise LarkError(
        f"pool.questions={pool.questions}, {place} has only {size}{kept_by(pool)}: use fewer, or null for"
        f" {otherwise}."
    )


def _none_taken(
    name: str, count: int, shares: Mapping[str, Fraction], sizes: Mapping[str, int], pool: conf.Pool
) -> LarkError:
    """A source whose share is less than a question. The advice names only a number of questions that the
    sources have.
    """
    total = sum(shares.values())
    enough = ceil(total / shares[name])
    has_enough = all(enough * share / total <= sizes[other] for other, share in shares.items())
    more = f", set pool.questions={enough} or more" if pool.questions and has_enough else ""
    return LarkError(
        f"pool.mix.{name} would give none of the {count} questions: with a share of {pool.mix[name].share:g},"
        f" its part is less than one question. Set a larger pool.mix.{name}.share{more}, or leave the source"
        " out."
    )
