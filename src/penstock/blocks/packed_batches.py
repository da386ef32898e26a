"""Where the rows of uncompressed Arrow record batches lie, so that they can go from the file to their places as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.base import Int64s, PackedLayout
from penstock.blocks.ipc import BatchHeader
from penstock.blocks.ipc_rows import leading_buffers


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """Record batches of one schema in a file: where each begins, its bytes, those of its header, its rows and checksum."""

    fd: int
    schema: pa.Schema
    offsets: Int64s
    nbytes: Int64s
    metas: Int64s
    rows: Int64s
    sums: NDArray[np.uint64]

    def layout(
        self,
        features: str,
        label: str | None,
        weight: str | None,
        *,
        headers: Callable[[list[str]], Sequence[BatchHeader]],
    ) -> PackedLayout | None:
        """Return where features, labels and weights lie, or None where a column needs decoding.

        There is a layout where the features are a `FixedSizeList<float32>`, and label and weight plain numbers, without nulls.
        ``headers`` gives those of all batches, or of the first and the last where the others are like the first.
        """
        if not len(self.rows) or not _is_packed_list(self.schema, features):
            return None
        types = [_number_type(self.schema, name) for name in (label, weight)]
        if any(name is not None and kind is None for name, kind in zip((label, weight), types)):
            return None
        places = leading_buffers(self.schema)
        if places is None:
            return None
        wanted = [n for n in (features, label, weight) if n is not None]
        known = headers(wanted)
        nodes = [places[n][1] for n in wanted] + [places[features][1] + 1]
        if any(h.compressed or h.null_counts[nodes].any() for h in known):
            return None

        def place(name: str | None, buffer: int) -> Int64s:
            if name is None:
                return np.full(len(self.rows), -1, np.int64)
            at = np.array([h.buffer_at[places[name][0] + buffer] for h in known], np.int64)
            if len(at) != len(self.rows):  # batches alike: the first stands for all but the last
                at = np.concatenate([np.repeat(at[:1], len(self.rows) - 1), at[1:]])
            return self.metas + at

        # A fixed-size list has its validity, then its values' validity, then the values.
        return PackedLayout(
            fd=self.fd,
            offsets=self.offsets,
            nbytes=self.nbytes,
            sums=self.sums,
            rows=self.rows,
            width=self.schema.field(features).type.list_size,
            features_at=place(features, 2),
            label_at=place(label, 1),
            label_type=types[0],
            weight_at=place(weight, 1),
            weight_type=types[1],
        )


def _is_packed_list(schema: pa.Schema, name: str) -> bool:
    if name not in schema.names:
        return False
    kind = schema.field(name).type
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_float32(kind.value_type))


def _number_type(schema: pa.Schema, name: str | None) -> np.dtype[np.generic] | None:
    if name is None or name not in schema.names:
        return None
    kind = schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return None
    number: np.dtype[np.generic] = np.dtype(kind.to_pandas_dtype())
    return number
