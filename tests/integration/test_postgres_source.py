"""Tables as they are found in the wild, read from a real PostgreSQL."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime

import numpy as np
import psycopg
import pyarrow as pa
import pytest

import penstock
from penstock.blocks.postgres import PostgresSource
from penstock.blocks.postgres import connect as connecting
from penstock.errors import ColumnError, DataError, SourceError, SourceNotFoundError, UsageError
from tests.servers import name, run


def rows(source, columns=None):
    found = [source.read(block, columns) for block in range(len(source.block_rows))]
    return pa.Table.from_batches(found, found[0].schema) if found else None


def test_open_by_address(database):
    run(database, "CREATE TABLE higgs AS SELECT i AS id, i % 2 AS label FROM generate_series(1, 500) i")
    with penstock.open(database, table="public.higgs", block_size="8KB", columns=["label"]) as source:
        assert source.schema.names == ["label"]
        assert source.name.startswith("public.higgs in postgresql://postgres@")
        assert rows(source)["label"].to_pylist() == [i % 2 for i in range(1, 501)]
    with pytest.raises(UsageError, match=r"no option .conections.*connections"):
        penstock.open(database, table="higgs", conections=3)
    with pytest.raises(UsageError, match="nulls='no' is not known"):
        penstock.open(database, table="higgs", nulls="no")


def test_blocks_are_read_by_tid_range_scans_of_one_table(database):
    run(
        database,
        """CREATE TABLE parent (a int); CREATE TABLE heir () INHERITS (parent); CREATE INDEX ON parent (a);
        INSERT INTO parent SELECT generate_series(1, 1000); INSERT INTO heir SELECT generate_series(1001, 1500)""",
    )
    with PostgresSource(database, "parent", block_size=16384) as source:
        plan = source.explain(1)
        assert "Tid Range Scan on parent" in plan
        assert "heir" not in plan
        assert "TID Cond" in plan
        assert [leaf.name for leaf in source.relation.leaves] == ["parent", "heir"]
        assert sorted(rows(source)["a"].to_pylist()) == list(range(1, 1501))


def test_dead_rows_leave_blocks_of_about_equal_rows(database):
    run(
        database,
        """CREATE TABLE t AS SELECT i AS id, repeat('x', 50) AS filler FROM generate_series(0, 9999) i;
        DELETE FROM t WHERE id BETWEEN 2000 AND 4999 OR (id >= 6000 AND id % 2 = 0)""",
    )
    left = [i for i in range(10_000) if not 2000 <= i < 5000 and (i < 6000 or i % 2)]
    with PostgresSource(database, "t", columns=["id"], block_size=8192) as source:
        assert rows(source)["id"].to_pylist() == left
        full = int(source.block_rows.max())
        counts = source.block_rows[:-1]
        assert (counts >= full // 2).sum() >= len(counts) - 3, counts.tolist()
        assert len(counts) < 70, "pages without rows make no blocks"
    with PostgresSource(database, "t", columns=["id"], block_size=8192, exact=False) as source:
        # Rows may come to those pages later, so all of them belong to some block.
        ranges = [block.range for block in source._blocks]
        assert ranges[0].start == 0
        assert ranges[-1].stop is None
        assert [r.stop for r in ranges[:-1]] == [r.start for r in ranges[1:]]
        assert rows(source)["id"].to_pylist() == left


def test_arrays_stored_beside_a_tiny_heap_make_several_blocks(database):
    run(
        database,
        """CREATE TABLE t (id int, v real[]); ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
        INSERT INTO t SELECT i, array_fill(i::real, ARRAY[2000]) FROM generate_series(0, 499) i""",
    )
    with PostgresSource(database, "t", block_size=1_000_000) as source:
        assert source.relation.leaves[0].nbytes < 100_000
        assert len(source.block_rows) > 2
        assert source.block_bytes.max() < 3_000_000
        assert source.schema.field("v").type == pa.list_(pa.float32(), 2000)
        batch = source.read(1)
        expected = np.repeat(batch["id"].to_numpy(), 2000)
        assert (batch["v"].values.to_numpy() == expected).all()
    with PostgresSource(database, "t", columns=["id"], block_size=1_000_000) as source:
        assert len(source.block_rows) == 1, "what is stored beside does not count where it is not read"


def test_nulls_are_counted_and_placed_or_left_out(database):
    run(
        database,
        """CREATE TABLE t AS SELECT i AS id, CASE WHEN i % 100 <> 7 THEN i::real END AS x,
            CASE WHEN i % 50 = 3 THEN '{1,NULL}' ELSE ARRAY[i, 1] END::real[] AS v FROM generate_series(0, 999) i""",
    )
    with pytest.raises(DataError, match=r"column 'x' is NULL in 10 rows, the first at ctid \(0,8\).*nulls='skip'"):
        PostgresSource(database, "t", columns=["id", "x"], nulls="error")
    with pytest.raises(DataError, match=r"column 'v' holds a NULL in 20 rows, the first at ctid \(0,4\)"):
        PostgresSource(database, "t", columns=["v"])
    with PostgresSource(database, "t", nulls="error") as source:  # a column that nobody reads may have nulls
        assert source.read(0, ["id"]).num_rows
        with pytest.raises(DataError, match="column 'x' is NULL in 10 rows"):
            source.read(0, ["id", "x"])
    with PostgresSource(database, "t", columns=["v", "id", "x"], nulls="skip", block_size=8192) as source:
        found = rows(source)
        assert found["id"].to_pylist() == [i for i in range(1000) if i % 100 != 7 and i % 50 != 3]
        assert found["v"].to_pylist() == [[float(i), 1.0] for i in found["id"].to_pylist()]
        assert int(source.block_rows.sum()) == found.num_rows == 970


@pytest.mark.parametrize("vectors", [False, True])
def test_arrays_of_all_kinds(database, vectors):
    if vectors:  # which make arrays faster, but hold neither NaN nor infinities
        run(database, "CREATE SCHEMA ext; CREATE EXTENSION vector SCHEMA ext")
    run(
        database,
        r"""CREATE DOMAIN pair AS real[];
        CREATE TABLE t AS SELECT ARRAY[i, 0.5]::real[] AS f4, ARRAY[i, 1e-300] AS f8, ARRAY[i, 2] AS i4,
            ARRAY[i, 3]::int8[] AS i8, ARRAY[i, 4]::int2[] AS i2, ARRAY[i, 0.25]::numeric[] AS n,
            ARRAY[i > 1, true] AS b, '[0:1]={1,2}'::pair AS d,
            CASE i WHEN 2 THEN '{NaN,Infinity}' ELSE '{-Infinity,0}' END::real[] AS odd,
            CASE i WHEN 2 THEN '[5:6]={1,2}' ELSE '{1,2}' END::real[] AS shifted FROM generate_series(1, 3) i""",
    )
    with PostgresSource(database, "t") as source:
        assert (source.relation.vectors == "ext") is vectors
        assert set(source.schema.types) == {pa.list_(pa.float32(), 2)}
        plain = ["f4", "i4", "i8", "f8", "i2", "n", "b", "d"]
        found = rows(source, plain).to_pydict()
        for column, second in zip(plain[:6], [0.5, 2.0, 3.0, 0.0, 4.0, 0.25], strict=True):
            assert found[column] == [[1.0, second], [2.0, second], [3.0, second]], column
        assert found["b"] == [[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
        assert found["d"] == [[1.0, 2.0]] * 3
        odd = rows(source, ["odd", "f4"]).to_pydict()
        assert odd["odd"][0] == [-math.inf, 0.0]
        assert math.isnan(odd["odd"][1][0])
        assert odd["odd"][1][1] == math.inf
        assert rows(source, ["shifted", "f4"])["shifted"].to_pylist() == [[1.0, 2.0]] * 3
        assert rows(source, plain).to_pydict() == found, "the way of sending makes no difference"


def test_vectors(database):
    run(
        database,
        """CREATE EXTENSION vector; CREATE TABLE t (v vector(3), w vector);
        INSERT INTO t VALUES ('[1,2,3]', '[1,2]'), ('[4,5,6]', '[3]')""",
    )
    with PostgresSource(database, "t") as source:
        assert source.schema.field("v").type == pa.list_(pa.float32(), 3)
        assert rows(source).to_pydict() == {"v": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "w": [[1.0, 2.0], [3.0]]}


def test_sparse_pairs_are_lists_also_where_all_are_of_one_length(database):
    run(
        database,
        """CREATE TABLE t (id int, features_k int[], features_v real[], label int);
        INSERT INTO t VALUES (1, '{3,99999999}', '{1,2}', 0), (2, '{0,7}', '{3,4}', 1)""",
    )
    with PostgresSource(database, "t") as source:
        assert source.schema.field("features_k").type == pa.list_(pa.int32())
        assert source.schema.field("features_v").type == pa.list_(pa.float32())
        assert rows(source)["features_k"].to_pylist() == [[3, 99999999], [0, 7]]
    with PostgresSource(database, "t", columns=["features_v", "label"]) as source:
        assert source.schema.field("features_v").type == pa.list_(pa.float32(), 2)
    run(database, "INSERT INTO t VALUES (3, '{}', '{}', 1), (4, '{5}', '{6}', 0)")
    with PostgresSource(database, "t") as source:
        assert source.lengths["features_k"] == (0, 2)
        assert rows(source)["features_v"].to_pylist() == [[1.0, 2.0], [3.0, 4.0], [], [6.0]]


def test_bytes_are_packed_features_where_all_are_alike(database):
    x = np.arange(12, dtype="<f4").reshape(4, 3)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (packed bytea, other bytea)")
        for row in x:
            connection.execute("INSERT INTO t VALUES (%s, %s)", (row.tobytes(), b"x" * int(row[0])))
    with PostgresSource(database, "t") as source:
        assert source.schema.field("packed").type == pa.list_(pa.float32(), 3)
        found = rows(source)
        assert found["packed"].to_pylist() == x.tolist()
        assert found["other"].to_pylist() == [b"", b"xxx", b"xxxxxx", b"xxxxxxxxx"]


def test_other_types(database):
    run(
        database,
        """CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN price AS numeric(6, 2);
        CREATE TABLE t (gone int, a mood, b date, c uuid, d varchar(5), e price, f int2, g bool, h timestamptz, i text[],
            j int GENERATED ALWAYS AS (f * 2) STORED);
        ALTER TABLE t DROP COLUMN gone;
        INSERT INTO t VALUES ('ok', '2024-02-29', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'ü', 1.25, 3, true,
            '2024-01-01 12:00+02', '{x,y}');
        SET TIME ZONE 'America/New_York'""",
    )
    with PostgresSource(database, "t") as source:
        assert rows(source).to_pydict() == {
            "a": ["ok"],
            "b": [date(2024, 2, 29)],
            "c": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
            "d": ["ü"],
            "e": [1.25],
            "f": [3],
            "g": [True],
            "h": [datetime(2024, 1, 1, 10, tzinfo=UTC)],
            "i": ["{x,y}"],
            "j": [6],
        }
        kinds = [str(source.schema.field(column).type) for column in "efgj"]
        assert kinds == ["double", "int16", "bool", "int32"]


def test_nulls_are_served_for_the_recipe_to_fill(database):
    columns = {
        "bool": "i % 2 = 0",
        "int2": "i",
        "int8": "i",
        "float4": "i",
        "numeric": "i",
        "date": "'2024-02-29'::date + i",
        "time": "'10:00'::time",
        "timestamp": "'1969-12-31 23:00'",
        "timestamptz": "'2024-01-01 12:00+02'",
        "text": "'ü' || i",
    }
    selected = [
        f"CASE WHEN i <> {at} THEN ({each})::{kind} END AS {kind}" for at, (kind, each) in enumerate(columns.items())
    ]
    run(database, f"CREATE TABLE t AS SELECT i AS id, {', '.join(selected)} FROM generate_series(0, 19) i")
    with PostgresSource(database, "t", columns=["id", *columns]) as source:
        found = rows(source).to_pydict()
    for at, kind in enumerate(columns):
        assert [i for i, value in enumerate(found[kind]) if value is None] == [at]
    assert found["date"][0] == date(2024, 2, 29)
    assert found["timestamp"][0] == datetime(1969, 12, 31, 23)
    assert found["timestamptz"][0] == datetime(2024, 1, 1, 10, tzinfo=UTC)
    assert found["text"][2] == "ü2"


def test_nulls_that_come_later_are_served(database):
    run(database, "CREATE TABLE t AS SELECT i AS id, i::real AS x, i::text AS s FROM generate_series(0, 19) i")
    with PostgresSource(database, "t", columns=["x", "s"], exact=False) as source:
        assert source.read(0).num_rows == 20
        run(database, "UPDATE t SET x = NULL, s = NULL WHERE id = 3")
        source.begin(1)
        assert rows(source).column("x").null_count == rows(source).column("s").null_count == 1


def test_infinity_is_no_date(database):
    run(database, "CREATE TABLE t AS SELECT 'infinity'::date AS d")
    with PostgresSource(database, "t") as source, pytest.raises(DataError, match=r"infinity is no date.*ctid \(0,1\)"):
        source.read(0)


def test_hostile_names(database):
    odd = [
        'a"b',
        "a'; DROP TABLE t; --",
        "select",
        "two words",
        "ünïcode 日本",
        "%s %(x)s {}",
        "x" * 63,
        "dot.ted",
        "\\",
    ]
    for hostile in odd:
        other = hostile[:-1] + "2"
        run(
            database,
            f"""CREATE SCHEMA {name(hostile)};
            CREATE TABLE {name(hostile, hostile)} ({name(hostile)} real, {name(other)} text, v real[]);
            INSERT INTO {name(hostile, hostile)} VALUES (1, 'one', '{{1,2}}'), (2, 'two', '{{3,4}}'), (3, NULL, '{{}}')""",
        )
        with PostgresSource(database, name(hostile, hostile), nulls="skip") as source:
            expected = {hostile: [1.0, 2.0], other: ["one", "two"], "v": [[1.0, 2.0], [3.0, 4.0]]}
            assert rows(source).to_pydict() == expected
            assert "Tid Range Scan" in source.explain()
        with pytest.raises(DataError, match="is NULL in 1 row, the first at ctid"):
            PostgresSource(database, name(hostile, hostile), columns=[other], nulls="error")
        with PostgresSource(database, name(hostile, hostile), columns=[hostile, other]) as source:
            assert rows(source).to_pydict() == {hostile: [1.0, 2.0, 3.0], other: ["one", "two", None]}


def test_names_that_mean_no_table(database):
    run(
        database,
        """CREATE TABLE higgs (a int); CREATE VIEW seen AS TABLE higgs; CREATE SEQUENCE numbers;
        CREATE TABLE "Mixed Case" (a int); INSERT INTO "Mixed Case" VALUES (1);
        CREATE MATERIALIZED VIEW made AS SELECT 1 AS a; CREATE MATERIALIZED VIEW unmade AS SELECT 1 AS a WITH NO DATA;
        CREATE ACCESS METHOD columns TYPE TABLE HANDLER heap_tableam_handler; CREATE TABLE columnar (a int) USING columns""",
    )
    with pytest.raises(SourceError, match=r"public\.columnar in .* is stored by 'columns'"):
        PostgresSource(database, "columnar")
    with pytest.raises(UsageError, match="connections=0"):
        PostgresSource(database, "higgs", connections=0)
    with pytest.raises(SourceNotFoundError, match=r"no table 'higs' \(did you mean 'higgs'\?\)"):
        PostgresSource(database, "higs")
    with pytest.raises(SourceNotFoundError, match=r"no table 'nosuch\.higgs'"):
        PostgresSource(database, "nosuch.higgs")
    with pytest.raises(SourceNotFoundError, match=r"no table 'Mixed Case' \(did you mean '\"Mixed Case\"'\?\)"):
        PostgresSource(database, "Mixed Case")
    with pytest.raises(SourceError, match=r"public\.seen in .* is a view.*penstock sql"):
        PostgresSource(database, "seen")
    with pytest.raises(SourceError, match=r"public\.numbers in .* is a sequence"):
        PostgresSource(database, "numbers")
    with pytest.raises(SourceError, match="REFRESH MATERIALIZED VIEW"):
        PostgresSource(database, "unmade")
    with pytest.raises(ColumnError, match=r"no column 'b'; it has: a"):
        PostgresSource(database, "higgs", columns=["b"])
    for table in ("made", '"Mixed Case"', "HIGGS"):
        with PostgresSource(database, table) as source:
            assert source.schema.names == ["a"]


def test_an_empty_table(database):
    run(database, "CREATE TABLE t (a int, v real[], w text, p bytea); CREATE TABLE none ()")
    with PostgresSource(database, "t") as source:
        assert len(source.block_rows) == 0
        assert [str(kind) for kind in source.schema.types] == ["int32", "list<item: float>", "string", "binary"]
    with pytest.raises(SourceError, match="no columns"):
        PostgresSource(database, "none")


def test_rights(database):
    reader = "penstock_reader"
    run(
        database,
        f"""CREATE ROLE {reader} LOGIN; CREATE TABLE secret (a int); CREATE TABLE half (a int, b int);
        INSERT INTO half VALUES (1, 2); GRANT SELECT (a) ON half TO {reader};
        CREATE TABLE parts (a int) PARTITION BY LIST (a); CREATE TABLE one PARTITION OF parts FOR VALUES IN (1);
        GRANT SELECT ON parts TO {reader}; CREATE SCHEMA closed; CREATE TABLE closed.t (a int)""",
    )
    address = database.replace("postgres@", f"{reader}@")
    try:
        with pytest.raises(
            SourceError, match=rf'may not be read by .* GRANT SELECT ON "public"."secret" TO "{reader}"'
        ):
            PostgresSource(address, "secret")
        for columns in (["a"], ["a", "b"]):  # a right to some columns is none to where the rows are
            with pytest.raises(SourceError, match=r"column '(ctid|b)' of public\.half .* GRANT SELECT ON"):
                PostgresSource(address, "half", columns=columns)
        run(database, f"GRANT SELECT (ctid) ON half TO {reader}")
        with PostgresSource(address, "half", columns=["a"]) as source:
            assert rows(source).to_pydict() == {"a": [1]}
        with pytest.raises(SourceError, match=r"public\.one, a part of public\.parts, .* GRANT SELECT"):
            PostgresSource(address, "parts")
        with pytest.raises(SourceError, match=r"closed.*may not be read"):
            PostgresSource(address, "closed.t")
    finally:
        run(database, f"DROP OWNED BY {reader}; DROP ROLE {reader}")


def test_a_server_too_old(database, monkeypatch):
    monkeypatch.setattr(connecting, "server_version", lambda connection: 130_009)
    with pytest.raises(SourceError, match=r"PostgreSQL 13\.9; .* 14 or later"):
        PostgresSource(database, "t")


def test_the_fingerprint(database):
    run(database, "CREATE TABLE t AS SELECT i AS a, i AS b FROM generate_series(1, 100) i")
    prints = []
    for change in ("", "INSERT INTO t VALUES (0, 0)", "TRUNCATE t", "ALTER TABLE t ALTER b TYPE int8"):
        run(database, change or "SELECT 1")
        with PostgresSource(database, "t") as one, PostgresSource(database, "t") as two:
            assert one.fingerprint == two.fingerprint
            prints.append(one.fingerprint)
    with PostgresSource(database, "t", columns=["a"]) as source:
        prints.append(source.fingerprint)
    assert len(set(prints)) == 5
