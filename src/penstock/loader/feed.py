"""A source with all that is needed to make windows of it: the form of its rows and the fastest way to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from penstock.batch import Batch
from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.features import Encoder
from penstock.blocks.fields import Fields
from penstock.loader.decode import BlockDecoder, Decoder, PackedDecoder, ResidentDecoder
from penstock.loader.decode_records import record_decoder
from penstock.loader.decode_sparse import sparse_decoder
from penstock.loader.forms import FeatureForm, Form, R, RecordForm, Scaling
from penstock.parallel import in_order
from penstock.records import Records

_KEPT = 1.6
"""What columns of unequal length come to occupy over their bytes: each thread's allocator keeps some that was freed."""


@dataclass(frozen=True, slots=True)
class Feed(Generic[R]):
    """Rows of a source on their way into windows."""

    source: BlockSource
    form: Form[R]
    decoder: Decoder[R]
    block_rows: Int64s
    exact: bool
    units: Int64s | None

    @classmethod
    def of(cls, source: BlockSource, encoder: Encoder, scaling: Scaling) -> Feed[Batch]:
        """Choose the fastest way of turning this source's blocks into features."""
        decoder: Decoder[Batch] = BlockDecoder(source, encoder, scaling)
        # The packed loop compares labels as doubles, which tell integers apart up to 2**53.
        numeric = encoder.labels is None or (
            encoder.labels.numeric and all(abs(c) <= 2**53 for c in encoder.labels.classes)
        )
        # Asked for by name: isinstance of a protocol would touch every property, and hash the data for a fingerprint.
        packed = getattr(source, "packed", None)
        if packed is not None and encoder.packed_column and numeric:
            layout = packed(encoder.packed_column, encoder.label, encoder.weight)
            if layout is not None:
                decoder = PackedDecoder(source, encoder, scaling, layout)
        elif encoder.sparse:
            decoder = sparse_decoder(source, encoder, scaling) or decoder
        form = FeatureForm(encoder, scaling)
        return Feed(source, form, decoder, source.block_rows, source.exact_rows, source.units)

    @classmethod
    def of_records(cls, source: BlockSource, fields: Fields) -> Feed[Records]:
        """Choose the fastest way of turning this source's blocks into columns."""
        decoder = record_decoder(source, fields)
        return Feed(source, RecordForm(fields), decoder, source.block_rows, source.exact_rows, source.units)

    @property
    def filled(self) -> bool:
        """Whether rows can go straight to their slots: those of fixed width whose number is known beforehand."""
        return self.exact and self.form.fixed

    def size(self) -> tuple[float, int]:
        """Return the decoded bytes of a row, its slot included, and how many rows there are.

        Where rows vary or were not counted, a few blocks are decoded to tell.
        """
        rows = int(self.block_rows.sum())
        if self.filled or not rows:
            return self.form.row_bytes + 4.0, rows
        blocks = np.unique(np.linspace(0, len(self.block_rows) - 1, 3).astype(int))
        parts = [part for part in (self.decoder.decode(int(b)) for b in blocks) if len(part)]
        if not parts:
            return self.form.row_bytes + 4.0, rows
        if not self.exact:
            rows = int(rows * sum(len(p) for p in parts) / max(1, int(self.block_rows[blocks].sum())))
        kept = _KEPT if isinstance(self.form, RecordForm) else 1.0
        return kept * max(p.nbytes / len(p) for p in parts) + 4, rows

    def resident(self) -> Feed[R]:
        """Decode every block and serve the rows from memory from now on."""
        parts = list(in_order(self.decoder.decode, range(len(self.block_rows)), threads=self.source.threads))
        counts = np.array([len(p) for p in parts], np.int64)
        decoder: Any = ResidentDecoder(parts, self.form)
        return replace(self, decoder=decoder, block_rows=counts, exact=True, units=None)
