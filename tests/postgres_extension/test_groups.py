"""A model for each group in the server: those that `GroupBy` learns, in the catalogue as `TRAIN BY … GROUP BY` keeps them."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from psycopg import errors
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.preprocessing import StandardScaler

import penstock
from penstock.groups import GroupBy
from penstock.groups.results import GroupModels
from penstock.sql import connect

Session = psycopg.Connection[Any]
BY = ["country", "device", "day", "moment", "flag", "ratio"]
VISITS = """
    CREATE TABLE visits AS SELECT CASE WHEN g = 5 THEN NULL ELSE (ARRAY['FR', 'D/E', 'I%T', 'ünï', ''])[1 + g] END AS country, g % 2 AS device,
        '2024-01-01'::date + g % 3 AS day, '1969-12-31 23:59:59.5'::timestamp + g % 3 * '1 hour'::interval AS moment, g % 3 = 0 AS flag,
        (g % 3 / 4.0 - 0.25)::numeric(9, 2) AS ratio, CASE WHEN g = 4 THEN 7 ELSE x1 END AS x1, x2, word, x1 * (1 - g % 2 * 2) + noise > 0.1 AS clicked,
        CASE WHEN g = 3 THEN 'c' ELSE (ARRAY['a', 'b', 'c'])[1 + (100 * (x1 + noise))::int % 3] END AS choice, 3 * x1 - g * noise AS price
    FROM (SELECT i * 7 % 6 AS g, (i * 37 % 101)::float8 / 50 - 1 AS x1, CASE WHEN i % 9 <> 0 THEN (i * 53 % 97)::float8 / 48 - 1 END AS x2,
        (ARRAY['a', 'b', 'c'])[1 + i * 13 % 4] AS word, (i * 53 % 7)::float8 / 20 AS noise FROM generate_series(0, 1799) AS i) AS t
"""


def train(session: Session, source: str, model: str, by: list[str], **options: Any) -> list[Any]:
    """Train as ``m``, and return the rows that this gives, by their groups."""
    query = "SELECT * FROM penstock.train(%s, %s, group_by => %s, name => 'm', options => %s)"
    rows = session.execute(query, (source, model, by, json.dumps(options))).fetchall()
    return sorted(rows, key=lambda row: [str(value) for value in row[0]])


def loaded(address: str, name: str = "m") -> GroupModels:
    with closing(connect(address)) as shell:
        model = shell.catalog.load(name)
    assert isinstance(model, GroupModels)
    return model


def rows_of(address: str, query: str) -> pa.Table:
    with closing(connect(address)) as shell:
        table = shell.sql(query).to_arrow()
    assert isinstance(table, pa.Table)
    return table


@pytest.fixture
def visits(session: Session) -> Session:
    session.execute(VISITS.encode())
    return session


@pytest.mark.parametrize(
    ("model", "label", "estimator"),
    [
        ("logistic", "clicked", penstock.LogisticRegression()),
        ("logistic", "choice", penstock.LogisticRegression()),
        ("linear", "price", penstock.LinearRegression()),
    ],
)
def test_it_learns_what_group_by_does(visits: Session, address: str, model: str, label: str, estimator: Any) -> None:
    others = {"clicked", "choice", "price"} - {label}
    rows = train(visits, "visits", model, BY, label=label, exclude=[*others], l2=0.01, validation=0)
    own = loaded(address)
    data = rows_of(address, "SELECT * FROM visits")
    data = data.set_column(data.column_names.index("ratio"), "ratio", data["ratio"].cast(pa.float64()))
    result = GroupBy(data, by=BY, exclude=[*others]).fit(estimator, y=label, search={"l2": [0.01]}, validation=0)
    assert sorted(own.groups) == sorted(result.groups)
    failed = {row[0][0]: row[-1] for row in rows if row[-1]}
    assert failed == ({"ünï": "only one class among its rows"} if label == "choice" else {})
    assert sorted(filter(None, own.frame["reason"].to_pylist())) == sorted(
        filter(None, result.frame["reason"].to_pylist())
    )
    for key in result.groups:
        if key not in set(result.failed["text"].to_pylist()):
            mine, other = own.best(key).weights, result.best(key).weights
            np.testing.assert_allclose(mine.coef, other.coef, atol=2e-3, rtol=2e-3)
            middle = [
                each.intercept.mean() if len(each.intercept) > 1 else 0 for each in (mine, other)
            ]  # of softmax any
            np.testing.assert_allclose(mine.intercept - middle[0], other.intercept - middle[1], atol=2e-3, rtol=2e-3)
    assert own.pooled is not None
    assert own.pooled.best("").weights.coef.shape == mine.coef.shape


def drawn(session: Session, groups: int, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Make a table ``t`` of rows in no order of their groups; return these, the features and the labels."""
    rng = np.random.default_rng(7)
    g = rng.permutation(np.repeat(np.arange(groups), rows))
    x = (rng.standard_normal((len(g), width)) * np.arange(1, width + 1) + 100).astype(np.float32)
    y = (rng.random(len(g)) < 1 / (1 + np.exp(-(x[:, 0] - 100) * np.where(g % 2, 1, -1)))).astype(int)
    session.execute("CREATE TABLE t (g int, features_v real[], label int)")
    with session.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
        for row in zip(g.tolist(), x.tolist(), y.tolist(), strict=True):
            copy.write_row(row)
    return g, x, y


FIT = "SELECT g, (m).* FROM (SELECT g, penstock.fit(features_v, label, '{}') AS m FROM t GROUP BY g) AS q ORDER BY g"


def fit(session: Session, **options: Any) -> list[dict[str, Any]]:
    asked = json.dumps({"classes": [0, 1], **options})
    with session.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(FIT.format(asked).encode()).fetchall()


def test_the_aggregate_finds_the_minimum(session: Session) -> None:
    g, x, y = drawn(session, 4, 150, 3)
    for row in fit(session, l2=0.1):
        here = g == row["g"]
        scaler = StandardScaler().fit(x[here].astype(float))
        model = Reference(C=1 / (0.1 * here.sum()), tol=1e-8).fit(scaler.transform(x[here].astype(float)), y[here])
        coef = model.coef_[0] / scaler.scale_
        np.testing.assert_allclose(row["weights"][:-1], coef, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(row["weights"][-1], model.intercept_[0] - coef @ scaler.mean_, rtol=1e-3)
        assert (row["rows"], row["held_out_rows"], row["config"], row["held_out_loss"]) == (150, 0, 0, None)


def test_the_penalty_is_chosen_by_rows_set_aside_and_judged_by_others(session: Session) -> None:
    drawn(session, 6, 200, 4)
    found, penalties = fit(session, l2=[10, 0.1, "auto"], validation=0.2), [10, 0.1, "auto"]
    assert {row["config"] for row in found} != {0}
    for row in found:
        assert row["config"] == int(np.argmin(row["selection_loss"]))
        assert 15 < row["held_out_rows"] < 70
        assert 15 < row["selection_rows"] < 70
        assert row["held_out_score"] is not None
        again = next(each for each in fit(session, l2=penalties[row["config"]]) if each["g"] == row["g"])
        np.testing.assert_allclose(row["weights"], again["weights"], rtol=2e-3, atol=1e-4)  # of all rows in the end
    assert len({row["held_out_rows"] for row in found}) > 1, "each group has rows of its own held out"
    assert fit(session, l2=[10, 0.1, "auto"], validation=0.2) == found


def test_a_model_of_chance_is_judged_to_be_one(session: Session) -> None:
    session.execute("""CREATE TABLE t AS SELECT i % 3 AS g, ARRAY(SELECT (hashint8(i * 40 + j) / 2e9)::real FROM generate_series(1, 40) AS j)
        AS features_v, (hashint8(-i) > 0)::int AS label FROM generate_series(1, 360) AS i""")
    scores = [row["held_out_score"] for row in fit(session, l2=0, validation=0.3)]
    assert 0.3 < np.mean(scores) < 0.7, "the rows it was learnt from would give nearly 1"


def test_a_group_larger_than_the_buffer_comes_in_blocks(session: Session) -> None:
    drawn(session, 2, 3000, 20)
    usual = fit(session, l2=[1, 0.01], validation=0.2)
    small = fit(session, l2=[1, 0.01], validation=0.2, buffer_size="64kB")
    for one, other in zip(usual, small, strict=True):
        np.testing.assert_allclose(one["weights"], other["weights"], rtol=2e-3, atol=1e-4)
        assert [one[name] for name in ("held_out_rows", "selection_rows", "config")] == [
            other[name] for name in ("held_out_rows", "selection_rows", "config")
        ]
        np.testing.assert_allclose(one["held_out_score"], other["held_out_score"])
    session.execute("SET temp_file_limit = '100kB'; SET work_mem = '64MB'")
    fit(session, l2=1)
    with pytest.raises(errors.ConfigurationLimitExceeded, match="temp_file_limit"):
        fit(session, l2=1, buffer_size="64kB")
    session.execute("RESET temp_file_limit")
    assert len(fit(session, l2=1, buffer_size="64kB")) == 2


def test_one_group_is_held_at_a_time(session: Session) -> None:
    drawn(session, 200, 100, 50)
    session.execute("SET enable_sort = off")
    options = '{"classes": [0, 1]}'
    groups = f"SELECT g, penstock.fit(features_v, label, '{options}') AS m FROM t GROUP BY g"
    plan = [line for (line,) in session.execute(f"EXPLAIN {groups}".encode())]
    assert "GroupAggregate" in plan[0]
    used = "(SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE g IS NOT NULL)"
    query = f"SELECT max(bytes), count(*) FROM (SELECT {used} AS bytes, m FROM ({groups} OFFSET 0) AS q) AS r"
    found = session.execute(query.encode()).fetchone()
    assert found is not None
    assert found[1] == 200
    assert found[0] < 9 << 20, "all groups have 4 MB, twice where they are sorted"


def test_groups_that_cannot_be_learnt_say_why(visits: Session, address: str) -> None:
    told: list[str] = []
    visits.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    visits.execute(
        "UPDATE visits SET country = 'one' WHERE ctid = '(0,1)'; UPDATE visits SET clicked = true WHERE country = 'FR'"
    )
    rows = train(visits, "visits", "logistic", ["country"], label="clicked", features=["x1", "x2"])
    reasons = {row[0][0]: row[-1] for row in rows}
    assert {key for key, reason in reasons.items() if reason} == {"FR", "one"}
    assert reasons["FR"] == "only one class among its rows"
    assert reasons["one"] in ("too few rows: 0 to learn from", "too few rows: 1 to learn from"), "it may be held out"
    assert any("2 of 7 groups have no model" in text for text in told)
    with closing(connect(address)) as shell:
        shown = {row["country"]: row for row in shell.sql("SHOW MODEL m").dicts()}
        assert shown["FR"]["reason"] == reasons["FR"]
        assert shown["D/E"]["held_out_accuracy"] > 0.8
        assert dict(shell.sql("DESCRIBE MODEL m").rows)["groups_without_model"] == 2
        assert shell.sql("SHOW MODELS").column("groups") == [5]
        none = "SELECT count(*) FROM (SELECT * FROM visits PREDICT BY m) AS p WHERE prediction IS NULL"
        assert shell.sql(none).rows == [(0,)], "the pooled model answers"
        query = "SELECT * FROM penstock.train('visits', 'logistic', group_by => '{country}', options => %s)"
        visits.execute(query, ('{"label": "clicked", "features": ["x1"], "unseen": "null"}',))
        assert shell.sql("SHOW MODELS").column("name") == ["m", "visits_logistic"]
        assert shell.sql(none.replace("BY m", "BY visits_logistic")).rows[0][0] > 290


def test_the_shell_reads_what_the_server_keeps(visits: Session, address: str) -> None:
    rows = train(visits, "visits", "logistic", BY, label="clicked", l2=[1, 0.01], features=["x1", "x2", "word"])
    own, data = loaded(address), rows_of(address, "SELECT * FROM visits")
    assert sum(row[1] for row in rows) == 1800
    assert own.metrics["held_out_rows"] == sum(row[3] for row in rows)
    right = sum(row[3] * row[5] for row in rows)
    np.testing.assert_allclose(own.metrics["held_out_accuracy"], right / own.metrics["held_out_rows"])
    pooled = np.average(own.chosen["pooled_accuracy"].to_pylist(), weights=own.chosen["held_out_rows"].to_pylist())
    np.testing.assert_allclose(own.metrics["pooled_accuracy"], pooled)
    assert own.metrics["pooled_accuracy"] < own.metrics["held_out_accuracy"] - 0.05
    assert own.pooled is not None
    assert own.pooled.metrics["held_out_rows"] == own.metrics["held_out_rows"], "the same rows"
    np.testing.assert_allclose(own.pooled.metrics["held_out_accuracy"], pooled)
    data = data.set_column(data.column_names.index("ratio"), "ratio", data["ratio"].cast(pa.float64()))
    with closing(connect(address)) as shell:
        found = shell.sql("SELECT * FROM visits PREDICT BY m").to_arrow()
        predicted = own.predict(data)
        assert found["prediction"].to_pylist() == predicted["prediction"].to_pylist()
        assert len(shell.sql("SHOW TRAINING m")) == 12
        name = "('D/E', 1, '2024-01-02', '1970-01-01T00:59:59.500000', false, 0)"
        assert dict(shell.sql(f"DESCRIBE MODEL m FOR {name}").rows)["rows"] == 300
        assert shell.sql("EVALUATE MODEL m ON SELECT * FROM visits").column("accuracy")[0] > 0.85


@pytest.mark.parametrize("here", [False, True], ids=["learnt in the server", "learnt by the shell"])
def test_rows_find_their_model_in_any_query(visits: Session, address: str, here: bool) -> None:
    by = [*BY, "price"]
    visits.execute("ALTER TABLE visits ALTER price TYPE real USING (0.1 + (ratio * 4 + 1)::int % 2)::real")
    visits.execute("ALTER TABLE visits ADD clock time, ADD code uuid, ADD letter char(4), ADD zoned timestamptz")
    visits.execute(
        "UPDATE visits SET clock = moment::time, code = md5(device::text)::uuid, letter = country, zoned = moment"
    )
    by += ["clock", "code", "letter", "zoned"]
    with closing(connect(address)) as shell:
        if here:
            shell.sql(
                f"SELECT * FROM visits TRAIN BY logistic AS m WITH (label = 'clicked', features = 'x1, x2, word', workers = 1) GROUP BY {', '.join(by)}"
            )
        else:
            train(visits, "visits", "logistic", by, label="clicked", features=["x1", "x2", "word"])
        visits.execute("UPDATE visits SET country = 'other' WHERE x1 > 0.8")
        found = shell.sql("SELECT * FROM visits PREDICT BY m").to_arrow()
    query = """SELECT penstock.predict_class('m', v), (penstock.predict_probabilities('m', v))[2], penstock.probability(penstock.predict('m', v))
        FROM visits AS v"""
    rows = visits.execute(query).fetchall()
    chances = sorted(found.column(found.num_columns - 1).to_pylist())
    assert len({f"{chance:.4f}" for chance in chances}) > 50
    np.testing.assert_allclose(sorted(row[1] for row in rows), chances, atol=2e-5)
    np.testing.assert_allclose([row[1] for row in rows], [row[2] for row in rows], atol=1e-6)
    assert [row[0] == "true" for row in rows] == [row[1] > 0.5 for row in rows]
    with pytest.raises(errors.DatatypeMismatch, match='"device" is text, where groups were made by integer values'):
        visits.execute(
            "SELECT penstock.predict('m', v) FROM (SELECT country, 'x' AS device, x1, x2, word FROM visits) AS v"
        )
    with pytest.raises(errors.UndefinedColumn, match='no column "flag"'):
        visits.execute(
            "SELECT penstock.predict('m', v) FROM (SELECT country, device, day, moment, x1, x2, word FROM visits) AS v"
        )
    with pytest.raises(errors.FeatureNotSupported, match="is a model per group"):
        visits.execute("SELECT penstock.predict('m', ARRAY[1, 2])")


def test_rows_of_other_groups_get_the_pooled_model_or_null(session: Session) -> None:
    g, x, _ = drawn(session, 4, 100, 3)
    query = "SELECT count(*), count(penstock.predict_class('m', q)) FROM (SELECT g + %s AS g, features_v FROM t) AS q"
    for unseen, known in (("pooled", 400), ("null", 200)):
        train(session, "t", "logistic", ["g"], l2=0.1, replace=True, unseen=unseen)
        assert session.execute(query, (2,)).fetchone() == (400, known)
    weights = fit(session, l2=0.1)
    scores = session.execute("SELECT penstock.predict('m', t) FROM t").fetchall()
    own = [
        weights[group]["weights"][:3] @ row + weights[group]["weights"][3]
        for group, row in zip(g.tolist(), x.astype(float), strict=True)
    ]
    np.testing.assert_allclose([row[0] for row in scores], own, atol=5e-3)
    with pytest.raises(errors.DatabaseError, match="has 2 features in a row, where 3 were learnt from"):
        session.execute("SELECT penstock.predict('m', q) FROM (SELECT g, features_v[1:2] AS features_v FROM t) AS q")
    assert session.execute(
        "SELECT penstock.predict('m', q) FROM (SELECT 1 AS g, NULL::real[] AS features_v) AS q"
    ).fetchone() == (None,)


def test_a_damaged_model_per_group_is_told(visits: Session) -> None:
    train(visits, "visits", "logistic", ["country"], label="clicked", features=["x1"])
    for change in (
        "header = jsonb_set(header::jsonb, '{groups,count}', '99')::json",
        "header = jsonb_set(header::jsonb, '{groups,keys,0,0}', '1')::json",
        "header = jsonb_set(header::jsonb, '{groups,keys,0,0}', header::jsonb #> '{groups,keys,0,1}')::json",
        "header = jsonb_set(header::jsonb, '{groups,kinds}', '[\"word\"]')::json",
        "header = (header::jsonb - 'groups')::json",
        "coef = coef[1:5]",
    ):
        with visits.transaction(force_rollback=True):
            visits.execute(f"UPDATE penstock.models SET {change}".encode())
            with pytest.raises(errors.DataCorrupted, match="is damaged"):
                visits.execute("SELECT penstock.predict('m', v) FROM visits AS v")
    with visits.transaction(force_rollback=True):
        visits.execute("UPDATE penstock.models SET format = 3")
        with pytest.raises(errors.FeatureNotSupported, match="newer version"):
            visits.execute("SELECT penstock.predict('m', v) FROM visits AS v")


def test_the_shell_lets_the_server_train(visits: Session, address: str) -> None:
    told: list[str] = []
    train_by = "SELECT * FROM visits TRAIN BY logistic AS {} WITH (label = 'clicked', exclude = 'choice, price', l2 = (1, 0.01){}) GROUP BY {}"
    visits.execute("UPDATE visits SET clicked = NULL WHERE x1 = 1; ALTER TABLE visits ADD one text DEFAULT 'x'")
    with closing(connect(address, listeners=[lambda event: told.append(getattr(event, "message", ""))])) as shell:
        result = shell.sql(train_by.format("inside", "", "country, device"))
        here = shell.sql(train_by.format("here", ", extension = off", "country, device"))
        models: dict[str, Any] = {name: shell.catalog.load(name) for name in ("inside", "here")}
        assert [
            isinstance(json.loads(row[0])["groups"]["table"], dict)
            for row in visits.execute("SELECT header::text FROM penstock.models ORDER BY name DESC").fetchall()
        ] == [True, False]
        assert result.columns == here.columns, "with the pooled model's score"
        assert (len(result), result.status) == (6, "TRAIN 1785")
        assert {text.partition(" rows")[0][-2:] for text in told if "rows have no" in text} == {"15"}
        assert "left out: 'one' (one value); name the features to learn from such columns" in told
        assert models["inside"].recipe.width == models["here"].recipe.width
        for key in models["here"].groups:
            own, other = (models[name].best(key) for name in ("inside", "here"))
            if own.config["l2"] == other.config["l2"]:
                np.testing.assert_allclose(own.weights.coef, other.weights.coef, atol=2e-3, rtol=2e-3)
        assert {models[name].unseen for name in models} == {"pooled"}
        with pytest.raises(penstock.errors.DataError, match="already"):
            shell.sql(train_by.format("inside", "", "country"))
        shell.sql(train_by.format("inside", ", replace = true, unseen = 'null'", "country, flag"))
        assert shell.catalog.load("inside").unseen == "null"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("visits", "workers = 1"),
        ("visits", "epochs = 3"),
        ("visits", "class_weight = 'balanced'"),
        ("visits", "validation = 0, unseen = 'null'"),
        ("visits", "category = 'x1'"),
        ("(SELECT * FROM visits WHERE x1 > 0)", "l2 = 1"),
        ("(SELECT *, md5(x1::text || x2::text || choice) AS many FROM visits)", "features = 'many'"),
    ],
)
def test_what_the_server_does_not_do_is_done_here(visits: Session, address: str, source: str, options: str) -> None:
    with closing(connect(address)) as shell:
        start = "SELECT * FROM visits" if source == "visits" else f"SELECT * FROM {source} AS v"
        shell.sql(
            f"{start} TRAIN BY logistic AS m WITH (label = 'clicked', exclude = 'choice, price', {options}) GROUP BY country".replace(
                "exclude = 'choice, price', features", "features"
            )
        )
        assert isinstance(shell.catalog.load("m"), GroupModels)
    (header,) = visits.execute("SELECT header->'groups'->>'table' FROM penstock.models").fetchone() or ("",)
    assert not header.startswith("{"), "as the client writes it"


def test_what_is_held_out_of_regressions_has_one_score(visits: Session, address: str) -> None:
    train(visits, "visits", "linear", ["country"], label="price", features=["x1"], l2=0, validation=0.4)
    own = loaded(address)
    scores = own.chosen["held_out_r2"].to_pylist()
    assert min(scores) - 0.1 < own.metrics["held_out_r2"] <= 1
    assert own.pooled is not None
    np.testing.assert_allclose(own.metrics["pooled_r2"], own.pooled.metrics["held_out_r2"], rtol=1e-4)


def test_arrays_are_learnt_from_as_they_are(session: Session, address: str) -> None:
    drawn(session, 3, 100, 4)
    train(session, "t", "logistic", ["g"], l2=0.1)
    with closing(connect(address)) as shell:
        accuracy = "SELECT avg((prediction = label)::int::float8) FROM (SELECT * FROM t PREDICT BY m) AS p"
        assert shell.sql(accuracy).rows[0][0] > 0.6
        assert dict(shell.sql("DESCRIBE MODEL m FOR (1)").rows)["features"] == 4


@pytest.mark.parametrize(
    ("model", "by", "options", "error", "told"),
    [
        ("svm", ["country"], {}, errors.FeatureNotSupported, "not svm"),
        ("logistic", ["nothing"], {}, errors.UndefinedColumn, '"nothing" to group by'),
        ("logistic", ["clicked"], {}, errors.InvalidParameterValue, "is the label"),
        ("logistic", ["country", "country"], {}, errors.InvalidParameterValue, "twice"),
        ("logistic", [], {}, errors.InvalidParameterValue, "name the columns"),
        ("logistic", ["pair"], {}, errors.DatatypeMismatch, "cannot name groups"),
        ("logistic", ["country"], {"learning_rate": 0.1}, errors.FeatureNotSupported, "ask for SGD"),
        ("logistic", ["country"], {"l2": [1, -1]}, errors.InvalidParameterValue, "or an array of such"),
        ("logistic", ["country"], {"l2": []}, errors.InvalidParameterValue, "or an array of such"),
        ("logistic", ["country"], {"validation": 1}, errors.InvalidParameterValue, "a share of the rows"),
        ("logistic", ["country"], {"unseen": "largest"}, errors.InvalidParameterValue, '"pooled" or "null"'),
        ("logistic", ["country"], {"buffer_size": "10%"}, errors.InvalidParameterValue, "Give its size"),
        ("logistic", ["price"], {"features": "x2"}, errors.DataException, "no group has a model"),
        ("logistic", ["country"], 3, errors.InvalidParameterValue, "a JSON object"),
    ],
)
def test_what_cannot_be_learnt_is_refused(
    visits: Session, model: str, by: list[str], options: Any, error: type[psycopg.Error], told: str
) -> None:
    query = "SELECT penstock.train('SELECT *, ARRAY[1, 2] AS pair FROM visits LIMIT 60', %s, group_by => %s, name => 'm', options => %s)"
    asked = {"label": "clicked", "features": ["x1"], **options} if isinstance(options, dict) else options
    with pytest.raises(error) as caught:
        visits.execute(query, (model, by, json.dumps(asked)))
    assert told in f"{caught.value} {caught.value.diag.message_detail} {caught.value.diag.message_hint}"
    assert visits.execute("SELECT to_regclass('penstock.models') IS NULL").fetchone() in ((True,), (False,))


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT penstock.train('points', 'svm', 'm', '{\"l2\": [1, 2]}')", "a list of l2 is for models of groups"),
        (
            "SELECT penstock.fit(features_v, 1, ('{\"seed\": ' || id || '}')::penstock.options) FROM points",
            "must be a constant",
        ),
        ("SELECT penstock.least_squares(features_v, label, '{\"l2\": [1, 2]}') FROM points", "a list of l2"),
        ("SELECT penstock.fit(features_v, 2, '{}') FROM points", "the label 2 is not a target"),
        ("SELECT penstock.fit(features_v || NULL::real, 1, '{}') FROM points", "hold a null"),
        ("SELECT penstock.fit(ARRAY['NaN'::real], 1, '{}') FROM points", "feature 1 of 1 is NaN"),
        ("SELECT penstock.fit(features_v[1:1 + id % 2], 1, '{}') FROM points", "features where the others have"),
        ("SELECT penstock.fit(features_v, label, '{}') OVER () FROM points", "window function"),
        (
            "SELECT penstock.fit(array_fill(1::real, ARRAY[2001]), (2 * label - 1)::real, '{}') FROM points LIMIT 1",
            "up to 2000 features",
        ),
        (
            "SELECT penstock.sgd(features_v, label, '{\"classes\": [0, 1]}') FROM points GROUP BY id % 2",
            "Use penstock.fit",
        ),
        (
            "SELECT penstock.fit(features_v, label, '{\"classes\": [0, 1]}') FROM points GROUP BY GROUPING SETS ((id % 2), ())",
            "sorted",
        ),
    ],
)
def test_what_the_aggregates_cannot_do_is_told(clustered: Session, query: str, told: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        clustered.execute(query.encode())
    assert told in f"{caught.value} {caught.value.diag.message_hint}"
    assert clustered.execute("SELECT 1").fetchone() == (1,)


def test_rows_with_nulls_can_be_left_out(clustered: Session) -> None:
    options = '{"classes": [0, 1], "nulls": "skip"}'
    query = f"""SELECT (m).rows, (m).reason FROM (SELECT id % 3 AS g, penstock.fit(CASE WHEN id % 3 > 0 THEN features_v END,
        CASE WHEN id % 5 > 0 THEN label END, '{options}') AS m FROM points GROUP BY 1) AS q ORDER BY g"""
    assert clustered.execute(query.encode()).fetchall() == [
        (0, "too few rows: 0 to learn from"),
        (5334, None),
        (5333, None),
    ]


def test_a_timeout_stops_it_and_leaves_no_model(clustered: Session) -> None:
    clustered.execute("SET statement_timeout = 400")
    options = json.dumps({"l2": [10.0**-i for i in range(1, 300)]})
    with pytest.raises(errors.QueryCanceled):
        clustered.execute(
            "SELECT penstock.train('SELECT features_v, label, id %% 2 AS g FROM points', 'logistic', group_by => '{g}', options => %s)",
            (options,),
        )
    clustered.execute("RESET statement_timeout")
    assert clustered.execute("SELECT to_regclass('penstock.models')").fetchone() == (None,)


def test_settings_are_as_before(visits: Session) -> None:
    visits.execute("SET work_mem = '1MB'")
    train(visits, "visits", "logistic", ["country"], label="clicked", features=["x1"])
    assert visits.execute("SELECT current_setting('work_mem'), current_setting('search_path')").fetchone() == (
        "1MB",
        '"$user", public',
    )


def test_models_are_replaced_when_that_is_asked(visits: Session, address: str) -> None:
    train(visits, "visits", "logistic", ["country"], label="clicked", features=["x1"])
    with pytest.raises(errors.UniqueViolation, match="already"):
        train(visits, "visits", "logistic", ["device"], label="clicked", features=["x1"])
    train(visits, "visits", "logistic", ["device"], label="clicked", features=["x1"], replace=True)
    assert loaded(address).by == ("device",)
