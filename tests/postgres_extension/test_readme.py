"""What postgres/README.md shows is run, and the functions and options that it lists are there."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.postgres_extension.extension import SOURCE

README = (SOURCE / "README.md").read_text()
ASKED: dict[str, Any] = {
    "rate": "constant",
    "shuffle": "none",
    "nulls": "skip",
    "buffer_size": "1MB",
    "memory": "1MB",
    "block_size": "64kB",
    "intercept": False,
    "solver": "sgd",
    "standardize": False,
    "average": False,
    "class_weight": "balanced",
    "replace": True,
    "label": "label",
    "features": "features_v",
    "exclude": "id",
    "classes": [0, 1],
    "weight": "id",
    "validation": 0.2,
    "l1": 0,
    "l2": 0,
}


def table_after(heading: str) -> list[str]:
    """Return the first cells of the table whose first heading that is."""
    lines = README.split("\n")
    start = lines.index(next(line for line in lines if line.startswith(f"| {heading} |"))) + 2
    rows = lines[start:]
    return [row.split("|")[1] for row in rows[: next(i for i, row in enumerate(rows) if not row.startswith("|"))]]


def run(session: psycopg.Connection[Any], text: str) -> list[Any]:
    """Run the statements that a text shows, and return what they give: rows, or how many there were."""
    found = []
    for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL):
        for statement in re.sub(r"--.*", "", block).split(";"):
            if statement.strip():
                cursor = session.execute(statement.encode())
                found.append(cursor.fetchall() if cursor.description else cursor.rowcount)
    return found


def test_the_statements_run(clustered: psycopg.Connection[Any]) -> None:
    clustered.execute("CREATE TABLE clicks AS SELECT * FROM points")
    clustered.execute("CREATE TABLE new_clicks AS SELECT id, features_v FROM points WHERE id % 100 = 0")
    clustered.execute("""CREATE TABLE visits AS SELECT id, nullif(id % 9, 4) AS age, (ARRAY['Oslo', 'Rome'])[1 + id / 10 % 2] AS city,
        '2026-01-01'::date + id % 90 AS day, label AS clicked FROM points WHERE id % 10 = 0""")
    found = run(clustered, README.partition("## Who may do what")[0])
    (
        trained,
        classes,
        best,
        plan,
        models,
        deleted,
        visited,
        rows,
        most,
        accuracy,
        column,
        groups,
        scored,
        fits,
        progress,
    ) = found
    assert progress == []
    assert (len(visited), len(rows)) == (1, 3)
    assert [len(row) for row in trained] == [9] * 5
    assert trained[-1][7] > 0.8
    assert {row[1] for row in classes} == {"0", "1"}
    assert len(best) == 10
    assert "SGD" in plan[0][0]
    assert models[0][:3] == ("first", "logistic", 8)
    assert deleted == 1
    assert all(share > 0.4 for _, share in scored)
    assert [row[0] for row in groups] == [row[:1] for row in map(list, fits)] == [["Oslo"], ["Rome"]]
    assert len(most) == 5
    assert accuracy[0][0] > 0.8
    clustered.execute(column[0][0].encode())
    assert clustered.execute("SELECT count(*) FROM clicks WHERE (score > 0) = (label = 1)").fetchone() > (16_000,)


def test_privileges_are_what_the_recipe_says(clustered: psycopg.Connection[Any]) -> None:
    clustered.execute("SELECT penstock.train('points', 'svm', 'most', '{\"epochs\": 1}')")
    train = "SELECT penstock.train('points', 'svm', 'mine', '{\"epochs\": 1}')"
    predict = "SELECT penstock.predict('most', array_fill(1::real, ARRAY[8]))"
    denied = {
        "trainers": [],
        "predictors": [train, "DELETE FROM penstock.models", "UPDATE penstock.models SET name = 'x'"],
        "shop": [train, predict, "SELECT name FROM penstock.models"],
    }
    roles = ", ".join(denied)
    try:
        run(clustered, README.partition("## Who may do what")[2])
        clustered.execute(f"GRANT SELECT ON points TO {roles}".encode())
        for role, statements in denied.items():
            clustered.execute(f"SET ROLE {role}".encode())
            for statement in statements:
                with pytest.raises(errors.InsufficientPrivilege):
                    clustered.execute(statement.encode())
            if role == "shop":
                predict = "SELECT score_of_click(array_fill(1::real, ARRAY[8]))"
            if role == "trainers":
                clustered.execute(train.encode())
                clustered.execute("DELETE FROM penstock.models WHERE name = 'mine'")
            assert len(clustered.execute(predict.encode()).fetchall()) == 1
            clustered.execute("RESET ROLE")
    finally:
        clustered.execute("RESET ROLE")
        clustered.execute(f"DROP OWNED BY {roles}; DROP ROLE {roles}".encode())


def test_all_functions_are_told_of(session: psycopg.Connection[Any]) -> None:
    query = """SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace
        AND obj_description(oid, 'pg_proc') IS NOT NULL"""
    there = {row[0] for row in session.execute(query)} - {"columns"}
    told = {re.findall(r"penstock\.(\w+)\(", cell)[0] for cell in table_after("function")}
    assert told == there | {"make_catalogue"}


def options() -> list[str]:
    return [name for cell in table_after("option") for name in re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", cell))]


@pytest.mark.parametrize("option", options())
def test_all_options_are_there(clustered: psycopg.Connection[Any], option: str) -> None:
    asked = json.dumps({option: ASKED.get(option, 1)})
    clustered.execute("SELECT penstock.train('points', 'svm', NULL, %s)", (asked,))
