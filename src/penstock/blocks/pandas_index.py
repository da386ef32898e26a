"""The index of a pandas table that was stored among its columns: no feature unless it is asked for by name.

pandas writes the index beside the columns, as ``__index_level_0__`` or under its own name, and notes in the file's
metadata which columns it is. A range is noted alone, and takes no column. Row numbers learnt from would tell a model in
which order the rows were stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

import pyarrow as pa

from penstock.blocks.arrow import layout_of

_UNNAMED = re.compile(r"__index_level_\d+__")


def index_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that hold the index of the pandas table that was stored.

    Examples
    --------
    >>> index_columns(pa.schema([("x", pa.float32()), ("__index_level_0__", pa.int64())]))
    ['__index_level_0__']
    """
    try:
        stored = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        noted = stored.get("index_columns", [])
    except (ValueError, AttributeError):  # of another program
        noted = []
    noted = [*(noted if isinstance(noted, list) else []), *layout_of(schema).get("index", [])]
    return [name for name in schema.names if name in noted or _UNNAMED.fullmatch(name)]


def index_notice(schema: pa.Schema, used: Collection[str], *, exclude: Sequence[str] = ()) -> str | None:
    """Return a sentence about index columns that are not used though nobody left them out; None where there are none."""
    names = [name for name in index_columns(schema) if name not in used and name not in exclude]
    if not names:
        return None
    shown = ", ".join(map(repr, names))
    verb = "is the index" if len(names) == 1 else "are the indices"
    return f"{shown} {verb} of the pandas table that was stored, and left out; name features to learn from it"
