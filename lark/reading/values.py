"""Values of tables as text: what an id, an answer or a number is, however its file stores it."""

import math
from decimal import Decimal


class FloatText(str):
    """A value of a CSV column in which every value is written as Python and pandas write a float: `5.0`,
    not `5` or `5.00`.
    """

    __slots__ = ()


class MixedFloatText(str):
    """A float, such as `5.0`, of a CSV column that has whole numbers too. As an id it is a number: a file
    may be made of parts of which only some have floats. As an answer it is text.
    """

    __slots__ = ()


class ShortFloat(float):
    """A value of a column with less than 64 bits, as the number that its shortest text means: 0.1, not
    0.10000000149011612.
    """

    __slots__ = ()


def plain_text(value: object) -> str:
    """A value as text. Whole floats and decimals lose their `.0`: tables often store the answer 5 as 5.0.
    No number has an exponent: 1e-05, which is how Python writes 0.00001, is not how an answer is written.
    Text is unchanged, except FloatText.
    """
    if isinstance(value, FloatText):
        value = float(value)
    # Beyond 2^53 (1e15 is the power of ten below it), a float is not the number that was meant.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite():
        text = f"{value:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, float) and math.isfinite(value):
        return f"{Decimal(str(value)):f}"
    return str(value)


def id_text(value: object) -> str:
    """An id as text: 7, 7.0 and `7 ` are the same id, because a table stores the integers of a column with
    a gap as floats.
    """
    if isinstance(value, MixedFloatText):
        value = FloatText(value)
    return plain_text(value).strip()


def is_invisible(text: str) -> bool:
    """Whether a text has no visible character: it is empty, or only white space and marks such as a
    zero-width space.
    """
    return not any(_is_visible(character) for character in text)


def _is_visible(character: str) -> bool:
    # A lone surrogate is half of a character, so a text with one is damaged and not empty.
    is_surrogate = "\ud800" <= character <= "\udfff"
    return is_surrogate or (character.isprintable() and not character.isspace())
