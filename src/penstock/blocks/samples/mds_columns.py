"""What each MDS encoding becomes as an Arrow column.

Numbers become numbers; `str` and `json` text; `bytes`, `jpeg`, `png` and `pil` (raw pixels after a small header) stay
bytes. An array of known type and shape is a fixed-size list of that shape; one of unknown shape a list, its shape in a
column beside it. `str_int` and `str_float` become int64 and float64, `str_decimal` stays text. `pkl` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import ColumnError, SourceError

_SCALARS = {f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
_SCALARS |= {"int": np.dtype(np.int64)} | {f"float{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)}
_ARRAY_TYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_BYTES = ("bytes", "jpeg", "png", "pil")
_LISTS = {"list[jpeg]": 4, "list[png]": 4, "list[pil]": 4, "jpeg_array": 0, "jpegarray": 0}
_TEXTS = {"str": str, "json": str, "str_decimal": str, "str_int": int, "str_float": float}
_KNOWN = (*_SCALARS, *_BYTES, *_LISTS, *_TEXTS, "ndarray")


class ValueOfRowError(ValueError):
    """A value that cannot be read, with the row it stands in."""

    def __init__(self, row: int, message: object) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class Runs:
    """A column's values as runs of bytes in one buffer."""

    data: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.ends[row]]

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist()))

    def fixed(self, kind: np.dtype[Any], count: int = 1) -> NDArray[Any]:
        """Return values that are equally long in every row, end to end."""
        width = kind.itemsize * count
        if (self.ends - self.starts != width).any():
            row = int(np.flatnonzero(self.ends - self.starts != width)[0])
            raise ValueOfRowError(row, f"{self.ends[row] - self.starts[row]} bytes where {width} are expected")
        flat = np.frombuffer(self.data, np.uint8)
        whole: NDArray[Any] = flat[self.starts[:, None] + np.arange(width)].reshape(-1).view(kind.newbyteorder("<"))
        return whole.astype(kind, copy=False)


@dataclass(frozen=True, slots=True)
class MdsColumn:
    """A column of a shard: the Arrow fields that it becomes, and how."""

    name: str
    encoding: str
    size: int | None
    fields: tuple[pa.Field, ...]
    decode: Callable[[Runs], Sequence[pa.Array]]
    feature: dict[str, Any] | None = None


def mds_columns(
    names: Sequence[str],
    encodings: Sequence[str],
    sizes: Sequence[int | None],
    *,
    place: str,
    first: Callable[[], list[bytes]],
) -> list[MdsColumn]:
    """Return the columns that an index describes; ``first`` gives the first sample's, should its bytes be needed."""
    found = []
    for at, (name, encoding, size) in enumerate(zip(names, encodings, sizes)):
        if encoding == "pkl":
            raise SourceError(
                f"{place}: column {name!r} is pickled, and unpickling can run anything; nothing is unpickled here: write"
                " the data set again with another encoding, such as json or ndarray"
            )
        base = str(encoding).partition(":")[0]
        if base not in _KNOWN:
            raise SourceError(
                f"{place}: column {name!r} has the encoding {encoding!r}, which is not known; known are:"
                f" {', '.join(sorted(_KNOWN))}"
            )
        if base == "ndarray":
            found.append(_array(name, encoding, size, place, first, at))
        else:
            found.append(_plain(name, encoding, size))
    taken = [field.name for column in found for field in column.fields]
    for name in taken:
        if taken.count(name) > 1:
            raise ColumnError(f"{place} has two columns {name!r}; write the data set with other names")
    return found


def _plain(name: str, encoding: str, size: int | None) -> MdsColumn:
    size = size or None  # a size of 0 is told in each sample too
    if encoding in _SCALARS:
        kind = _SCALARS[encoding]
        field = pa.field(name, pa.from_numpy_dtype(kind))
        return MdsColumn(name, encoding, size, (field,), lambda runs: [pa.array(runs.fixed(kind))])
    if encoding in _TEXTS:
        make: Any = _TEXTS[encoding]
        to: pa.DataType = {str: pa.string(), int: pa.int64(), float: pa.float64()}[make]
        return MdsColumn(name, encoding, size, (pa.field(name, to),), lambda runs: [_texts(runs, make, to)])
    if encoding in _LISTS:
        skip, inner = _LISTS[encoding], pa.list_(pa.binary())
        return MdsColumn(
            name, encoding, size, (pa.field(name, inner),), lambda runs: [pa.array(_lists(runs, skip), inner)]
        )
    feature = {"_type": "Image"} if encoding in ("jpeg", "png") else None
    binary = pa.field(name, pa.binary())
    return MdsColumn(name, encoding, size, (binary,), lambda runs: [pa.array(list(runs), pa.binary())], feature)


def _array(
    name: str, encoding: str, size: int | None, place: str, first: Callable[[], list[bytes]], at: int
) -> MdsColumn:
    _, _, rest = encoding.partition(":")
    told, _, dimensions = rest.partition(":")
    if told and told not in _ARRAY_TYPES.values():
        raise SourceError(f"{place}: column {name!r} holds arrays of {told!r}, which are not known")
    if dimensions:
        shape = [int(part) for part in dimensions.split(",") if part.isdigit()]
        if not all(shape) or len(shape) != len(dimensions.split(",")):
            raise SourceError(f"{place}: column {name!r} holds arrays of the shape {dimensions!r}, which is none")
        kind = np.dtype(told)
        return MdsColumn(
            name,
            encoding,
            size or None,
            (pa.field(name, _nested(kind, shape)),),
            lambda runs: [_fixed(runs, kind, shape)],
        )
    head = first()[at] if not told else b""
    if not told and (not head or head[0] not in _ARRAY_TYPES):
        raise SourceError(f"{place}: the first value of column {name!r} does not tell the type of its numbers")
    kind = np.dtype(told or _ARRAY_TYPES[head[0]])
    fields = (pa.field(name, pa.list_(pa.from_numpy_dtype(kind))), pa.field(f"{name}.shape", pa.list_(pa.int64())))
    return MdsColumn(name, encoding, size or None, fields, lambda runs: _ragged(runs, kind, typed=bool(told)))


def _nested(kind: np.dtype[Any], shape: Sequence[int]) -> pa.DataType:
    inner = pa.from_numpy_dtype(kind)
    for length in reversed(shape):
        inner = pa.list_(inner, length)
    return inner


def _fixed(runs: Runs, kind: np.dtype[Any], shape: Sequence[int]) -> pa.Array:
    array = pa.array(runs.fixed(kind, prod(shape)))
    for length in reversed(shape):
        array = pa.FixedSizeListArray.from_arrays(array, length)
    return array


def _ragged(runs: Runs, kind: np.dtype[Any], *, typed: bool) -> list[pa.Array]:
    """Read arrays that begin with their shape, and before it with their type where the index has none."""
    values, shapes = [], []
    for row, run in enumerate(runs):
        at = 0
        if not typed:
            if not run or _ARRAY_TYPES.get(run[0]) != kind.name:
                own = _ARRAY_TYPES.get(run[0], "unknown numbers") if run else "nothing"
                raise ValueOfRowError(row, f"it holds {own} where the first holds {kind.name}")
            at = 1
        if len(run) <= at:
            raise ValueOfRowError(row, "it ends before its shape")
        axes, width = run[at] >> 2, 1 << (run[at] & 3)
        end = at + 1 + axes * width
        shape = np.frombuffer(run[at + 1 : end], f"<u{width}").tolist()
        if len(shape) != axes or len(run) - end != prod(shape) * kind.itemsize:
            raise ValueOfRowError(row, f"{len(run) - end} bytes do not make the shape {shape} of {kind.name}")
        values.append(np.frombuffer(run, kind.newbyteorder("<"), offset=end))
        shapes.append(shape)
    offsets = pa.array(np.cumsum([0, *map(len, values)]).astype(np.int32))
    flat = np.concatenate(values).astype(kind, copy=False) if values else np.empty(0, kind)
    return [pa.ListArray.from_arrays(offsets, pa.array(flat)), pa.array(shapes, pa.list_(pa.int64()))]


def _texts(runs: Runs, make: Any, kind: pa.DataType) -> pa.Array:
    found = []
    for row, run in enumerate(runs):
        try:
            value = make(run.decode())
            if make is int and not -(2**63) <= value < 2**63:
                raise ValueError(f"{value} does not fit in 64 bits")
        except ValueError as error:
            raise ValueOfRowError(row, error) from error
        found.append(value)
    return pa.array(found, kind)


def _lists(runs: Runs, skip: int) -> list[list[bytes]]:
    """Read lists of byte strings: how many, how long each, then all of them."""
    found = []
    for row, run in enumerate(runs):
        count = int.from_bytes(run[skip : skip + 4], "little")
        at = skip + 4 + 4 * count
        if len(run) < at:
            raise ValueOfRowError(row, f"{len(run)} bytes are too few for {count} entries")
        sizes = np.frombuffer(run, "<u4", count, skip + 4).tolist()
        if at + sum(sizes) != len(run):
            raise ValueOfRowError(row, f"its {count} entries come to {sum(sizes)} bytes, not {len(run) - at}")
        entries = []
        for size in sizes:
            entries.append(run[at : at + size])
            at += size
        found.append(entries)
    return found
