"""Numbers and names as the report writes them: escaped, short, and honest about what is missing."""

from __future__ import annotations

import html
import math
import re
import unicodedata

ABSENT = "–"
_NARROW_SPACE = "\u202f"
# What XML 1.0 forbids even when escaped, and surrogates, which UTF-8 cannot hold.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


def escape(text: object) -> str:
    """Make any text safe inside HTML and SVG, in elements and in quoted attributes.

    Examples
    --------
    >>> escape('<a href="x">')
    '&lt;a href=&quot;x&quot;&gt;'
    """
    return html.escape(_FORBIDDEN.sub("\ufffd", str(text)), quote=True)


def finite_or_none(value: object) -> float | None:
    """Return the value as a float that can be drawn, or None for missing, NaN, infinite or absurd ones."""
    if value is None or isinstance(value, str):
        return None
    number = float(value)  # type: ignore[arg-type]  # NumPy scalars are floats to a reader, not to a type
    return number if math.isfinite(number) and abs(number) < 1e150 else None


def text_width(text: str, size: float) -> float:
    """Estimate how wide a text is in a sans-serif of the given size; errs on the wide side."""
    ems = 0.0
    for letter in text:
        if unicodedata.east_asian_width(letter) in "WF":
            ems += 1.05
        elif letter in "mwMW@%—":
            ems += 0.92
        elif letter.isupper():
            ems += 0.72
        elif letter in "iljtfr.,:;|!'()[]- \u202f":
            ems += 0.38
        else:
            ems += 0.6
    return ems * size


def shorten(text: str, width: float, size: float) -> str:
    """Cut a text with an ellipsis so that it fits a width.

    Examples
    --------
    >>> shorten("sliding-window", 60, 12)
    'sliding-…'
    """
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text + "…"


def show_count(value: float | None) -> str:
    """Write a count with thousands apart."""
    number = finite_or_none(value)
    return ABSENT if number is None else f"{round(number):,}"


def show_time(value: float | None) -> str:
    """Write a time in seconds to about three figures.

    Examples
    --------
    >>> show_time(3.14159), show_time(1234.5)
    ('3.14\u202fs', '1,234\u202fs')
    """
    number = finite_or_none(value)
    if number is None:
        return ABSENT
    places = 3 if 0 < number < 0.9995 else 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:,.{places}f}{_NARROW_SPACE}s"


def score_text(value: float | None, metric: str) -> str:
    """Write an accuracy as a percentage and an R² as it is.

    Examples
    --------
    >>> score_text(0.98765, "accuracy"), score_text(0.98765, "r2")
    ('98.77\u202f%', '0.9877')
    """
    number = finite_or_none(value)
    if number is None:
        return ABSENT
    if metric == "accuracy":
        return f"{100 * number:.2f}{_NARROW_SPACE}%"
    if abs(number) >= 1e7:
        return show_number(number)
    return f"{number:,.{0 if abs(number) >= 1000 else 4}f}".replace("-", "\u2212")


def show_number(value: float | None) -> str:
    """Write any number to four figures.

    Examples
    --------
    >>> show_number(0.6931471), show_number(1.5e9)
    ('0.6931', '1.5e+09')
    """
    number = finite_or_none(value)
    return ABSENT if number is None else f"{number:.4g}".replace("-", "\u2212", 1 if number < 0 else 0)


def show_part(share: float) -> str:
    """Write a share of a whole.

    Examples
    --------
    >>> show_part(0.5), show_part(0.012)
    ('50\u202f%', '1.2\u202f%')
    """
    return f"{100 * share:.{0 if share >= 0.095 or not share else 1}f}{_NARROW_SPACE}%"


def show_tick(value: float, step: float, *, percent: bool = False) -> str:
    """Write a tick's value with no more decimals than its step needs.

    Examples
    --------
    >>> show_tick(0.5, 0.25), show_tick(0.9, 0.05, percent=True), show_tick(20000, 5000)
    ('0.50', '90\u202f%', '20k')
    """
    unit = ""
    if percent:
        value, step, unit = 100 * value, 100 * step, f"{_NARROW_SPACE}%"
    else:
        for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
            # Only where a thousandth part of the unit still tells two ticks apart.
            if abs(value) >= size and step >= size / 1e4:
                size = 1e3 if letter == "k" else size
                value, step, unit = value / size, step / size, letter
                break
    if abs(value) >= 1e6 or (value and step < 1e-6):
        return f"{value:.3g}{unit}".replace("-", "\u2212")
    places = 0
    while places < 9 and abs(round(step, places) - step) > 1e-6 * step:
        places += 1
    return f"{value:,.{places}f}{unit}".replace("-", "\u2212")
