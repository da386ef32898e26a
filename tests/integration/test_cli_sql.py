"""``penstock sql``: statements from an argument, a file, stdin and a prompt; rows for people and for machines."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from penstock.sql.result import Result

pexpect = pytest.importorskip("pexpect")

COMMAND = [sys.executable, "-m", "penstock.cli", "sql"]
MAKE = "CREATE TABLE t AS SELECT i % 2 AS label, i % 2 - 0.5 AS x FROM range(200) r(i)"
TRAIN = "SELECT * FROM t TRAIN BY logistic AS m WITH (epochs = 2)"


def run(*arguments: str, text: str | None = None) -> Any:
    return CliRunner().invoke(app, ["sql", *arguments], input=text or "")


def test_statements_from_an_argument_a_file_and_stdin(tmp_path: Path) -> None:
    db = str(tmp_path / "shop.duckdb")
    script = tmp_path / "train.sql"
    script.write_text(f"-- a model\n{TRAIN};\n")
    made = run(MAKE, "--db", db)
    assert (made.exit_code, made.stdout) == (0, "CREATE 200\n"), made.stderr
    trained = run("--db", db, "--file", str(script))
    assert trained.exit_code == 0, trained.stderr
    assert "epoch" in trained.stdout
    assert "(2 rows)" in trained.stdout
    assert "PREDICT BY m" in trained.stderr
    counted = run(
        "--db",
        db,
        text="SHOW MODELS; SELECT count(*) AS n FROM (SELECT * FROM t PREDICT BY m) WHERE prediction = label",
    )
    assert "logistic" in counted.stdout
    assert "200" in counted.stdout


def test_rows_for_machines(tmp_path: Path) -> None:
    found = run(f"{MAKE}; {TRAIN}; SELECT 1 AS a, NULL AS b, 'x,y' AS c", "--json")
    assert found.exit_code == 0, found.stderr
    made, trained, last = json.loads(found.stdout)["results"]
    assert made["columns"] == []
    assert trained["columns"][:3] == ["epoch", "progressive_loss", "progressive_accuracy"]
    assert [row[0] for row in trained["rows"]] == [1, 2]
    assert last["rows"] == [[1, None, "x,y"]]
    table = list(csv.reader(io.StringIO(run("SELECT 1 AS a, NULL AS b, 'x,y' AS c", "--csv").stdout)))
    assert table == [["a", "b", "c"], ["1", "", "x,y"]]


def test_many_rows_are_cut_for_people() -> None:
    shown = run("SELECT * FROM range(100)")
    assert "(100 rows, the first 40 shown)" in shown.stdout
    assert "(100 rows)" in run("SELECT * FROM range(100)", "--rows", "0").stdout


def test_of_many_epochs_the_first_and_the_last_are_shown() -> None:
    epochs = "SELECT * FROM t TRAIN BY svm AS m WITH (label = 'label', solver = 'sgd', epochs = 12)"
    for ask in ("SELECT 1", "SHOW TRAINING m"):
        lines = run(f"{MAKE}; {epochs}; {ask}", "--rows", "8").stdout.splitlines()
        table = lines[next(at for at, line in enumerate(lines) if line.startswith((" epoch", " training_run"))) + 2 :]
        shown = table[: table.index("(12 rows, the first 3 and the last 5 shown)")]
        assert [line.split()[0].strip("|") for line in shown][3] == "…"
        assert len(shown) == 9
        assert "(12 rows)" in run(f"{MAKE}; {epochs}; {ask}", "--rows", "0").stdout


def test_an_exported_file_that_is_replaced_is_told_of(tmp_path: Path) -> None:
    export = f"EXPORT MODEL m TO '{tmp_path / 'm.penstock'}'"
    done = run(f"{MAKE}; {TRAIN}; {export}")
    assert "replaced" not in done.stderr
    again = run(f"{MAKE}; {TRAIN}; {export}")
    assert f"replaced {tmp_path / 'm.penstock'}, which was there" in again.stderr


def test_numbers_of_steps_one_below_another() -> None:
    result = Result(("epoch", "loss"), [(epoch, 1 / epoch) for epoch in range(1, 10)], steps=True)
    lines = result.lines(4, expanded=True)
    assert [line.split()[2] if line.startswith("-[") else line for line in lines if line[:2] in ("-[", " …", "(9")] == [
        *("1", "2", " …", "8", "9"),
        "(9 rows, the first 2 and the last 2 shown)",
    ]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["SELECT * FROM t TRAIN"], "error:"),
        (["SELECT * FROM t TRAIN BY tree"], "^"),
        (["SELECT 1", "--file", "x.sql"], "one of them"),
        (["SELECT 1", "--csv", "--json"], "choose one"),
        (["--file", "nowhere.sql"], "no file nowhere.sql"),
        (["SELECT 1", "--db", "mysql://host/db"], "postgresql://"),
        (["SELECT 1", "--db", "no/such/folder/x.duckdb"], "no/such/folder"),
        (["SELECT 1", "--db", "shop.duckdb::clicks"], "'clicks' is a table; name the database alone"),
        (["SELECT 1", "--db", "postgresql://u:secret@nowhere/db", "--read-only"], "read-only is for DuckDB files"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(*arguments)
    assert found.exit_code in (1, 2), found.stdout
    assert "error: " in found.stderr
    assert match in found.stderr
    assert "Traceback" not in found.stderr


def test_a_file_of_data_is_no_database(tmp_path: Path) -> None:
    data = tmp_path / "t.parquet"
    run(f"COPY (SELECT 1 AS x) TO '{data}'")
    found = run("SHOW MODELS", "--db", str(data))
    assert found.exit_code == 2
    assert f"SELECT * FROM '{data}'" in found.stderr


def test_where_no_model_can_be_saved_nothing_is_trained(tmp_path: Path) -> None:
    db = str(tmp_path / "shop.duckdb")
    run(f"{MAKE}; {TRAIN}", "--db", db)
    found = run("SELECT * FROM t TRAIN BY svm AS s WITH (epochs = 2, learning_rate = 1e9)", "--db", db, "--read-only")
    assert found.exit_code == 1
    assert "read-only" in found.stderr
    assert "first epoch" not in found.stderr


def test_results_before_a_mistake_are_shown() -> None:
    found = run("SELECT 41 + 1 AS answer; SELECT * FROM nowhere")
    assert found.exit_code == 1
    assert "42" in found.stdout
    assert "nowhere" in found.stderr


def test_a_model_of_the_database_predicts_and_is_evaluated(tmp_path: Path) -> None:
    db, data, out = (str(tmp_path / name) for name in ("shop.duckdb", "t.parquet", "p.parquet"))
    run(f"{MAKE}; {TRAIN}; COPY t TO '{data}'", "--db", db)
    for more in (["predict", "m", data, "--out", out], ["evaluate", "m", data]):
        done = CliRunner().invoke(app, [*more, "--db", db])
        assert done.exit_code == 0, done.output
    assert "accuracy 100.00 %" in done.stdout
    assert run(f"SELECT count(*) FROM '{out}' WHERE prediction IN (0, 1)").stdout.count("200") == 1


@pytest.fixture
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Give the prompt in a pseudo-terminal, by default one that no bar is drawn on."""
    kind = getattr(request, "param", "dumb")
    settings = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": kind, "COLUMNS": "120"}
    child = pexpect.spawn(COMMAND[0], COMMAND[1:], env=settings, encoding="utf-8", timeout=60, dimensions=(40, 120))
    child.expect_exact("penstock> ")
    yield child
    child.close(force=True)


def test_the_prompt(shell: Any, tmp_path: Path) -> None:
    shell.sendline("CREATE TABLE t AS SELECT i % 2 AS label, i % 2 - 0.5 AS scroll")
    shell.expect_exact("... ")
    shell.sendline("FROM range(200) r(i);")
    shell.expect_exact("CREATE 200")
    shell.sendline(f"{TRAIN};")
    shell.expect_exact("(2 rows)")
    shell.expect_exact("PREDICT BY m")
    shell.sendline("SELECT * FROM t TRAIN BY tree;")
    shell.expect_exact("error:")
    shell.expect_exact("penstock> ")
    shell.send("SELECT scr\t")  # completed to the column's name
    shell.expect_exact("scroll")
    shell.sendline(" FROM t LIMIT 1;")
    shell.expect_exact("(1 row)")
    shell.sendline("\\d")
    shell.expect_exact("t (label, scroll)")
    shell.sendline("\\m")
    shell.expect_exact("logistic")
    shell.sendline("\\nothing")
    shell.expect_exact("is not a command")
    shell.sendline("\\q")
    shell.expect(pexpect.EOF)
    shell.wait()
    assert shell.exitstatus == 0
    assert "TRAIN BY logistic" in (tmp_path / "penstock" / "sql_history").read_text()


def test_commands_of_the_prompt(shell: Any) -> None:
    shell.sendline("help")
    shell.expect_exact("statements end with a semicolon")
    shell.expect_exact("penstock> ")
    shell.sendline(
        "CREATE TABLE \"My Table\" (a INTEGER, word VARCHAR); CREATE TABLE u AS SELECT 1 AS x, DATE '2024-02-29' AS day;"
    )
    shell.expect_exact("CREATE")
    shell.expect_exact("penstock> ")
    shell.sendline("\\dt")
    shell.expect(r'"My Table" \|       2\s+u          \|       2\s+\(2 rows\)')
    shell.sendline('\\d "my table";')
    shell.expect(r"column \| type\s+-+\+-+\s+a      \| INTEGER\s+word   \| VARCHAR")
    shell.sendline("\\d tu")
    shell.expect_exact("there is no table 'tu' (did you mean 'u'?); \\dt lists them")
    shell.sendline("\\x")
    shell.expect_exact("a line for each value")
    shell.sendline("SELECT * FROM u;")
    shell.expect(r"-\[ row 1 \]-*\s+x   \| 1\s+day \| 2024-02-29\s+\(1 row\)")
    shell.sendline("\\x")
    shell.expect_exact("are shown as tables")
    shell.sendline("\\timing")
    shell.expect_exact("is shown")
    shell.sendline("SELECT 7 AS seven; SELECT 8 AS eight;")
    shell.expect(r"seven.*time: [0-9.]+ ms.*eight.*time: [0-9.]+ ms")


def test_the_prompt_ends_within_a_statement_but_not_within_a_quote(shell: Any) -> None:
    shell.sendline("SELECT 'half")
    shell.expect_exact("... ")
    shell.sendline("\\q")
    shell.expect_exact("... ")
    shell.sendline("quote' AS text;")
    shell.expect_exact("half \\q quote")
    shell.expect_exact("penstock> ")
    shell.sendline("SELECT 1,")
    shell.expect_exact("... ")
    shell.sendline("\\q")
    shell.expect(pexpect.EOF)
    shell.wait()
    assert shell.exitstatus == 0


@pytest.mark.parametrize("shell", ["xterm"], indirect=True)
def test_training_shows_a_bar(shell: Any) -> None:
    shell.sendline("CREATE TABLE t AS SELECT i % 2 AS label, sin(i) + i % 2 AS x FROM range(20000) r(i);")
    shell.expect_exact("CREATE 20000")
    shell.sendline("SELECT * FROM t TRAIN BY logistic AS m WITH (solver = 'sgd', epochs = 3);")
    shell.expect(r"train .*%")
    shell.expect_exact("(3 rows)")


def test_an_interrupt_stops_the_statement_and_not_the_session(shell: Any) -> None:
    shell.sendline("SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b;")
    shell.expect_exact("b;")
    os.kill(shell.pid, signal.SIGINT)
    shell.expect_exact("stopped")
    shell.expect_exact("penstock> ")
    shell.sendline("SELECT 40 + 2 AS answer;")
    shell.expect_exact("42")
    shell.send("SELECT half a line")
    shell.expect_exact("half a line")
    shell.sendintr()
    shell.expect_exact("^C")
    shell.expect_exact("penstock> ")
    shell.sendeof()
    shell.expect(pexpect.EOF)
