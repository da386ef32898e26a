"""Messages as data: one error, three wordings, and values that no wording touches."""

from __future__ import annotations

import pickle

import pytest

from penstock.cli.wording import command_line
from penstock.errors import BudgetError, DataError, PenstockError, UnknownOptionError, UsageError
from penstock.events import Stream, Warned
from penstock.messages import PYTHON, UNSET, Command, Convert, Given, LeaveOut, Location, Name, Text, Use, Wording
from penstock.sql.wording import StatementWording

CLI = command_line()
SQL = StatementWording(
    frozenset({"memory", "epochs", "exclude", "hash", "standardize", "class_weight"}), {"memory": "buffer_size"}
)


@pytest.mark.parametrize(
    ("part", "python", "cli", "sql"),
    [
        (Given("memory", "1 kB"), "memory='1 kB'", "--memory '1 kB'", "buffer_size = '1 kB'"),
        (Given("memory"), "memory=", "--memory", "buffer_size"),
        (Given("epochs", None), "epochs=None", "no --epochs", "epochs = null"),
        (Use("memory", "1GB"), "memory='1GB'", "--memory 1GB", "WITH (buffer_size = '1GB')"),
        (
            Use("hash", ["a:2^20", "b"]),
            "hash=['a:2^20', 'b']",
            "--hash a:2^20 --hash b",
            "WITH (hash = ['a:2^20', 'b'])",
        ),
        (Use("exclude", ["a", "b"]), "exclude=['a', 'b']", "--exclude a,b", "WITH (exclude = ['a', 'b'])"),
        (Use("standardize", True), "standardize=True", "--standardize", "WITH (standardize = true)"),
        (Use("standardize", False), "standardize=False", "--no-standardize", "WITH (standardize = false)"),
        (
            Use("class_weight", {"yes": 5}),
            "class_weight={'yes': 5}",
            "--class-weight yes=5",
            "WITH (class_weight = [('yes', 5)])",
        ),
        (Use("resume", True), "resume=True", "--resume", "resume=True"),
        (Use("model", "linear"), "model='linear'", "--model linear", "TRAIN BY linear"),
        (Given("page_size", 3), "page_size=3", "page_size=3", "page_size=3"),
        (Name("memory"), "memory", "--memory", "buffer_size"),
        (LeaveOut("memory"), "leave memory out", "leave --memory out", "leave buffer_size out"),
    ],
)
def test_each_face_has_its_own_wording(part: Given | Use | Name | LeaveOut, python: str, cli: str, sql: str) -> None:
    assert [part.render(PYTHON), part.render(CLI), part.render(SQL)] == [python, cli, sql]


@pytest.mark.parametrize("wording", [PYTHON, CLI, SQL])
@pytest.mark.parametrize("part", [Command(("ray", "start"), {"head": True}), Convert("a.csv", {"block_size": "64KB"})])
def test_commands_are_for_the_shell_in_every_face(part: Command | Convert, wording: Wording) -> None:
    assert part.render(wording) in ("ray start --head", "penstock convert a.csv DST.arrow --block-size 64KB")


def test_one_error_in_three_wordings() -> None:
    error = BudgetError(
        "is too little for d/label=1/part.csv.gz, with ",
        Given("epochs", 3),
        option="memory",
        value="a memory=3",
        fixes=["read less", Use("memory", "1GB"), LeaveOut("epochs")],
    )
    assert str(error) == (
        "memory='a memory=3' is too little for d/label=1/part.csv.gz, with epochs=3;"
        " read less, use memory='1GB', or leave epochs out"
    )
    assert error.render(CLI) == (
        "--memory 'a memory=3' is too little for d/label=1/part.csv.gz, with --epochs 3;"
        " read less, use --memory 1GB, or leave --epochs out"
    )
    assert error.render(SQL) == (
        "buffer_size = 'a memory=3' is too little for d/label=1/part.csv.gz, with epochs = 3;"
        " read less, use WITH (buffer_size = '1GB'), or leave epochs out"
    )
    assert (error.option, error.value, error.place) == ("memory", "a memory=3", None)


@pytest.mark.parametrize("value", ["d/label=1/part.csv.gz", "'a memory=3'", "x --label y", "{memory}", "%s"])
@pytest.mark.parametrize("wording", [PYTHON, CLI, SQL])
def test_text_stays_as_it_is(value: str, wording: Wording) -> None:
    error = DataError(f"{value} cannot be read", fixes=[f"mend {value}"], place=value)
    assert error.render(wording) == f"{value}: {value} cannot be read; mend {value}"


def test_what_the_reason_mentions_is_not_put_in_front() -> None:
    error = UsageError("made with ", Given("epochs", 3), ", this run has 5", option="epochs", value=5)
    assert str(error) == "made with epochs=3, this run has 5"
    placed = DataError(Location("a.csv", line=3), " is empty")
    assert (str(placed), placed.place) == ("a.csv:3 is empty", Location("a.csv", line=3))


def test_a_place_with_an_excerpt_is_shown_below() -> None:
    error = UsageError("no", place=Location(line=2, character=3, excerpt="    x\n    ^"))
    assert str(error) == "line 2, column 3: no\n    x\n    ^"


def test_fields_survive_pickling() -> None:
    error = UnknownOptionError.of("shuffle", "corgi", ["corgipile"], place=Location("a", row=3, column="x"))
    error.wording = SQL
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is UnknownOptionError
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_an_error_about_a_value_that_cannot_be_pickled_can() -> None:
    def own() -> None: ...

    error = UsageError("is no model, ", Given("loss", own), option="model", value=own, fixes=[Use("x", own)])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.option == "model"


def test_a_replaced_field_leaves_the_others() -> None:
    error = BudgetError("is too little", option="memory", value=3, fixes=["give more"])
    other = error.replace(fixes=[Use("memory", 9)], place="t")
    assert type(other) is BudgetError
    assert str(other) == "t: memory=3 is too little; use memory=9"
    assert str(error) == "memory=3 is too little; give more"


def test_an_option_without_a_value_is_told_by_its_name() -> None:
    error = UsageError("is for paths", option="out")
    assert (str(error), error.render(CLI), error.value) == ("out= is for paths", "--out is for paths", None)
    assert Given("out").value is UNSET


def test_warnings_are_told_in_the_words_of_their_stream() -> None:
    heard: list[Warned] = []
    stream = Stream([heard.append])  # type: ignore[list-item]  # only warnings are emitted here
    stream.emit(Warned(Text("too little: ", Use("memory", "1GB"))))
    stream.worded(SQL).emit(Warned(Text("too little: ", Use("memory", "1GB"))))
    stream.worded(SQL).emit(Warned("d/label=1"))
    assert [event.message for event in heard] == [
        "too little: memory='1GB'",
        "too little: WITH (buffer_size = '1GB')",
        "d/label=1",
    ]
    assert heard[0].render(CLI) == "too little: --memory 1GB"


def test_every_error_takes_the_same_fields() -> None:
    def subclasses(kind: type[PenstockError]) -> list[type[PenstockError]]:
        return [kind, *(each for direct in kind.__subclasses__() for each in subclasses(direct))]

    for kind in subclasses(PenstockError):
        error = kind("is wrong", option="seed", value=-1, place="a.csv", fixes=["choose 0"])
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (again.option, again.value, again.place, again.fixes) == ("seed", -1, Location("a.csv"), ("choose 0",))
        assert str(again) == str(error) == "a.csv: seed=-1 is wrong; choose 0"
