"""The benchmark of mixed tables: what its tables hold, and which figures its bars are about."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import mixed_tables


def test_a_mixed_table_has_numbers_categories_and_nulls() -> None:
    data = mixed_tables.mixed_table(2_000)
    names = data.drop_columns(["label"]).column_names
    assert len(names) == 20
    assert all(0.02 < data[name].null_count / 2_000 < 0.08 for name in names)
    assert len(data["c0"].drop_null().unique()) == 10
    assert set(data["label"].to_pylist()) == {0, 1}


def test_a_row_of_it_has_about_as_many_nonzeros_as_columns(tmp_path: Path) -> None:
    path = tmp_path / "mixed.parquet"
    pq.write_table(mixed_tables.mixed_table(2_000), path)
    assert 18 <= mixed_tables.nonzeros(path) <= 22


def test_bars_are_about_medians_of_rounds() -> None:
    def turns(*rates: float) -> list[dict[str, float]]:
        return [{"first": rate, "later": 10 * rate, "pass": 0.25} for rate in rates]

    found = {
        mixed_tables.NUMBERS_NAME: turns(1_000, 1_000, 1_000),
        mixed_tables.MIXED_NAME: turns(500, 700, 9_000),
        mixed_tables.EQUAL_NAME: turns(1_000, 1_000, 1_000),
    }
    claims = {claim.name: claim for claim in mixed_tables.claims_of(found, 1_000, "1,000 rows")}
    ratio = claims["mixed over numbers of equal non-zeros: rows/s of first epochs"]
    assert ratio.figure == pytest.approx(0.7)
    assert ratio.met
    fitting = claims["mixed: fitting pass over the first epoch"]
    assert fitting.figure == pytest.approx(0.175)
    assert fitting.met
