"""Messages in the words of a door, from end to end: options are named as the door has them, values stay as they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.bigmodel.storage import Storage
from penstock.cli import app
from penstock.cli.wording import in_own_words
from penstock.columns import choose_features
from penstock.config import Config
from penstock.errors import BudgetError, ColumnError, DatabaseError, FeatureError, UnknownOptionError, UsageError
from penstock.messages import Text, Use
from penstock.sql.session import Session


@pytest.mark.parametrize("command", ["train", "explain", "compare", "convert"])
def test_hive_paths_in_errors_of_the_command_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    part = tmp_path / "d" / "label=1" / "part.csv.gz"
    part.parent.mkdir(parents=True)
    part.write_bytes(gzip.compress(b"a,b\n1,2\n")[:-4])
    more = ["x.arrow"] if command == "convert" else ["--label", "b"]
    found = CliRunner().invoke(app, [command, "d/label=1/part.csv.gz", *more])
    assert found.exit_code != 0
    assert "d/label=1/part.csv.gz" in found.stderr
    assert "--label 1" not in found.stderr


def test_column_names_that_look_like_arguments_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"size=1": [0, 1], "size=2": [1, 0], "y": [0, 1]}), "x.parquet")
    for label in ("z", "size=3"):
        found = CliRunner().invoke(app, ["train", "x.parquet", "--label", label])
        assert repr(label) in found.stderr
        assert "'size=1', 'size=2', y" in found.stderr
        assert "--size" not in found.stderr


def test_what_a_database_says_is_not_reworded() -> None:
    with Session() as session, pytest.raises(DatabaseError) as caught:
        session.sql("SELECT error('give --label clicked')")
    assert "give --label clicked" in str(caught.value)


@pytest.mark.parametrize("value", ["shuffle=x", "leave shuffle out"])
def test_a_statements_own_values_stay(value: str) -> None:
    with Session(duckdb.connect()) as session:
        session.sql("CREATE TABLE t AS SELECT i % 2 AS label, i AS x FROM range(100) r(i)")
        with pytest.raises(UnknownOptionError, match=value):
            session.sql(f"SELECT * FROM t TRAIN BY svm WITH (shuffle = '{value}')")


def test_a_tables_own_name_stays_where_the_buffer_is_too_small() -> None:
    with Session(duckdb.connect()) as session:
        session.sql('CREATE TABLE "a Or memory=b" AS SELECT i % 2 AS label, i AS x FROM range(9999) r(i)')
        with pytest.raises(BudgetError) as caught:
            session.sql("SELECT * FROM \"a Or memory=b\" TRAIN BY svm WITH (buffer_size = '1kB')")
    assert str(caught.value).startswith("line 1, column 50: buffer_size = 1")
    assert "a Or memory=b" in str(caught.value)
    assert caught.value.option == "memory"
    [fix] = caught.value.fixes  # blocks are cut as small as the buffer asks for already
    assert str(fix).startswith("the smallest that works is ")


def test_a_budget_of_a_model_names_its_own_option() -> None:
    with pytest.raises(UsageError, match=r"model_memory='memory=share of the data' is not .* share of the model"):
        Storage(model_memory="memory=share of the data")


def test_names_in_lists_cannot_be_mistaken() -> None:
    assert "it has: 'size=1', 'a,b', c" in str(ColumnError.missing("z", ["size=1", "a,b", "c"], place="x"))


def test_values_to_try_stay() -> None:
    found = CliRunner().invoke(app, ["groups", "train", "x.parquet", "--by", "a", "--label", "b", "--try", "l2=a=b"])
    assert found.exit_code == 2
    assert "'a=b'" in found.stderr


def test_one_mistake_in_the_words_of_three_doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"x": [0.0, 1.0], "label": [0, 1]}), "d.parquet")
    with pytest.raises(UsageError) as caught:
        Config(validation=2)
    assert str(caught.value) == "validation=2 is not a share of the rows; choose one from 0 to below 1"
    found = CliRunner().invoke(app, ["train", "d.parquet", "--label", "label", "--validation", "2"])
    assert "error: --validation 2.0 is not a share of the rows; choose one from 0 to below 1" in found.stderr
    with Session() as session, pytest.raises(UsageError) as caught:
        session.sql("SELECT * FROM 'd.parquet' TRAIN BY svm WITH (test_fraction = 2)")
    assert str(caught.value) == (
        "line 1, column 46: test_fraction = 2.0 is not a share of the rows; choose one from 0 to below 1"
    )
    assert (caught.value.option, caught.value.value) == ("validation", 2.0)


def test_a_kind_of_column_in_the_words_of_three_doors() -> None:
    text = pa.schema([("a b", pa.string()), ("c", pa.string()), ("label", pa.int8())])
    with pytest.raises(FeatureError) as caught:
        choose_features(text, label="label")
    error = caught.value
    assert error.fixes[1] == Text("leave them out: ", Use("exclude", ["a b", "c"]))
    assert "leave them out: exclude=['a b', 'c'], or hash them: hash=['a b:2^20'" in str(error)
    assert "leave them out: --exclude 'a b,c', or hash them: --hash 'a b:2^20' --hash c:2^20" in in_own_words(error)


def test_the_command_line_says_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"x": [0.0, 1.0] * 20, "label": [0, 1] * 20}
    pq.write_table(pa.table(rows), "d.parquet")
    run = ["train", "d.parquet", "--label", "label", "--epochs", "1", "--out", "m.penstock"]
    assert CliRunner().invoke(app, run).exit_code == 0
    (tmp_path / "m.penstock").rename("m.penstock.checkpoint")
    found = CliRunner().invoke(app, [*run, "--resume"])
    assert "train without --resume" in found.stderr
