"""One HTML page that needs nothing beside itself: its frame, its list of facts and its figures.

Nothing in it is fetched: a content policy in its head forbids even trying. What is given here as words is escaped;
what is given as parts of the page is HTML already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.report.style import CSS, PlotStyle
from penstock.report.text import escape

DESK, PHONE = (540, 330), (360, 290)
"""Sizes of a plot on a wide page and on a phone."""
_LONG = 48
_COLUMN = 'th scope="col"'


def page_html(title: str, *, kind: str, heading: str, parts: Iterable[str]) -> str:
    """Return a whole page: the kind of page and its heading, then its parts; those that are empty are left out.

    Examples
    --------
    >>> page_html("a<b", kind="penstock compare", heading="a<b", parts=["<p>hello</p>"]).startswith("<!doctype html>")
    True
    """
    body = [
        f'<p class="kind">{escape(kind)}</p>',
        f"<h1>{escape(heading)}</h1>",
        *parts,
        "<footer>Made by penstock. This page needs no network and no other file.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{CSS}</style></head>\n'
        "<body><main>\n" + "\n".join(part for part in body if part) + "\n</main></body></html>\n"
    )


def fact_list(facts: Iterable[tuple[str, object]], *, wide: Iterable[tuple[str, object]] = ()) -> str:
    """Return names with what they are, those left out that are None or empty; ``wide`` ones have a line each."""
    cells = [
        f"<div{kind}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for pairs, kind in ((facts, ""), (wide, ' class="wide"'))
        for name, value in pairs
        if value not in (None, "")
    ]
    return f'<dl class="facts">{"".join(cells)}</dl>' if cells else ""


def html_table(
    head: Sequence[str], lines: Iterable[Sequence[str]], *, wordy: bool = False, narrow: bool = False, rest: str = ""
) -> str:
    """Return a table whose first column has names; long text is cut.

    The last column of a ``wordy`` table is text; a ``narrow`` one is as wide as its text; ``rest`` says what is left out.
    """

    def cell(text: str, place: int, tag: str, count: int) -> str:
        kind = ' class="told"' if wordy and place == count - 1 else ""
        whole = f' title="{escape(text)}"' if len(text) > _LONG else ""
        return f"<{tag}{kind}{whole}>{escape(elided(text))}</{tag[:2]}>"

    def row(cells: Sequence[str], first: str, others: str) -> str:
        tags = (first, *[others] * (len(cells) - 1))
        return f"<tr>{''.join(cell(text, at, tag, len(cells)) for at, (text, tag) in enumerate(zip(cells, tags)))}</tr>"

    heads = f"<thead>{row(head, _COLUMN, _COLUMN)}</thead>" if head else ""
    body = "".join(row(line, 'th scope="row"', "td") for line in lines)
    style = ' style="width:auto"' if narrow else ""
    more = f'<p class="quiet">And {escape(rest)}.</p>' if rest else ""
    return f'<div class="scroll"><table{style}>{heads}<tbody>{body}</tbody></table></div>{more}'


def elided(text: str) -> str:
    """Cut a name that would fill a line."""
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def figure(draw: Callable[..., str], caption: str, *, keys: str = "", desk: tuple[int, int] = DESK) -> str:
    """Return a plot with its caption, drawn twice (``draw(size=…)``), for a wide page and for a phone.

    ``keys`` is what stands beneath, `keys_of`; a plot larger than the usual has the width of the page.
    """
    wide = ' class="broad"' if desk != DESK else ""
    return (
        f'<figure{wide}><div class="desk">{draw(size=desk)}</div><div class="phone">{draw(size=PHONE)}</div>{keys}'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def keys_of(named: Iterable[tuple[str, PlotStyle]]) -> str:
    """Return what the colours of a drawing mean."""
    boxes = "".join(
        '<span><svg xmlns="http://www.w3.org/2000/svg" class="box" viewBox="0 0 12 12" width="12" height="12"'
        f' aria-hidden="true"><rect class="ps-f{look.slot}" width="12" height="12" rx="2" fill="{look.light}"/></svg>'
        f"{escape(name)}</span>"
        for name, look in named
    )
    return f'<p class="keys">{boxes}</p>'


def sentence_list(names: list[str]) -> str:
    """Return names as a sentence has them.

    Examples
    --------
    >>> sentence_list(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
