"""The one exception that is meant for the person at the keyboard."""


class LarkError(Exception):
    """A sentence for the user: what is wrong, where, and what to do. Shown without a stack trace; exit code 2."""
