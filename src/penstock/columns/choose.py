"""Which columns are features: by their names and types, by what a user asks for, and by what a look at the data finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.columns.base import FeatureColumn, Refusal, field_of, is_text
from penstock.columns.category import Category
from penstock.columns.fit import POLICIES, ColumnRequest, FitColumns
from penstock.columns.hashing import Hashed
from penstock.columns.kinds import can_fit, classify
from penstock.columns.number import Number
from penstock.columns.pairs import PAIRS, Pairs
from penstock.columns.recipe import Recipe, members_of
from penstock.columns.schema_notes import index_columns, layout_of
from penstock.columns.vector import Vector
from penstock.errors import ColumnError, FeatureError, UsageError, some_of
from penstock.messages import Text, Use, joined

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
        Whether ``fit`` finds what stands for missing numbers too, as it always does for ``wide`` rows; else the pass over the
        data before training does.
    """
    if isinstance(hash, (str, Mapping)):
        raise UsageError(
            "is not a list of columns",
            option="hash",
            value=hash,
            fixes=[Text("write ", Use("hash", ["text:2^20:words"]))],
        )
    every, specs = "*" in hash, [spec for spec in hash if spec != "*"]
    hashed = {spec.column: spec for spec in map(Hashed.parse, specs)}
    asked = _asked(category=category, number=number, date=date, hash=hashed)
    for spec in hashed.values():
        if not wide:
            spec.require_narrow()
    policy = missing or "auto"
    if policy not in POLICIES:
        raise UsageError(
            "is not known", option="missing", value=missing, fixes=[f"choose one of {', '.join(POLICIES)}"]
        )
    roles = [(label, "label column"), (weight, "weight column"), *((h, "column to hash") for h in hashed)]
    roles += [(name, "column to exclude") for name in exclude]
    roles += [(name, "feature column") for name in asked]
    for name, role in roles:
        if name is not None and field_of(schema, name) is None:
            raise ColumnError.missing(name, schema.names, place=place, role=role)
    if label is not None and label == weight:
        raise UsageError(
            "is the label too; rows are weighed by another column", option="weight", value=weight, place=place
        )
    noted = layout_of(schema)
    packed = [c for c in noted.get("columns", ()) if c in schema.names]
    if packed and (features is None or list(features) == noted.get("features")):
        chosen = [*packed, *hashed]
    elif features is None:
        left_out = {label, weight, *exclude} | set(index_columns(schema)) - {*hashed, *asked}
        chosen = [n for root in schema if root.name not in left_out for n in _with_members(root, fit is not None)]
        chosen = [name for name in chosen if name not in left_out]
    else:
        chosen = list(dict.fromkeys([*features, *hashed, *asked]))
    for name in chosen:
        if field_of(schema, name) is None:
            raise ColumnError.missing(name, schema.names, place=place, role="feature column")
        if name in (label, weight):
            raise UsageError(f"{name!r} is given as a feature and as the label or weight; leave it out of the features")
    pair = next(((i, v) for i, v in PAIRS if i in chosen and v in chosen), None)
    found: dict[str, tuple[FeatureColumn, ...]] = {}
    refused: dict[str, Refusal] = {}
    requests: list[ColumnRequest] = []
    nulls = tuple(null_values)
    for name in chosen:
        if pair and name in pair:
            continue
        field = field_of(schema, name)
        assert field is not None  # looked for above
        named = name in (features or ()) or name in asked
        part = classify(field, hashed.get(name) or (Hashed(name) if every and is_text(field.type) else None))
        if (
            fit is not None
            and name not in hashed
            and (asked.get(name) or (isinstance(part, Refusal) and can_fit(field)))
        ):
            requests.append(ColumnRequest(field, asked.get(name), named, nulls))
        elif fit is not None and isinstance(part, Number) and (wide or fill):
            requests.append(ColumnRequest(field, "number", named, nulls))  # what stands for missing ones is found here
        elif isinstance(part, Refusal):
            refused[name] = part
        else:
            found[name] = (replace(part, null_values=nulls) if isinstance(part, Hashed) and nulls else part,)
    reasons: dict[str, str] = {}
    if requests and fit is not None:
        for name, result in fit(requests, policy).items():
            if isinstance(result, str):
                reasons[name] = result
            else:
                found[name] = result
    if fit is not None and features is None and found:  # what nobody named is left out with a word
        reasons |= {name: why.reason.partition(" is ")[2] for name, why in refused.items()}
        refused = {}
    if refused:
        raise _refused(refused, place)
    parts = _arranged([part for name in chosen for part in found.get(name, ())], schema, pair, place)
    if not parts:
        raise ColumnError.no_features(schema.names, place=place)
    if packed and noted.get("encoder"):
        names = noted.get("features") or ()
        parts = [
            replace(p, names=tuple(names)) if isinstance(p, Vector) and p.columns == tuple(packed) and names else p
            for p in parts
        ]
        if isinstance(parts[-1], Pairs) and noted.get("width"):
            parts[-1] = replace(parts[-1], width=int(noted["width"]))
    origin = noted.get("encoder") if packed else None
    members = members_of(schema, parts)
    return Recipe(tuple(parts), label, weight, None, place, origin, left_out=reasons, missing=policy, members=members)


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
