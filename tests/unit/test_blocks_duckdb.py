"""Tables of DuckDB as blocks: names, types, nulls, row groups, and what is told when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.blocks import convert, duckdb_blocks
from penstock.blocks.duckdb import DuckDBSource, connect_duckdb, translated_errors
from penstock.blocks.duckdb_table import split_name
from penstock.errors import (
    ColumnError,
    CorruptFileError,
    DataChangedError,
    DataError,
    MissingExtraError,
    SourceError,
    SourceNotFoundError,
    UnknownOptionError,
    UsageError,
)

HOSTILE = 'drop "table" students;-- é 表'


@pytest.fixture
def db():
    with closing(connect_duckdb(":memory:")) as connection:
        yield connection


@pytest.fixture
def file(tmp_path):
    with connect_duckdb(tmp_path / "shop.duckdb") as connection:
        connection.execute("CREATE TABLE higgs AS SELECT [i, i + 1]::FLOAT[2] AS x, i % 2 AS y FROM range(5000) r(i)")
    return tmp_path / "shop.duckdb"


def values(source, columns=None):
    return pa.Table.from_batches(
        [source.read(b, columns) for b in range(len(source.block_rows))],
        source.schema if columns is None else pa.schema([source.schema.field(c) for c in columns]),
    ).to_pydict()


def test_open_by_name_suffix_and_first_bytes(file):
    with penstock.open(file, table="higgs") as source:
        assert isinstance(source, DuckDBSource)
        assert source.name == "shop.duckdb:higgs"
        assert source.units is None
        assert source.block_rows.tolist() == [2048, 2048, 904]
    for name in ("shop.ddb", "shop.db"):
        other = file.with_name(name)
        other.write_bytes(file.read_bytes())
        with penstock.open(other, table="higgs", block_size="8KB", columns=["y"]) as source:
            assert source.schema.names == ["y"]
            assert len(source.block_rows) > 3
    with pytest.raises(UnknownOptionError, match="tabel"):
        penstock.open(file, tabel="higgs")
    with pytest.raises(UsageError, match="one is read at a time"):
        penstock.open([file, file.with_name("shop.ddb")])


def test_the_only_table_need_not_be_named(file):
    with connect_duckdb(file) as connection:
        connection.execute("CREATE SCHEMA penstock; CREATE TABLE penstock.models (name TEXT)")
    with penstock.open(file) as source:
        assert source.name.endswith(":higgs")
    with connect_duckdb(file) as connection:
        connection.execute("CREATE TABLE users AS SELECT 1 AS a")
    with pytest.raises(
        UsageError, match=r"shop.duckdb holds 2 tables: higgs, users; say which is meant: table='higgs'"
    ):
        penstock.open(file)


def test_a_table_is_converted_like_any_data(file, tmp_path):
    done = convert(file, tmp_path / "a.arrow", table="higgs", label="y")
    assert done.rows == 5000
    with pytest.raises(UsageError, match="what is written is an Arrow file"):
        convert(file, tmp_path / "b.duckdb")


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    (tmp_path / "junk.duckdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptFileError, match=r"junk.duckdb is not a DuckDB database"):
        connect_duckdb(tmp_path / "junk.duckdb")
    for wrong in (
        lambda: connect_duckdb(tmp_path / "no.duckdb", read_only=True),
        lambda: connect_duckdb(tmp_path / "no" / "a.duckdb"),
    ):
        with pytest.raises(SourceNotFoundError, match=r"there is no file .*no"):
            wrong()
    with pytest.raises(SourceError, match="cannot be opened"):
        connect_duckdb(tmp_path)
    with pytest.raises(UsageError, match="read_only"):
        connect_duckdb(":memory:", read_only=True)
    with pytest.raises(UsageError, match="give the connection"):
        DuckDBSource(":memory:", "t")
    import duckdb

    monkeypatch.setattr(duckdb, "__version__", "1.4.2")
    with pytest.raises(MissingExtraError, match=r"DuckDB 1.4.2 is installed.*pip install 'duckdb>=2.0'"):
        connect_duckdb(":memory:")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"needs duckdb.*penstock\[sql\]"):
        DuckDBSource(tmp_path / "shop.duckdb")


def test_a_file_that_another_process_has_open(file):
    holds = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", holds, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(SourceError, match=rf"open in another process \({other.pid}\).*read_only=True"):
            DuckDBSource(file, "higgs")
        other.stdin.close()


def test_a_file_that_this_process_has_open_is_shared(file):
    with connect_duckdb(file) as writer:
        writer.execute("INSERT INTO higgs VALUES ([1, 2], 3)")
        with DuckDBSource(file, "higgs") as source:
            assert source.block_rows.sum() == 5001
    with DuckDBSource(file, "higgs"), pytest.raises(UsageError, match="give that connection instead"):
        connect_duckdb(file)


def test_names(db):
    db.execute(f'CREATE SCHEMA "{HOSTILE.replace(chr(34), chr(34) * 2)}"')
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    db.execute(f'CREATE TABLE {quoted}.{quoted} AS SELECT i AS {quoted}, i AS "select" FROM range(150000) r(i)')
    db.execute("CREATE TABLE Mixed AS SELECT 1 AS A")
    db.execute("ATTACH ':memory:' AS other; CREATE TABLE other.t AS SELECT 7 AS a")
    for name in ((HOSTILE, HOSTILE), ("memory", HOSTILE, HOSTILE), f"{quoted}.{quoted}"):
        with DuckDBSource(db, name, columns=[HOSTILE, "select"], nulls="skip") as source:
            assert source.read(1, ["select"]).num_rows == source.block_rows[1]
            assert source.fingerprint
            source.check()
    for name in ("mixed", "MIXED", "main.mixed", '"Mixed"'):
        with DuckDBSource(db, name) as source:
            assert values(source) == {"A": [1]}
    for name in ("other.t", ("other", "main", "t")):
        with DuckDBSource(db, name) as source:
            assert values(source) == {"a": [7]}
    with pytest.raises(SourceNotFoundError, match=r"memory has no table 'mixd'.*did you mean 'Mixed'"):
        DuckDBSource(db, "mixd")
    for bad in ("", "a.", ".a", '"a', "a..b", '""'):
        with pytest.raises(UsageError, match="is no name of a table"):
            split_name(bad)


def test_what_has_no_blocks_is_refused(db):
    db.execute(
        "CREATE VIEW v AS SELECT 1 AS a; CREATE TABLE r AS SELECT 1 AS rowid; CREATE TEMP TABLE mine AS SELECT 1 AS a"
    )
    with pytest.raises(UsageError, match=r"memory:v is a view, which has no blocks; .*CREATE TABLE"):
        DuckDBSource(db, "v")
    with pytest.raises(UsageError, match="a column named 'rowid'"):
        DuckDBSource(db, "r")
    with pytest.raises(SourceNotFoundError, match="no table 'mine'"):  # a cursor does not see it
        DuckDBSource(db, "mine")
    with pytest.raises(ColumnError, match="no column 'b'"):
        _plain(db, columns=["b"])
    with pytest.raises(UsageError, match="names no column"):
        _plain(db, columns=[])
    with pytest.raises(UnknownOptionError, match="skip"):
        _plain(db, nulls="drop")


def _plain(db, **options):
    db.execute("CREATE OR REPLACE TABLE plain AS SELECT i::FLOAT AS a FROM range(10) r(i)")
    return DuckDBSource(db, "plain", **options)


def test_types(db):
    db.execute(
        "CREATE TABLE t AS SELECT 3::HUGEINT AS h, 1.25::DECIMAL(9, 2) AS d, true AS b, 'x' AS s, 'a'::ENUM ('a', 'b') AS e,"
        " DATE '2024-01-02' AS day, [1, 2]::DOUBLE[2] AS da, [1, 2] AS li, [1.5, 2]::DECIMAL(4, 1)[] AS dl,"
        " ['p', 'q'] AS words, [[1], [2]] AS nested, {'k': 1} AS st, 1::UTINYINT AS u, [true] AS flags"
    )
    with DuckDBSource(db, "t") as source:
        kinds = {field.name: field.type for field in source.schema}
        row = {name: each[0] for name, each in values(source).items()}
    vector = pa.list_(pa.float32(), 2)
    assert kinds["h"] == kinds["d"] == pa.float64()
    assert kinds["da"] == kinds["li"] == kinds["dl"] == vector
    assert (kinds["s"], kinds["e"], kinds["b"]) == (pa.string(), pa.string(), pa.bool_())
    assert (kinds["day"], kinds["u"], kinds["words"]) == (pa.date32(), pa.uint8(), pa.list_(pa.string()))
    assert (row["h"], row["d"], row["li"], row["dl"], row["e"]) == (3.0, 1.25, [1.0, 2.0], [1.5, 2.0], "a")
    assert (row["nested"], row["st"], row["flags"]) == ([[1], [2]], {"k": 1}, [True])


def test_numbers_beyond_float32(db):
    db.execute("CREATE TABLE t AS SELECT [1e300]::DOUBLE[1] AS v")
    with pytest.raises((DataError, SourceError), match="out of range"):
        DuckDBSource(db, "t", columns=["v"])


def test_lists_of_unequal_length(db):
    db.execute(
        "CREATE TABLE t AS SELECT range(2 + i // 9)::FLOAT[] AS v, encode(repeat('x', 4 + i)) AS p FROM range(12) r(i)"
    )
    with pytest.raises(DataError, match=r"'v' has 2 values at rowid 0 but 3 at rowid 9"):
        DuckDBSource(db, "t", columns=["v"])
    with DuckDBSource(db, "t", columns=["p"]) as source:  # bytes that are no packed numbers
        assert source.schema.types == [pa.binary()]
    with DuckDBSource(db, "t") as source:  # nobody asked for these columns by name
        assert source.schema.types == [pa.list_(pa.float32()), pa.binary()]
        assert len(values(source)["v"][-1]) == 3
    db.execute("CREATE TABLE e AS SELECT []::FLOAT[] AS v, 'xyz'::BLOB AS p FROM range(3)")
    with pytest.raises(DataError, match=r"'v' has 0 values in every row"):
        DuckDBSource(db, "e", columns=["v"])
    with DuckDBSource(db, "e", columns=["p"]) as source:
        assert source.schema.types == [pa.binary()]


def test_half_of_a_pair_alone_is_dense(db):
    db.execute(
        "CREATE TABLE t AS SELECT [0, i] AS features_k, [1, i]::DOUBLE[] AS features_v, i AS label FROM range(5) r(i)"
    )
    with DuckDBSource(db, "t", columns=["features_v", "label"]) as source:
        assert source.schema.field("features_v").type == pa.list_(pa.float32(), 2)
    with DuckDBSource(db, "t") as source:
        assert source.schema.field("features_v").type == pa.list_(pa.float32())


def test_nulls(db):
    db.execute(
        "CREATE TABLE t AS SELECT if(i % 10 = 3, NULL, i) AS a, if(i = 7, NULL, 'x') AS s, i AS c,"
        " if(i = 5, [1, NULL], [1, i])::FLOAT[2] AS v, if(i = 9, NULL, [i, 2])::FLOAT[] AS l FROM range(20) r(i)"
    )
    with pytest.raises(DataError, match=r"t: 2 rows have a null in 'a', the first at rowid 3; .*nulls='skip'"):
        DuckDBSource(db, "t", columns=["a", "c"], nulls="error")
    with pytest.raises(DataError, match=r"1 row has a null in 'v', the first at rowid 5"):
        DuckDBSource(db, "t", columns=["v"])
    with pytest.raises(DataError, match=r"3 rows have a null in 's', 'v', 'l', the first at rowid 5"):
        DuckDBSource(db, "t", columns=["s", "v", "l"], nulls="error")
    with DuckDBSource(db, "t", columns=["a", "s"]) as source:  # for the recipe to fill
        assert values(source)["a"][:4] == [0, 1, 2, None]
        assert values(source)["s"][6:8] == ["x", None]
    with DuckDBSource(db, "t", columns=["v", "l", "a"], nulls="skip") as source:
        assert values(source, ["a"])["a"] == [i for i in range(20) if i not in (3, 5, 9, 13)]
        assert source.schema.field("l").type == pa.list_(pa.float32(), 2)
    with DuckDBSource(db, "t") as source:
        assert source.block_rows.sum() == 20
        assert values(source)["l"][9] is None
        assert values(source)["v"][5] == [1.0, None]


def test_nulls_in_lists_of_large_tables_are_told_by_their_statistics(db):
    db.execute("CREATE TABLE t AS SELECT [i, i]::FLOAT[2] AS v, [i, i]::FLOAT[] AS l FROM range(130000) r(i)")
    with DuckDBSource(db, "t", columns=["v", "l"]) as source:
        assert source.block_rows.sum() == 130000
    db.execute("UPDATE t SET v = [NULL, 1] WHERE rowid = 125000")
    with pytest.raises(DataError, match=r"1 row has a null in 'v'"):
        DuckDBSource(db, "t", columns=["v", "l"])
    db.execute("DELETE FROM t WHERE list_count(v) < 2")
    db.execute("INSERT INTO t VALUES ([1, 2], [NULL, 2])")
    with pytest.raises(DataError, match=r"1 row has a null in 'l'"):
        DuckDBSource(db, "t", columns=["v", "l"])
    with DuckDBSource(db, "t", columns=["l"], nulls="skip") as source:
        assert source.block_rows.sum() == 129999


def test_blocks_are_parts_of_row_groups(db):
    db.execute("CREATE TABLE t AS SELECT i FROM range(200000) r(i)")
    db.execute("INSERT INTO t SELECT i + 200000 FROM range(150000) r(i)")
    with DuckDBSource(db, "t") as source:
        layout = source._layout
        assert {0, 122880, 200000, 322880} <= set(layout.starts.tolist())
        assert layout.ends[-1] == 350000
        assert max(source.block_rows) == 2048  # small data are cut finer
    with DuckDBSource(db, "t", block_size=10**9) as source:
        assert source.block_rows.tolist() == [122880, 77120, 122880, 27120]
    db.execute("ALTER TABLE t ADD COLUMN j INTEGER; UPDATE t SET j = i % 5; ALTER TABLE t DROP COLUMN i")
    db.execute("DELETE FROM t WHERE j = 0 OR rowid BETWEEN 100000 AND 180000")
    with DuckDBSource(db, "t", block_size=500_000) as source:
        found = values(source)["j"]
        assert len(found) == source.block_rows.sum()
        assert found == [row[0] for row in db.execute("SELECT j FROM t ORDER BY rowid").fetchall()]


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_exact_whatever_was_deleted(db, seed, monkeypatch):
    monkeypatch.setattr(duckdb_blocks, "ROW_GROUP", 100)
    rng = np.random.default_rng(seed)
    db.execute("CREATE TABLE t (a INTEGER)")
    for _ in range(4):
        db.execute(f"INSERT INTO t SELECT random() * 100 FROM range({rng.integers(1, 4000)})")
        db.execute(f"DELETE FROM t WHERE a < {rng.integers(0, 60)} AND rowid > {rng.integers(0, 5000)}")
    with DuckDBSource(db, "t", block_size=int(rng.choice([300, 4000, 20000]))) as source:
        assert (source.block_rows > 0).all()
        assert values(source)["a"] == [row[0] for row in db.execute("SELECT a FROM t ORDER BY rowid").fetchall()]


def test_rows_too_large_for_a_vector_to_be_a_block(db):
    db.execute("CREATE TABLE t AS SELECT repeat([i], 2000)::FLOAT[2000] AS v FROM range(600) r(i)")
    with DuckDBSource(db, "t") as source:
        assert source.block_rows.tolist() == [256, 256, 88]


def test_an_empty_table(db):
    db.execute("CREATE TABLE t (v FLOAT[], y INTEGER)")
    with DuckDBSource(db, "t", columns=["v", "y"]) as source:
        assert len(source.block_rows) == 0
        assert source.schema.field("v").type == pa.list_(pa.float32())
        assert source.fingerprint


def test_changes_by_others(db):
    with _plain(db) as source:
        db.execute("DROP TABLE plain")
        for ask in (lambda: source.read(0), source.check):
            with pytest.raises(DataChangedError, match="dropped or altered while it was in use"):
                ask()
    with _plain(db) as source:
        db.execute("ALTER TABLE plain RENAME a TO b")
        with pytest.raises(DataChangedError, match="dropped or altered"):
            source.read(0)
    with _plain(db) as source:
        _plain(db).close()
        with pytest.raises(DataChangedError, match="was changed"):
            source.check()
    with _plain(db) as source:
        db.execute("ALTER TABLE plain ALTER a TYPE VARCHAR")
        with pytest.raises(DataChangedError, match="column 'a' is string, it was served as float"):
            source.read(0)
    db.execute("CREATE TABLE l AS SELECT [1, i, 2]::FLOAT[] AS v FROM range(10) r(i)")
    with DuckDBSource(db, "l") as source:
        db.execute("ALTER TABLE l ALTER v TYPE INTEGER[]")
        with pytest.raises(
            DataChangedError, match=r"column 'v' is list<item: int32>, it was served as fixed_size_list"
        ):
            source.read(0)


def test_the_fingerprint_is_of_the_table_alone(file):
    def taken():
        with DuckDBSource(file, "higgs") as source:
            return source.fingerprint

    before = taken()
    with connect_duckdb(file) as connection:
        connection.execute("CREATE TABLE other AS SELECT * FROM range(100)")
    assert taken() == before
    with connect_duckdb(file) as connection:
        connection.execute("UPDATE higgs SET y = 9 WHERE rowid = 4999; UPDATE higgs SET y = 9 WHERE rowid = 4100")
    assert taken() != before


def test_a_connection_is_left_as_it_was(db):
    db.execute("CREATE TABLE t AS SELECT 1 AS a")
    db.execute("BEGIN; INSERT INTO t VALUES (2)")
    with DuckDBSource(db, "t") as source:
        assert values(source) == {"a": [1]}  # what is not committed is not there
        source._process = -1
        with pytest.raises(SourceError, match="before this process was forked"):
            source.read(0)
    assert db.execute("COMMIT; SELECT count(*) FROM t").fetchall() == [(2,)]


def test_variables_are_no_tables(db):
    table = pa.table({"a": [1]})
    assert table.num_rows
    with pytest.raises(SourceNotFoundError, match="it has none"):
        DuckDBSource(db, "table")


def test_an_interrupt_is_told_as_one():
    with pytest.raises(KeyboardInterrupt), translated_errors(lambda told, error: SourceError(told)):
        raise RuntimeError("Query interrupted")
    with pytest.raises(RuntimeError, match="other"), translated_errors(lambda told, error: SourceError(told)):
        raise RuntimeError("other")
