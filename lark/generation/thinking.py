"""Separate a teacher's thinking from its answer, by the tags that are in the text."""

from lark import config


def separated(text: str, teacher: config.Teacher, is_open: bool = False) -> tuple[str | None, str]:
    """Reasoning and answer of a text. Reasoning is None if there is none, or if it is not to be separated.

    The start tag may be missing, because some prompts end with it; `is_open`: this one does. Text that was
    cut off within the thinking is all thinking.
    """
    if teacher.thinking != "tags":
        return None, text
    start, end = teacher.tags
    before, has_end, answer = text.partition(end)
    opened = before.lstrip()
    starts = bool(start) and opened.startswith(start)
    thinking = opened[len(start) :] if starts else before
    is_nested = bool(start) and start in thinking
    if has_end and not is_nested:
        return thinking.strip("\n") or None, answer.lstrip("\n")
    if (starts or is_open) and not has_end:
        return thinking.strip("\n") or None, ""
    return None, text  # no thinking, or a text that talks about the tags
