"""Every kind of feature column holds the contract."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa

from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.hashing import Hashed
from penstock.columns.number import Number
from penstock.columns.pairs import Pairs
from penstock.columns.vector import Vector
from penstock.testing.columns import ColumnContract

TEXTS = pa.array(["red", None, "blue", "", "grün", "red", "?"])


class TestNumber(ColumnContract):
    def make(self):
        return Number("age", fill=40.0, missing=True)

    def values(self):
        return pa.array([20.0, None, float("nan"), -1.5])


class TestNumberOfText(ColumnContract):
    def make(self):
        return Number("age", fill=40.0, null_values=("?",))

    def values(self):
        return pa.array(["20", None, "?", " -1.5"])


class TestDuration(ColumnContract):
    def make(self):
        return Number("waited", fill=1.0)

    def values(self):
        return pa.array([datetime.timedelta(seconds=90), None], pa.duration("ms"))


class TestCategory(ColumnContract):
    def make(self):
        return Category("color", ("blue", "red"), rare=True, missing=True, null_values=("?",))

    def values(self):
        return TEXTS


class TestDenseCategory(TestCategory):
    def make(self):
        return Category("color", ("blue", "red"), dense=True)


class TestWeekday(ColumnContract):
    def make(self):
        return Category("day", ("1", "7"), missing=True, of="weekday")

    def values(self):
        return pa.array(["2026-11-16", None, "2026-11-22 23:59:59", "2026-11-18"])


class TestDate(ColumnContract):
    def make(self):
        return Date("day", 20_000.0, missing=True)

    def values(self):
        return pa.array([datetime.date(2026, 11, 18), None])


class TestHashed(ColumnContract):
    def make(self):
        return Hashed("color", 6, missing=True, null_values=("?",))

    def values(self):
        return TEXTS


class TestHashedWords(ColumnContract):
    def make(self):
        return Hashed("text", 6, words=True)

    def values(self):
        return pa.array(["a b a", None, "", "ä b"])


class TestVector(ColumnContract):
    def make(self):
        return Vector("v", 2, ("v[0]", "v[1]"))

    def values(self):
        return pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6, dtype=np.float64)), 2)


class TestPairs(ColumnContract):
    def make(self):
        return Pairs(("indices", "values"), 5)

    def values(self):
        return pa.array([[0, 4], [], [2]], pa.list_(pa.uint32())), pa.array([[1.0, 2.0], [], [3.0]])
