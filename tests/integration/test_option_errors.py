"""Errors of options, columns and tables name the value, the place and what to do."""

from __future__ import annotations

import datetime
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock.budget import Budget
from penstock.cli import app
from penstock.errors import BudgetError, DatabaseError, LabelError, UnknownOptionError, UsageError
from penstock.loader.plan import plan_memory
from penstock.sql import connect

ROWS = pa.table(
    {"a": [i / 7 for i in range(4_000)], "b": [i % 13 for i in range(4_000)], "y": [i % 2 for i in range(4_000)]}
)


def test_a_share_of_memory_is_told_of_as_it_was_written():
    sizes = {"row_bytes": 1_000.0, "rows": 100_000, "block_rows": 50_000, "thread_bytes": 0, "most_threads": 1}
    told = r"memory='1%', which is 1.0 MB of 100 MB, cannot hold two blocks of table"
    with penstock.open(ROWS) as source, pytest.raises(BudgetError, match=told) as raised:
        plan_memory(source, memory=Budget.parse("1%"), layout="filled", mixed=False, **sizes)
    assert raised.value.value == "1%"
    assert Budget.parse("0.0001%").resolve(1_000) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--epochs", "2.5"), "'--epochs': '2.5' is not a whole number; give one, such as 10"),
        (("--validation", "10%"), "'--validation': '10%' is not a number; give one, such as 0.1"),
    ],
)
def test_values_of_the_wrong_type_are_repeated(given: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(app, ["train", "rows.parquet", "--label", "y", *given])
    assert (result.exit_code, told in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("rounds = 0", "choose 1 or more"),
        ("num_leaves = 1", "choose from 2 to 131072"),
        ("max_depth = -2", "choose -1 or more"),
    ],
)
def test_numbers_out_of_range_are_told_the_range(option: str, told: str) -> None:
    with connect() as session:
        session.sql("CREATE TABLE t AS SELECT i AS a, i % 2 AS y FROM range(100) AS r(i)")
        with pytest.raises(UsageError, match=f"{option} is out of range; {told}"):
            session.sql(f"SELECT * FROM t TRAIN BY boosting WITH (label = 'y', {option})")


def test_a_label_of_another_type_is_named_with_its_place():
    days = pa.array([datetime.date(2026, 1, 1)] * len(ROWS))
    with pytest.raises(LabelError, match=r"table: 'day' is date32\[day\]; a label is text, a number or a boolean"):
        penstock.LogisticRegression().fit(ROWS.append_column("day", days), "day")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM trisp TRAIN BY logistic WITH (label = 'y')",
        "EXPLAIN SELECT * FROM trisp TRAIN BY logistic WITH (label = 'y')",
        "PACK trisp INTO p WITH (label = 'y')",
    ],
)
def test_a_table_that_is_not_there_is_told_with_those_that_are(statement: str) -> None:
    with connect() as session:
        with pytest.raises(DatabaseError, match="memory has no table 'trisp'; it has none"):
            session.sql(statement)
        session.sql("CREATE TABLE trips AS SELECT i AS a, i % 2 AS y FROM range(100) AS r(i)")
        with pytest.raises(DatabaseError, match=r"no table 'trisp'; it has: trips \(did you mean 'trips'\?\)"):
            session.sql(statement)


def test_what_writes_to_a_database_that_is_only_read_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    training = "SELECT * FROM t TRAIN BY logistic AS m WITH (label = 'y', epochs = 1)"
    with connect(path) as session:
        session.sql("CREATE TABLE t AS SELECT i % 7 AS a, i % 2 AS y FROM range(300) AS r(i)")
        session.sql(training)
    with closing(connect(path, read_only=True)) as session:
        for statement in (training.replace("AS m", "AS n"), "DROP MODEL m", "CREATE TABLE u AS SELECT 1 AS x"):
            with pytest.raises(
                DatabaseError, match="'t' is open read-only, and this writes to it; open it for writing"
            ):
                session.sql(statement)


def test_misspelled_arguments_are_told_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownOptionError, match=r"no option 'memroy' \(did you mean 'memory'\?\)"):
        penstock.explain(ROWS, label="y", memroy="1GB")
    with pytest.raises(UnknownOptionError, match=r"no option 'lable' \(did you mean 'label'\?\)"):
        penstock.convert(ROWS, tmp_path / "t.arrow", lable="y")
    with pytest.raises(
        UnknownOptionError, match="no option 'delimiter' for data that are no file or address; leave it out"
    ):
        penstock.open(ROWS, delimiter=",")
    path = tmp_path / "t.csv"
    path.write_text("a,y\n1,0\n")
    with pytest.raises(UnknownOptionError, match=r"no option 'delimeter' for .* \(did you mean 'delimiter'\?\)"):
        penstock.open(path, delimeter=",")
