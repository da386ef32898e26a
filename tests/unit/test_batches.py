"""`Batches` beside its rows: transforms, places in the stream, epochs, and wrong arguments."""

from __future__ import annotations

import threading
import traceback

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import BudgetError, ColumnError, DataChangedError, DataError, UnknownOptionError, UsageError
from penstock.loader.batches import Batches
from penstock.records import Ragged
from penstock.shuffle import order as order_named

ROWS = 120


def table(rows=ROWS, shift=0):
    numbers = np.arange(rows) + shift
    image = pa.array(np.repeat(numbers, 4).reshape(-1, 4).tolist(), pa.list_(pa.float32(), 4))
    return pa.table({"number": numbers, "image": image, "text": [f"row {n}" for n in numbers]})


TABLE = table()


def numbers(stream):
    return [batch["number"].tolist() for batch in stream]


def test_batches_is_the_public_door():
    with penstock.batches(TABLE, 50, shuffle="none", columns=("number",)) as stream:
        assert isinstance(stream, Batches)
        assert [len(number) for (number,) in stream] == [50, 50, 20]


def test_an_order_may_be_given_as_such():
    with (
        Batches(TABLE, 10, shuffle=order_named("global")) as one,
        Batches(TABLE, np.int64(10), shuffle="global") as two,
    ):
        assert numbers(one) == numbers(two)


def test_transforms_of_batches_run_side_by_side_and_keep_the_order():
    meeting = threading.Barrier(3, timeout=30)

    def meet(batch):
        meeting.wait()  # passes only when three are under way at once
        return batch["number"] * 2

    with Batches(TABLE, 10, shuffle="corgipile") as plain, Batches(TABLE, 10, transform=meet, workers=3) as stream:
        assert [batch.tolist() for batch in stream] == [[2 * n for n in batch] for batch in numbers(plain)]


def test_transforms_overlap_with_reading_and_the_loop():
    begun = threading.Semaphore(0)

    def note(batch):
        begun.release()
        return batch

    with Batches(TABLE, 10, shuffle="none", transform=note, workers=2) as stream:
        running = iter(stream)
        next(running)
        for _ in range(3):  # later batches are transformed while the loop is busy with the first
            assert begun.acquire(timeout=30)


def test_per_sample_transforms_take_a_row_and_are_stacked_again():
    def change(row):
        assert isinstance(row["image"], np.ndarray)
        return {"image": row["image"].reshape(2, 2) + 1, "text": row["text"].upper(), "n": int(row["number"])}

    with Batches(TABLE, 50, shuffle="none", transform=change, per_sample=True) as stream:
        first = next(iter(stream))
    assert first["image"].shape == (50, 2, 2)
    assert first["image"][3, 0, 0] == 4
    assert first["n"].tolist() == list(range(50))
    assert isinstance(first["text"], Ragged)
    assert first["text"][7] == "ROW 7"
    with Batches(
        TABLE, 50, columns=("number", "text"), shuffle="none", transform=lambda row: row[0], per_sample=True
    ) as s:
        assert next(iter(s)).tolist() == list(range(50))


def test_rows_of_unequal_length_become_ragged_and_those_of_unequal_shape_are_refused():
    def tokens(row):
        return np.arange(row["number"] % 3)

    with Batches(TABLE, 4, shuffle="none", transform=tokens, per_sample=True) as stream:
        assert next(iter(stream)).lengths.tolist() == [0, 1, 2, 0]

    def images(row):
        return np.zeros((1 + row["number"] % 2, 3))

    with (
        Batches(TABLE, 4, shuffle="none", transform=images, per_sample=True) as stream,
        pytest.raises(UsageError, match=r"rows of shapes \[\(1, 3\), \(2, 3\)\]"),
    ):
        next(iter(stream))


@pytest.mark.parametrize("per_sample", [False, True])
def test_a_failing_transform_fails_the_loop_with_its_own_traceback(per_sample):
    def fail_at_the_fourth(data):
        first = data["number"] if per_sample else data["number"][0]
        if first == 30:
            raise KeyError("no such colour")
        return data["number"]

    with Batches(TABLE, 10, shuffle="none", transform=fail_at_the_fourth, per_sample=per_sample) as stream:
        given = []
        with pytest.raises(KeyError, match="no such colour") as told:
            given.extend(batch.tolist() for batch in stream)
        assert "fail_at_the_fourth" in "".join(traceback.format_tb(told.tb))
        assert stream.state_dict()["batches"] == 3  # from here the epoch can be taken up again
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-transform")] == []


def test_each_pass_is_the_next_epoch_also_after_one_left_early():
    with Batches(TABLE, 10) as stream:
        epochs = [numbers(stream) for _ in range(3)]
        assert stream.epoch == 3
    with Batches(TABLE, 10) as stream:
        for batch in stream:
            assert batch["number"].tolist() == epochs[0][0]
            break
        assert stream.epoch == 0
        assert numbers(stream) == epochs[1]
        stream.set_epoch(0)
        assert numbers(stream) == epochs[0]
        iter(stream)  # a pass of which nothing was taken
        assert numbers(stream) == epochs[1]
        stream.set_epoch(2)
        stream.set_epoch(2)
        assert numbers(stream) == epochs[2]
        with pytest.raises(UsageError, match="epochs count from 0"):
            stream.set_epoch(-1)


def test_set_epoch_begins_anew_but_keeps_a_loaded_place_in_that_epoch():
    with Batches(TABLE, 10) as stream:
        whole = numbers(stream)
        stream.set_epoch(0)
        running = iter(stream)
        next(running)
        next(running)
        state = stream.state_dict()
        stream.set_epoch(0)
        assert numbers(stream) == whole
    with Batches(TABLE, 10) as stream:
        stream.load_state_dict(state)
        stream.set_epoch(0)  # as training loops do before each epoch
        iter(stream)
        assert numbers(stream) == whole[2:]
        stream.load_state_dict(state)
        stream.set_epoch(1)
        assert len(numbers(stream)) == 12


def test_a_place_after_the_last_batch_ends_the_epoch():
    with Batches(TABLE, 10) as stream:
        running = iter(stream)
        for _ in range(12):
            next(running)
        state = stream.state_dict()
        assert (state["epoch"], state["batches"]) == (0, 12)
        assert list(running) == []
        assert stream.state_dict() == state | {"epoch": 1, "batches": 0}
        following = numbers(stream)
    for batch_size in (10, 7):
        with Batches(TABLE, batch_size) as stream:
            stream.load_state_dict(state)
            assert numbers(stream) == []
            assert stream.epoch == 1
            assert [n for batch in numbers(stream) for n in batch] == [n for batch in following for n in batch]


def test_rows_left_out_at_the_end_of_an_epoch_are_not_dealt_out_anew_once_it_has_ended():
    with Batches(TABLE, 50, shuffle="global", drop_last=True) as stream:
        running = iter(stream)
        next(running)
        middle = stream.state_dict()
        next(running)
        state = stream.state_dict()
    for world in (1, 3):
        with Batches(TABLE, 10, shuffle="global", world=world) as stream:
            stream.load_state_dict(state)
            assert len(stream) == 0
            assert numbers(stream) == []
            stream.load_state_dict(middle)
            assert len(stream) == -(-70 // world // 10)
            assert len(numbers(stream)) == -(-70 // world // 10)
            assert len(stream) == 120 // world // 10


def test_len_of_a_resumed_epoch():
    with Batches(TABLE, 10, shuffle="global", world=2) as stream:
        assert len(stream) == 6
        next(iter(stream))
        state = stream.state_dict()
        assert len(stream) == 6
    with Batches(TABLE, 10, shuffle="global", world=2, rank=1) as stream:
        stream.load_state_dict(state)
        assert len(stream) == 6  # of the whole epoch
        assert len(numbers(stream)) == 5
    with Batches(TABLE, 10, shuffle="global", world=5, rank=4) as stream:
        stream.load_state_dict(state)
        assert len(stream) == 2  # 100 rows for five
        assert len(numbers(stream)) == 2
        assert len(stream) == 3


def test_workers_without_rows_at_the_end_of_a_resumed_epoch_repeat_others_rows():
    blocks = penstock.open(TABLE, block_size=TABLE.nbytes // 6)
    with Batches(blocks, 20, shuffle="corgipile") as stream:
        for at, _ in enumerate(stream):
            if at == 4:
                break
        state = stream.state_dict()
    seen = []
    for rank in range(3):
        with Batches(blocks, 5, shuffle="corgipile", rank=rank, world=3) as stream:
            stream.load_state_dict(state)
            seen.append(numbers(stream))
            assert len(seen[-1]) == len(seen[0])
    assert len({n for each in seen for batch in each for n in batch}) == 20


def test_a_state_of_other_data_order_seed_memory_or_columns_is_refused():
    big = table(5000)
    with Batches(TABLE, 10) as stream:
        state = stream.state_dict()
    with Batches(table(shift=1), 10) as stream, pytest.raises(DataChangedError, match="not the data that the state"):
        stream.load_state_dict(state)
    for change, told in (
        ({"shuffle": "global"}, "order='corgipile', the stream has 'global'"),
        ({"seed": 1}, "seed=0, the stream has 1"),
        ({"memory": "20MB"}, "memory=512000000, the stream has 20000000"),
    ):
        with Batches(TABLE, 10, **change) as stream, pytest.raises(UsageError, match=told):
            stream.load_state_dict(state)
    with Batches(TABLE, 10) as stream:
        with pytest.raises(UsageError, match="an earlier version of Penstock"):
            stream.load_state_dict(state | {"version": 1})
        for wrong in ({}, {"version": 2}, state | {"version": 3}):
            with pytest.raises(UsageError, match="not a state of a stream of batches"):
                stream.load_state_dict(wrong)
    source = penstock.open(big, block_size="4kB")
    with Batches(source, 10, memory="120kB") as stream:
        next(iter(stream))
        state = stream.state_dict()
    with (
        Batches(source, 10, memory="120kB", columns=["number"]) as stream,
        pytest.raises(UsageError, match=r"windows hold \d+ rows.*same columns="),
    ):
        stream.load_state_dict(state)


def test_an_exact_shuffle_goes_on_with_other_memory_and_other_columns():
    source = penstock.open(table(2000), block_size="4kB")
    with Batches(source, 100, shuffle="global", memory="200kB") as stream:
        whole = numbers(stream)
        stream.set_epoch(0)
        running = iter(stream)
        for _ in range(7):
            next(running)
        state = stream.state_dict()
    with Batches(source, 100, shuffle="global", memory="50MB", columns=["number"]) as stream:
        stream.load_state_dict(state)
        assert numbers(stream) == whole[7:]


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"batch_size": 0}, UsageError, "batch_size=0 is not a number of rows"),
        ({"batch_size": 2.5}, UsageError, "batch_size=2.5 is not a number of rows"),
        ({"batch_size": True}, UsageError, "batch_size=True is not a number of rows"),
        ({"shuffle": "corgi"}, UnknownOptionError, "shuffle='corgi' is not known.*corgipile"),
        ({"uneven": "repeat"}, UnknownOptionError, "uneven='repeat' is not known.*drop, pad"),
        ({"columns": "number"}, UsageError, r"columns='number' is one text.*\('number',\)"),
        ({"columns": ["numbr"]}, ColumnError, "no column 'numbr'.*did you mean 'number'"),
        ({"columns": ("number", "number")}, ColumnError, "names 'number' twice"),
        ({"columns": []}, ColumnError, "names no column"),
        ({"memory": "1kB"}, BudgetError, "the smallest that works is"),
        ({"memory": "much"}, UsageError, "memory='much'"),
        ({"rank": 2, "world": 2}, UsageError, "rank=2 of world=2: ranks count from 0"),
        ({"rank": -1}, UsageError, "rank=-1 of world=1"),
        ({"world": 0}, UsageError, "world=0"),
        ({"per_sample": True}, UsageError, "per_sample=True says how transform= is called"),
        ({"workers": 0}, UsageError, "workers=0 cannot transform"),
    ],
)
def test_wrong_arguments_are_named_with_the_fix(options, kind, told):
    with pytest.raises(kind, match=told):
        Batches(TABLE, **options)


def test_data_without_rows_or_with_a_column_called_row_number():
    with pytest.raises(DataError, match="has no rows"):
        Batches(TABLE.slice(0, 0))
    clash = TABLE.append_column("row_number", pa.array(np.arange(ROWS)))
    with pytest.raises(UsageError, match=r"adds a column 'row_number'.*columns="):
        Batches(clash, row_numbers=True)
    with Batches(clash, 10, shuffle="none", row_numbers=True, columns=["number"]) as stream:
        assert next(iter(stream))["row_number"].tolist() == list(range(10))


@pytest.mark.parametrize("change", [{"batches": -3}, {"batches": "x"}, {"batches": 9999}, {"epoch": -1}])
def test_a_damaged_state_is_refused(change):
    with Batches(TABLE, 10) as stream:
        with pytest.raises(UsageError, match="damaged"):
            stream.load_state_dict({**stream.state_dict(), **change})
        with pytest.raises(UsageError, match="not a state"):
            stream.load_state_dict(None)
