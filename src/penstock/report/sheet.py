"""One HTML page that needs nothing beside itself: its frame, its list of facts, its figures, and how it is written.

Nothing in it is fetched: a content policy in its head forbids even trying. What is given here as words is escaped;
what is given as parts of the page is HTML already.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.errors import WriteError
from penstock.report.style import CSS, Look
from penstock.report.words import escape

DESK, PHONE = (540, 330), (360, 290)
"""Sizes of a plot on a wide page and on a phone."""


def sheet(title: str, parts: Iterable[str]) -> str:
    """Return a whole page from its parts; those that are empty are left out.

    Examples
    --------
    >>> sheet("a<b", ["<h1>hello</h1>"]).startswith("<!doctype html>")
    True
    """
    body = [*parts, "<footer>Made by penstock. This page needs no network and no other file.</footer>"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{CSS}</style></head>\n'
        "<body><main>\n" + "\n".join(part for part in body if part) + "\n</main></body></html>\n"
    )


def write_sheet(text: str, path: str | os.PathLike[str]) -> Path:
    """Write a page to a file, whole or not at all, and return its path.

    Raises
    ------
    WriteError
        If the folder does not exist or cannot be written to.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise WriteError(f"cannot write the report {target}: there is no folder {target.parent}; make it first")
    # A page holds what users named; a lone surrogate among it (an undecodable file name) is replaced, not fatal.
    content = text.encode("utf-8", "replace")
    draft = target.parent / f".penstock-report-{secrets.token_hex(6)}.tmp"
    try:
        with open(draft, "xb") as file:
            file.write(content)
        os.replace(draft, target)
    except OSError as error:
        raise WriteError(
            f"cannot write the report {target}: {error.strerror or error}; choose another place for it"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return target


def facts(found: Iterable[tuple[str, object]], *, wide: Iterable[tuple[str, object]] = ()) -> str:
    """Return names with what they are, those left out that are None or empty; ``wide`` ones have a line each."""
    cells = [
        f"<div{kind}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for pairs, kind in ((found, ""), (wide, ' class="wide"'))
        for name, value in pairs
        if value not in (None, "")
    ]
    return f'<dl class="facts">{"".join(cells)}</dl>' if cells else ""


def figure(
    draw: Callable[[tuple[int, int]], str], caption: str, *, keys: str = "", desk: tuple[int, int] = DESK
) -> str:
    """Return a plot with its caption, drawn twice, for a wide page and for a phone, so that it is legible on both.

    ``keys`` is what stands beneath, `keys_of`; a plot larger than the usual has the width of the page.
    """
    wide = ' class="broad"' if desk != DESK else ""
    return (
        f'<figure{wide}><div class="desk">{draw(desk)}</div><div class="phone">{draw(PHONE)}</div>{keys}'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def keys_of(named: Iterable[tuple[str, Look]]) -> str:
    """Return what the colours of a drawing mean."""
    boxes = "".join(
        '<span><svg xmlns="http://www.w3.org/2000/svg" class="box" viewBox="0 0 12 12" width="12" height="12"'
        f' aria-hidden="true"><rect class="ps-f{look.slot}" width="12" height="12" rx="2" fill="{look.light}"/></svg>'
        f"{escape(name)}</span>"
        for name, look in named
    )
    return f'<p class="keys">{boxes}</p>'


def listed(names: list[str]) -> str:
    """Return names as a sentence has them.

    Examples
    --------
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
