"""How many trajectories are selected."""

import re
from dataclasses import dataclass
from decimal import Decimal

from lark.config.checks import Section, require
from lark.errors import LarkError

DEFAULT_SIZE = 3
"""Trajectories per question (the paper's main setting), unless budget.total or budget.tokens is set."""
UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


@dataclass
class Budget:
    """How many trajectories are selected: `size` per question, or a `total` or `tokens` across all
    questions.
    """

    size: int | None = None
    """B, the number per question; 3 if nothing is set. With `total` or `tokens`: the maximum per question."""
    total: str | None = None
    """Trajectories across all questions, such as 5000 or 5k."""
    tokens: str | None = None
    """Response tokens across all questions, such as 50M, 1.5B, 200k or a plain number. Each trajectory
    counts once, however many epochs it is trained for.
    """

    def __post_init__(self) -> None:
        is_size = self.size is None or self.size >= 1
        require(is_size, "budget", self.size, "select at least 1 trajectory per question")
        is_alone = self.total is None or self.tokens is None
        section = Section("budget", self)
        section.require("total", is_alone, "cannot be combined with budget.tokens; choose one of them")
        if self.limit is None and self.size is None:
            self.size = DEFAULT_SIZE

    @property
    def limit(self) -> int | None:
        """The number of trajectories or tokens across all questions; None if the budget is per question."""
        if self.total is not None:
            return quantity("budget.total", self.total)
        return None if self.tokens is None else quantity("budget.tokens", self.tokens)

    @property
    def per_question(self) -> int:
        """B. Raises an error if the budget is not per question."""
        if self.limit is not None or self.size is None:
            raise LarkError(
                f"{self.typed}: the paper's tables and figures use a number of trajectories per question. Set"
                f" budget=3, or compare methods with `python run.py -m method=random,lark {self.typed}`."
            )
        return self.size

    @property
    def typed(self) -> str:
        """The budget as typed on the command line."""
        parts = {"total": self.total, "tokens": self.tokens, "size": self.size}
        return " ".join(f"budget.{key}={value}" for key, value in parts.items() if value is not None)

    @property
    def identity(self) -> int | dict[str, int]:
        """Its part of a fingerprint: B, or the limit across questions."""
        if self.limit is None:
            return self.per_question
        cap = {} if self.size is None else {"size": self.size}
        return {"tokens" if self.total is None else "total": self.limit, **cap}

    @property
    def name(self) -> str:
        """Its part of folder names: B3, total5k, tokens50M, tokens50M-B3."""
        return budget_name(self.size, self.total, self.tokens)


def quantity(key: str, text: str) -> int:
    """A whole number with an optional k, M or B: `50M`, `1.5B`, `200k`, `5000`."""
    match = re.fullmatch(
        r"(\d[\d_]*(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmb]?)", text.strip(), re.ASCII | re.IGNORECASE
    )
    value = Decimal(match[1].replace("_", "")) * UNITS[match[2].lower()] if match else Decimal(0)
    is_count = match is not None and 1 <= value <= 10**15 and value == value.to_integral_value()
    rule = "give a whole number of at least 1 (and at most 10^15), such as 5000, 200k, 50M or 1.5B"
    require(is_count, key, text, rule)
    return int(value)


def budget_name(size: int | None, total: str | None, tokens: str | None) -> str:
    """The name of a budget in folders, also before the configuration is loaded."""
    parts = []
    for key, text in {"total": total, "tokens": tokens}.items():
        if text is not None:
            parts.append(f"{key}{_short(quantity(f'budget.{key}', str(text)))}")
    if size is not None:
        parts.append(f"B{size}")
    return "-".join(parts) or f"B{DEFAULT_SIZE}"


def _short(value: int) -> str:
    """5k, 1.5M, 1234567: with a unit if one decimal is enough."""
    for unit in ("B", "M", "k"):
        scale = UNITS[unit.lower()]
        if value >= scale and value * 10 % scale == 0:
            units, tenth = divmod(value * 10 // scale, 10)
            return f"{units}.{tenth}{unit}" if tenth else f"{units}{unit}"
    return str(value)
