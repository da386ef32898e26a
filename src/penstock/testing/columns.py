"""The conformance suite for kinds of feature column.

Subclass `ColumnContract` in a test file, and give a column with the values that it is to encode; pytest collects the rest::

    class TestMine(ColumnContract):
        def make(self):
            return MyColumn("price")

        def values(self):
            return pa.array([1.0, None, 3.0])
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.batch import Csr, Floats
from penstock.columns.base import FeatureColumn
from penstock.columns.kinds import KINDS, column_from_dict
from penstock.columns.recipe import Recipe
from penstock.errors import PenstockError


class ColumnContract:
    """What a recipe relies on, whatever the kind of column."""

    def make(self) -> FeatureColumn:
        """Return a column that was fitted."""
        raise NotImplementedError

    def values(self) -> Any:
        """Return stored values of it, an array for each of its columns where it has two; some rows are missing where it may be."""
        raise NotImplementedError

    def batch(self) -> pa.RecordBatch:
        """Return the values as rows."""
        part, values = self.make(), self.values()
        arrays = [values] if isinstance(values, pa.Array) else list(values)
        return pa.record_batch(arrays, names=list(part.columns))

    def test_is_registered(self) -> None:
        """The kind is in the table by which saved models are read."""
        assert KINDS[self.make().kind] is type(self.make())

    def test_survives_json(self) -> None:
        """Saved and read again it is the same column, and makes the same features."""
        part = self.make()
        again = column_from_dict(json.loads(json.dumps(part.to_dict())))
        assert again == part
        np.testing.assert_array_equal(_dense(again, self.batch()), _dense(part, self.batch()))

    def test_width_names_and_flags_agree(self) -> None:
        """There is a name and a flag for each feature, or none at all."""
        part = self.make()
        assert part.width is not None
        assert len(part.names) in (0, part.width)
        assert len(part.flags) in (0, part.width)
        assert _dense(part, self.batch()).shape == (len(self.batch()), part.width)

    def test_features_are_finite(self) -> None:
        """No feature is NaN or infinite, whatever is missing."""
        assert np.isfinite(_dense(self.make(), self.batch())).all()

    def test_flags_are_zero_or_one(self) -> None:
        """Features that keep their size are 0 or 1."""
        part = self.make()
        if len(part.flags):
            assert set(np.unique(_dense(part, self.batch())[:, part.flags])) <= {0.0, 1.0}

    def test_rows_do_not_depend_on_one_another(self) -> None:
        """A row has the same features in any block, in a slice too."""
        part, rows = self.make(), self.batch()
        whole = _dense(part, rows)
        for start in range(len(rows)):
            np.testing.assert_array_equal(_dense(part, rows.slice(start, 1))[0], whole[start])
        assert _dense(part, rows.slice(0, 0)).shape == (0, part.width)

    def test_a_missing_column_is_refused(self) -> None:
        """Data without the column are refused by its name."""
        recipe = Recipe((self.make(),))
        with pytest.raises(PenstockError, match=self.make().columns[0]):
            recipe.for_schema(pa.schema([("another", pa.float32())]), place="here")

    def test_facts_are_json(self) -> None:
        """What a table of columns shows can be written as JSON."""
        json.dumps(self.make().facts())


def _dense(part: FeatureColumn, rows: pa.RecordBatch) -> Floats:
    """Return the features of a column alone as dense rows."""
    x = Recipe((part,)).encode(rows).x
    if not isinstance(x, Csr):
        return x
    dense = np.zeros((len(rows), part.width or x.width), np.float32)
    owners = np.repeat(np.arange(len(rows)), x.indptr[1:].astype(np.int64) - x.indptr[:-1].astype(np.int64))
    np.add.at(dense, (owners, x.indices.astype(np.int64)), x.values)
    return dense
