"""The error of a reader that is not certain; inside this package, `equality.compare` makes it a False."""


class UnreadableError(ValueError):
    """The answer cannot be read with certainty. It is then right only if it has the gold answer's tokens."""


def require(condition: object, reason: str) -> None:
    """Refuse an answer, with the reason, unless the condition holds."""
    if not condition:
        raise UnreadableError(reason)
