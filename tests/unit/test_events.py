"""One stream of events for everyone who listens."""

from __future__ import annotations

import logging

import pytest

from penstock.events import Advanced, Epoch, Finished, Started, Stream, Warned


def test_every_listener_hears_every_event_in_order():
    first, second = [], []
    stream = Stream([first.append, second.append])
    events = [Started("train", 10, "rows"), Advanced("train", 4, "loss 0.5"), Finished("train")]
    for event in events:
        stream.emit(event)
    assert first == second == events


def test_warnings_are_logged_as_such_and_the_rest_for_debugging(caplog):
    with caplog.at_level(logging.DEBUG, "penstock"):
        Stream().emit(Warned("the rows are clustered by label"))
        Stream().emit(Finished("train"))
    assert [r.levelno for r in caplog.records] == [logging.WARNING, logging.DEBUG]
    assert "clustered by label" in caplog.records[0].getMessage()


def test_an_epochs_row_has_the_papers_fields_under_their_names():
    row = Epoch(
        epoch=2, metric="accuracy", progressive_loss=0.5, progressive_score=0.75, seconds=2.0, rows=100, bytes=4_000_000
    ).row()
    assert {k: row[k] for k in ("epoch", "progressive_loss", "progressive_accuracy", "seconds", "rows", "bytes")} == {
        "epoch": 2, "progressive_loss": 0.5, "progressive_accuracy": 0.75, "seconds": 2.0, "rows": 100, "bytes": 4_000_000,
    }  # fmt: skip
    assert row["rows_per_second"] == 50
    assert row["mb_per_second"] == 2
    assert not any(name.startswith(("test_", "held_out_")) for name in row)
    assert not {"loss", "accuracy", "score"} & set(row)  # no bare name: these are of no finished model
    tested = Epoch(
        epoch=1,
        metric="r2",
        progressive_loss=1.0,
        progressive_score=0.1,
        seconds=0.0,
        rows=0,
        bytes=0,
        held_out_score=0.3,
        held_out_loss=0.8,
        held_out_rows=7,
        test_score=0.2,
        test_loss=0.9,
    ).row()
    assert (tested["progressive_r2"], tested["test_r2"], tested["test_loss"]) == (0.1, 0.2, 0.9)
    assert (tested["held_out_r2"], tested["held_out_loss"], tested["held_out_rows"]) == (0.3, 0.8, 7)
    assert tested["rows_per_second"] == 0


def test_events_cannot_be_changed():
    with pytest.raises(AttributeError):
        Finished("train").task = "other"
