"""The exception whose message is shown to users, and a helper that shortens the errors of other libraries."""


class LarkError(Exception):
    """An error for the user: what is wrong, where, and what to do. Shown without a stack trace; exit code 1."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error message, or the error's type if the message is empty."""
    said = str(error).strip()
    return said.splitlines()[0].rstrip(".") if said else type(error).__name__
