"""The one exception that is meant for the person at the keyboard, and what of a library's error fits into its sentence."""


class LarkError(Exception):
    """A sentence for the user: what is wrong, where, and what to do. Shown without a stack trace; exit code 1."""


def first_line(error: Exception) -> str:
    """What another library says, without its details; its kind where it says nothing."""
    said = str(error).strip()
    return said.splitlines()[0].rstrip(".") if said else type(error).__name__
