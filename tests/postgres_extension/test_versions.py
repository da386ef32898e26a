"""The extension on all major versions at hand: it builds without warnings, learns, and predicts."""

from __future__ import annotations

from contextlib import closing

import pytest
from psycopg import errors

from tests.postgres_extension.extension import ExtensionServer, missing, version_params

TABLE = """
    CREATE EXTENSION penstock;
    CREATE TABLE t AS SELECT ARRAY[i % 7, (i > 3000)::int, 1]::real[] AS features_v, i > 3000 AS label
    FROM generate_series(1, 6000) AS i;
    CREATE TABLE parts (LIKE t) PARTITION BY LIST (label);
    CREATE TABLE part_0 PARTITION OF parts FOR VALUES IN (false);
    CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (true);
    INSERT INTO parts SELECT * FROM t;
    CREATE TABLE k AS SELECT ARRAY[i % 7, 7 + (i > 3000)::int] AS features_k, '{1,1}'::real[] AS features_v, label
    FROM (SELECT i, i > 3000 AS label FROM generate_series(1, 6000) AS i) AS s;
"""


@pytest.mark.parametrize("version", version_params())
def test_a_server_learns_and_predicts(version: int) -> None:
    why = missing(version)
    if why:
        pytest.skip(why)
    with closing(ExtensionServer(version)) as server:
        server.run(TABLE)
        lines = [
            line for (line,) in server.run("SELECT penstock.explain('t', 'svm', '{\"block_size\": \"16kB\"}', true)")
        ]
        for node in ("SGD", "TupleShuffle", "BlockShuffle"):
            assert any(f"Custom Scan ({node})" in line for line in lines)
        for table in ("t", "parts", "k"):
            for model in ("logistic", "svm", "linear", "softmax"):
                rows = server.run(
                    f"SELECT held_out_score, rows + held_out_rows FROM penstock.train('{table}', '{model}')"
                )
                assert rows[-1][0] > 0.9, (table, model)
                assert rows[-1][1] == 6000
        assert server.run("SELECT avg((penstock.predict_class('t_svm', features_v)::bool = label)::int) FROM t") == [
            (1,)
        ]
        found = server.run(
            "SELECT avg((penstock.predict_class('k_svm', features_k, features_v)::bool = label)::int) FROM k"
        )
        assert found == [(1,)]
        server.run("CREATE TABLE g AS SELECT features_v, label, 'g' || features_v[1]::int % 3 AS g FROM t")
        for model in ("logistic", "linear"):
            query = "SELECT penstock.train('SELECT features_v, label::int, g FROM g', '{}', group_by => '{{g}}', name => 'g', options => '{}')"
            server.run(query.format(model, '{"buffer_size": "64kB", "l2": [0, 0.01], "replace": true}'))
            threshold = 0 if model == "logistic" else 0.5
            assert server.run(
                f"SELECT bool_and((penstock.predict('g', r) > {threshold}) = label)::text FROM g AS r"
            ) == [("true",)]
        if version >= 17:
            assert server.run("SELECT * FROM penstock.progress") == []
        else:
            with pytest.raises(errors.FeatureNotSupported, match="needs PostgreSQL 17"):
                server.run("SELECT * FROM penstock.progress")
        hidden = """
            CREATE ROLE guest; GRANT USAGE ON SCHEMA penstock TO guest; GRANT SELECT ON t TO guest;
            ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON t USING (features_v[1] = 0); SET ROLE guest;
            SELECT (s).rows FROM (SELECT penstock.sgd(features_v, label::int::real, '{"classes": [0, 1]}') AS s FROM t) AS q
        """
        assert server.run(hidden)[0] == (857,)
