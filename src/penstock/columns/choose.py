"""Which columns are features: by their names and types, by what a user asks for, and by what a look at the data finds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.columns.base import (
    FeatureColumn,
    Refusal,
    as_ranges,
    as_texts,
    column_of,
    field_of,
    is_date,
    is_list,
    is_text,
    stored_column,
)
from penstock.columns.category import Category
from penstock.columns.fit import POLICIES, ColumnRequest, FitColumns, TextTally, tally_of
from penstock.columns.hashing import Hashed
from penstock.columns.number import Number, is_numeric, null_numbers
from penstock.columns.pairs import PAIRS, Pairs
from penstock.columns.recipe import Recipe, members_of
from penstock.columns.schema_notes import index_columns, layout_of
from penstock.columns.vector import Vector, is_vector
from penstock.errors import ColumnError, FeatureError, UsageError, some_of
from penstock.messages import Name, Text, Use, joined

ReadColumns = Callable[[list[str]], Generator[pa.RecordBatch, None, None]]
"""Yields some columns of all rows, batch by batch."""
_SOME_ROWS = 5_000
"""Rows by which text of a model on disk is told to be dates, or prose."""
_MOST_DENSE, _DENSE_SHARE = 64, 4
"""Features up to which categories are stored as dense rows, and how many times as many features as columns may be."""


def choose_features(
    schema: pa.Schema,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    weight: str | None = None,
    exclude: Iterable[str] = (),
    hash: Sequence[str | Hashed] = (),
    place: str = "the data",
    wide: bool = False,
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    date: Sequence[str] = (),
    missing: str | None = None,
    null_values: Sequence[str] = (),
    fit: FitColumns | None = None,
    fill: bool = False,
    standardize: bool = False,
) -> Recipe:
    """Settle which columns are features and how they are encoded.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns there are.
    label, weight : str, optional
        The columns of the target and of the row's weight.
    features : list of str, optional
        The feature columns, in order; all but label, weight, ``exclude`` and the index of a stored pandas table if not
        given.
    exclude : list of str
        Columns to leave out.
    hash : list of str
        Columns to hash: ``"city"``, ``"city:2^18"`` or, word by word, ``"comment:2^18:words"``.
    place : str
        What messages call the data.
    wide : bool
        Let columns be hashed into more features than a model in memory can have, for `Recipe.encode` with ``wide``.
    category, number, date : list of str
        Columns that are of a kind, whatever they seem to be.
    missing : str
        What is done with missing values: ``auto``, ``fill``, ``indicator``, ``drop`` or ``refuse``.
    null_values : list of str
        Texts that stand for a missing value.
    fit : callable, optional
        Gives columns of text and dates as features, by what they hold; without it they are refused.
    fill : bool
        Have ``fit`` find what stands for missing numbers too; else a training does.
    standardize : bool
        Have the recipe itself bring numbers and dates to mean 0 and spread 1, by what ``fit`` finds; else a training does.
    """
    if isinstance(hash, (str, Mapping)):
        raise UsageError(
            "is not a list of columns",
            option="hash",
            value=hash,
            fixes=[Text("write ", Use("hash", ["text:2^20:words"]))],
        )
    every, specs = "*" in hash, [spec for spec in hash if spec != "*"]
    told = missing == "indicator"
    hashed = {spec.column: replace(spec, missing=spec.missing or told) for spec in map(Hashed.parse, specs)}
    for spec in hashed.values():
        if not wide:
            spec.require_narrow()
    asked, excluded, policy = (
        _asked(category=category, number=number, date=date, hash=hashed),
        list(exclude),
        _policy(missing),
    )
    roles = [(label, "label column"), (weight, "weight column"), *((h, "column to hash") for h in hashed)]
    roles += [(name, "column to exclude") for name in excluded] + [(name, "feature column") for name in asked]
    _require_columns(schema, roles, place)
    wanted = [*asked.items(), *((name, "hash") for name in hashed)]
    require_not_excluded([*((name, "features") for name in features or ()), *wanted], excluded, place=place)
    for name, option in wanted:
        _require_askable(field_of(schema, name), option, place)
    if label is not None and label == weight:
        raise UsageError(
            "is the label too; rows are weighed by another column", option="weight", value=weight, place=place
        )
    noted = layout_of(schema)
    packed = [c for c in noted.get("columns", ()) if c in schema.names]
    if packed and (features is None or list(features) == noted.get("features")):
        chosen = [*packed, *hashed]
    elif features is None:
        left_out = {label, weight, *excluded} | set(index_columns(schema)) - {*hashed, *asked}
        names = (n for root in schema if root.name not in left_out for n in _with_members(root, fit is not None))
        chosen = [name for name in names if name not in left_out and _excluding(name, excluded) is None]
    else:
        _require_columns(schema, [(name, "feature column") for name in features], place)
        fields = [field_of(schema, name) for name in features]
        named = [name for field in fields if field is not None for name in _with_members(field, fit is not None)]
        named = [name for name in named if name not in excluded]  # members of a struct that is a feature
        chosen = list(dict.fromkeys([*named, *hashed, *asked]))
    _require_columns(schema, [(name, "feature column") for name in chosen], place)
    for name in chosen:
        if name in (label, weight):
            raise UsageError(f"{name!r} is given as a feature and as the label or weight; leave it out of the features")
    pair = next(((i, v) for i, v in PAIRS if i in chosen and v in chosen), None)
    found: dict[str, tuple[FeatureColumn, ...]] = {}
    refused: dict[str, Refusal] = {}
    requests: list[ColumnRequest] = []
    nulls = tuple(null_values)
    for name in (name for name in chosen if pair is None or name not in pair):
        field = field_of(schema, name)
        assert field is not None  # looked for above
        part = classify(
            field, hashed.get(name) or (Hashed(name, missing=told) if every and is_text(field.type) else None)
        )
        kind = asked.get(name)
        if isinstance(part, Number) and kind is None and (fill or standardize or wide):
            kind = "number"  # what stands for missing ones is found with the rest
        if fit is not None and (kind or (isinstance(part, Refusal) and can_fit(field))):
            asked_for = features is not None or name in asked
            requests.append(ColumnRequest(field, kind, asked_for, nulls, standardize))
        elif isinstance(part, Refusal):
            refused[name] = part
        else:
            found[name] = (_with_nulls(part, nulls) if nulls else part,)
    results = {} if fit is None else _fitted(fit, requests, policy, alone=not found and pair is None)
    found |= {name: result for name, result in results.items() if not isinstance(result, str)}
    reasons = {name: result for name, result in results.items() if isinstance(result, str)}
    if fit is not None and features is None and found:  # what nobody named is left out with a word
        reasons |= {name: why.reason.partition(" is ")[2] for name, why in refused.items()}
        refused = {}
    if refused:
        raise _refused(refused, place)
    parts = _arranged([part for name in chosen for part in found.get(name, ())], schema, pair, place)
    if not parts:
        raise ColumnError.no_features(schema.names, place=place)
    origin = noted.get("encoder") if packed else None
    if origin:
        parts = _as_converted(parts, noted)
    members = members_of(schema, parts)
    return Recipe(tuple(parts), label, weight, None, place, origin, left_out=reasons, missing=policy, members=members)


def fit_batches(
    read: ReadColumns, schema: pa.Schema, requests: Sequence[ColumnRequest], policy: str, *, wide: bool = False
) -> Mapping[str, tuple[FeatureColumn, ...] | str]:
    """Return each column asked for as features, or the reason for leaving it out.

    Text of ``wide`` rows, for a model on disk, is hashed but for dates, which some rows tell: that needs no pass.
    """
    texts = {
        request.field.name: TextTally(request, wide=True)
        for request in requests
        if wide and request.kind is None and is_text(request.field.type)
    }
    others = {request.field.name: tally_of(request) for request in requests if request.field.name not in texts}
    for tallies, most in ((texts, _SOME_ROWS), (others, None)):
        if not tallies:
            continue
        stored, rows = list(dict.fromkeys(stored_column(schema, name) for name in tallies)), 0
        with closing(read(stored)) as batches:
            for batch in batches:
                for name, tally in tallies.items():
                    tally.add(column_of(batch, name))
                rows += len(batch)
                if most is not None and rows >= most:
                    break
    return {name: tally.result(policy) for name, tally in (texts | others).items()}


def classify(field: pa.Field, hashed: Hashed | None) -> FeatureColumn | Refusal:
    """Return what a column is as a feature by its type alone, or why it is none."""
    name, kind = field.name, field.type
    if hashed is not None:
        return hashed
    if is_numeric(kind):
        return Number(name)
    if is_vector(kind):
        return Vector.of(field)
    if is_date(kind):
        return Refusal(
            f"column {name!r} is {kind}, not a number", ("turn it into one (days since a date, say) or exclude it",)
        )
    if is_list(kind):
        fixes = "make it a fixed-size list", "give sparse rows as two columns named 'indices' and 'values'"
        return Refusal(f"column {name!r} is {kind}, a list of any length", fixes)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return Refusal(f"column {name!r} is {kind}, which cannot be a feature", ("flatten it or exclude it",))
    by_hash = Text("hash it: ", Use("hash", [f"{name}:2^20"]))
    return Refusal(f"column {name!r} is {kind}, not a number", ("encode it", "exclude it", by_hash), can_hash=True)


def require_not_excluded(wanted: Iterable[tuple[str, str]], excluded: Collection[str], *, place: str) -> None:
    """Raise for a column that an option names and ``exclude`` leaves out, or the struct it is a member of.

    Parameters
    ----------
    wanted : iterable of (str, str)
        Columns, each with the option that names it.
    excluded : list of str
        Columns to leave out.
    place : str
        What messages call the data.
    """
    for name, option in wanted:
        named = _excluding(name, excluded)
        if named is not None:
            struct = "" if named == name else f", as a member of {named!r}"
            raise UsageError(
                f"names {name!r}, which is excluded too{struct}",
                option=option,
                value=[name],
                place=place,
                fixes=[Text("leave it out of ", Name(option), " or of ", Name("exclude"))],
            )


def _excluding(name: str, excluded: Collection[str]) -> str | None:
    """Return the name by which a column is excluded: its own, or that of a struct around it."""
    return next((each for each in excluded if name == each or name.startswith(f"{each}.")), None)


def _require_askable(field: pa.Field | None, kind: str, place: str) -> None:
    """Raise where a column cannot be of the kind that it was named for, such as a list that was named as a category."""
    assert field is not None  # of the schema
    name, stored = field.name, field.type
    if pa.types.is_struct(stored):
        told, fixes = "a struct", ["name its members: " + some_of(map(repr, _with_members(field, True)), 8)]
    elif kind == "date" and not (is_date(stored) or is_text(stored)):
        told, fixes = f"{stored}, neither a date nor text", []
    elif kind == "number" and not (is_numeric(stored) or is_text(stored)):
        told, fixes = f"{stored}, neither a number nor text", []
    elif kind == "category" and not _is_written(stored):
        told, fixes = f"{stored}, which is not written as text", []
    elif kind == "hash" and pa.types.is_nested(stored):
        told, fixes = f"{stored}, which cannot be hashed", ["hash text or numbers"]
    else:
        return
    raise UsageError(f"names {name!r}, which is {told}", option=kind, value=[name], place=place, fixes=fixes)


def _is_written(kind: pa.DataType) -> bool:
    """Whether values of a type can be written as text, whatever they are."""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return False  # which need not be UTF-8
    try:
        as_texts(pa.array([], kind))
    except (pa.ArrowException, NotImplementedError):
        return False
    return True


def can_fit(field: pa.Field) -> bool:
    """Whether a column is made features by what it holds: text, categories and dates."""
    return is_text(field.type) or is_date(field.type) or pa.types.is_dictionary(field.type)


def _policy(missing: str | None) -> str:
    """Return what is done with missing values."""
    if missing is not None and missing not in POLICIES:
        fixes = [f"choose one of {', '.join(POLICIES)}"]
        raise UsageError("is not known", option="missing", value=missing, fixes=fixes)
    return missing or "auto"


def _require_columns(schema: pa.Schema, roles: Iterable[tuple[str | None, str]], place: str) -> None:
    for name, role in roles:
        if name is not None and field_of(schema, name) is None:
            raise ColumnError.missing(name, schema.names, place=place, role=role)


def _fitted(
    fit: FitColumns, requests: Sequence[ColumnRequest], policy: str, *, alone: bool
) -> dict[str, tuple[FeatureColumn, ...] | str]:
    """Return what a look at the columns finds; row numbers are features where there are no others at all."""
    if not requests:
        return {}
    results = dict(fit(requests, policy))
    if alone and all(isinstance(result, str) for result in results.values()):
        numbered = [request for request in requests if results[request.field.name] == "row numbers"]
        results |= fit([replace(request, named=True) for request in numbered], policy)
    return results


def _as_converted(parts: Sequence[FeatureColumn], noted: Mapping[str, Any]) -> list[FeatureColumn]:
    """Return the packed columns of a converted file with the names, width and flags of the features that they were packed from."""
    names, ranges = tuple(noted.get("features") or ()), as_ranges(noted.get("flag_ranges") or ())
    found = list(parts)
    for at, part in enumerate(parts):
        if isinstance(part, Vector) and names and list(part.columns) == noted["columns"]:
            found[at] = replace(part, names=names, flag_ranges=ranges)
    last = found[-1]
    if isinstance(last, Pairs) and noted.get("width"):
        dense, ranges = (int(noted.get("dense") or 0), ranges) if len(found) == 1 else (0, ())
        found[-1] = replace(last, width=int(noted["width"]), dense=dense, flag_ranges=ranges)
    return found


def _asked(*, hash: Mapping[str, Hashed], **kinds: Sequence[str]) -> dict[str, str]:
    """Return the kind that each column was asked to be of; a column named for two kinds is refused."""
    found: dict[str, str] = {}
    for kind, names in kinds.items():
        if isinstance(names, str):
            raise UsageError("is not a list of columns", option=kind, value=names, fixes=[Use(kind, [names])])
        for name in names:
            other = "hash" if name in hash else found.get(name, kind)
            if other != kind:
                raise UsageError(f"names {name!r}, which is named for {other} too", option=kind, value=list(names))
            found[name] = kind
    return found


def _with_nulls(part: FeatureColumn, nulls: tuple[str, ...]) -> FeatureColumn:
    """Return a column that takes some values as missing."""
    if isinstance(part, Number):
        return replace(part, null_values=null_numbers(nulls))
    return replace(part, null_values=nulls) if isinstance(part, Hashed) else part


def _with_members(field: pa.Field, expand: bool) -> list[str]:
    """Return a column's name, or, of a struct, those of its members."""
    if not expand or not pa.types.is_struct(field.type):
        return [field.name]
    members = (field.type.field(at) for at in range(field.type.num_fields))
    return [n for m in members for n in _with_members(pa.field(f"{field.name}.{m.name}", m.type), expand)]


def _arranged(
    parts: Sequence[FeatureColumn], schema: pa.Schema, pair: tuple[str, str] | None, place: str
) -> list[FeatureColumn]:
    """Return the columns with dense ones first; categories are dense where all features are few beside the columns."""
    widths = [part.width or 0 for part in parts]
    others = pair is not None or any(isinstance(part, Hashed) for part in parts)
    if not others and sum(widths) <= max(_MOST_DENSE, _DENSE_SHARE * len(parts)):
        parts = [replace(part, dense=True) if isinstance(part, Category) else part for part in parts]
    ordered = sorted(parts, key=lambda part: part.sparse)
    return [*ordered, Pairs.of(schema, pair, place=place)] if pair else ordered


def _refused(refused: dict[str, Refusal], place: str) -> FeatureError:
    """Return the error for columns that are no features; those that could be hashed are told of together."""
    text = [name for name, why in refused.items() if why.can_hash]
    found = list(refused.values())
    if len(text) > 1:
        some = text[:8]
        rest = " …" if text[8:] else ""
        together = Refusal(
            f"columns {some_of(map(repr, text), 8)} are text, not numbers",
            (
                "encode them",
                Text("leave them out: ", Use("exclude", some), rest),
                Text("hash them: ", Use("hash", [f"{name}:2^20" for name in some]), rest),
            ),
        )
        found = [together, *(why for why in found if not why.can_hash)]
    if len(found) == 1:
        return FeatureError(found[0].reason, fixes=found[0].fixes, place=place)
    more = [f"and {len(found) - 8} more"] if found[8:] else []
    return FeatureError(joined([*(why.text for why in found[:8]), *more], "; "), place=place)
