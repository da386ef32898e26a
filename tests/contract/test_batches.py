"""Every order over every kind of source and column: every row in its batch, every value right, the same each time."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.fields import Fields
from penstock.errors import DataError
from penstock.loader.batches import Batches
from penstock.loader.decode_records import record_decoder
from penstock.records import Ragged
from penstock.shuffle import ORDERS
from tests import kinds, samples

TABLE = samples.table()
VALUES = samples.expected(TABLE)
EXACT = [name for name, order in ORDERS.items() if order.facts.exact]
COLUMNS = {"packed": samples.PACKED, "ragged": samples.RAGGED, "all": None}
X, Y = kinds.rows(samples.ROWS)


@pytest.fixture(scope="module", params=samples.SOURCES)
def stored(request, tmp_path_factory):
    """Return what gives a source with these columns: one of plain columns alone, or one with all of them."""
    folders = [tmp_path_factory.mktemp(request.param) for _ in range(2)]
    simple, full = (samples.store(request.param, f, t) for f, t in zip(folders, (TABLE.select(samples.PLAIN), TABLE)))
    with simple, full:
        yield lambda columns=None: simple if columns and set(columns) <= set(samples.PLAIN) else full


@pytest.fixture(scope="module", params=kinds.KINDS)
def plain(request, tmp_path_factory):
    with kinds.store(request.param, tmp_path_factory.mktemp(request.param), X, Y, block_rows=20) as source:
        yield source, samples.expected(samples.whole(source))


def epoch(stream, values):
    """Return the row numbers of each batch of an epoch, having compared all values after the last was given out."""
    kept = list(stream)
    return [samples.compare(batch, values) for batch in kept]


def flat(batches):
    return [row for batch in batches for row in batch]


def check(source, values, order, scratch, *, columns=None, memory):
    rows = samples.ROWS
    options = {"shuffle": order, "memory": memory, "columns": columns, "row_numbers": True, "scratch": scratch}
    with Batches(source, 32, seed=3, **options) as stream:
        length = stream.epoch_batches()
        first = epoch(stream, values)
        assert len(first) == length
        sizes = [len(batch) for batch in first]
        assert sizes[:-1] == [32] * (length - 1)
        assert sizes[-1] <= 32
        assert stream.epoch == 1
        second = epoch(stream, values)
        stream.set_epoch(0)
        assert epoch(stream, values) == first
    visited = [flat(first), flat(second)]
    if ORDERS[order].facts.exact:
        assert all(sorted(each) == list(range(rows)) for each in visited)
    else:
        assert len(set(visited[0])) == len(visited[0]) < rows
    assert (visited[0] == list(range(rows))) == (order == "none") or order == "block-only"
    with Batches(source, 32, seed=4, **options) as stream:
        visited.append(flat(epoch(stream, values)))
    if order != "block-only":  # two row groups have but two orders
        assert (visited[0] == visited[1]) == (order in ("none", "once"))
        assert (visited[0] == visited[2]) == (order == "none")
    return first, options


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_columns_of_every_kind_come_whole(stored, order, columns, tmp_path, monkeypatch):
    source = stored(columns)
    if columns is None and (len(source.block_rows) == 1 or order not in ("none", "once", "corgipile", "global")):
        return  # a foreign record batch with dictionaries is one block; objects go the same ways as ragged rows
    first, options = check(
        source, VALUES, order, tmp_path, columns=columns, memory=samples.small_memory(source, order, columns)
    )
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    with Batches(source, 32, seed=3, **options) as stream:
        assert [batch["row_number"].tolist() for batch in stream] == first


@pytest.mark.parametrize("order", ORDERS)
def test_every_kind_of_source(plain, order, tmp_path):
    source, values = plain
    check(source, values, order, tmp_path, memory=samples.small_memory(source, order))
    if order in ("corgipile", "global"):
        check(source, values, order, tmp_path, memory="50MB")


@pytest.mark.parametrize("order", ["corgipile", "global", "once", "sliding-window"])
def test_in_memory_it_is_the_same(stored, order, tmp_path):
    for columns in (samples.FIXED, samples.RAGGED, samples.OBJECTS):
        check(stored(columns), VALUES, order, tmp_path, columns=columns, memory="50MB")


def test_arrays_have_the_stored_types_and_shapes(stored):
    with Batches(stored(), 8, shuffle="none") as stream:
        batch = next(iter(stream))
    assert list(batch) == TABLE.schema.names
    kinds_of = {
        "number": (np.int64, (8,)),
        "small": (np.uint8, (8,)),
        "half": (np.float16, (8,)),
        "flag": (np.bool_, (8,)),
        "when": ("M8[us]", (8,)),
        "lasts": ("m8[s]", (8,)),
        "image": (np.uint8, (8, 12)),
        "grid": (np.float64, (8, 3, 2)),
        "tensor": (np.float32, (8, 2, 3)),
        "flags": (np.bool_, (8, 3)),
        "digest": (np.uint8, (8, 4)),
        "info": (object, (8,)),
        "code": (np.int64, (8,)),
    }
    for name, (dtype, shape) in kinds_of.items():
        assert batch[name].dtype == np.dtype(dtype), name
        assert batch[name].shape == shape
        assert batch[name].flags.writeable
    for name, dtype in {"tokens": np.int32, "wide": np.float32, "moments": "M8[ms]", "text": np.uint8}.items():
        assert isinstance(batch[name], Ragged)
        assert batch[name].values.dtype == np.dtype(dtype)


def test_single_rows_and_blocks_of_plain_columns_are_read_where_they_lie(tmp_path):
    for kind in ("converted", "arrow", "arrow-large"):
        for columns in (samples.PACKED, samples.RAGGED):
            with samples.store(kind, tmp_path, TABLE.select(columns)) as source:
                assert record_decoder(source, Fields.of(source.schema)).single


@pytest.mark.parametrize("order", ["corgipile", "global", "none"])
def test_a_tuple_of_columns_gives_tuples_and_a_list_dicts(stored, order):
    wanted = ("tokens", "number", "image")
    with Batches(stored(), 50, shuffle=order, columns=wanted, row_numbers=True) as stream:
        for tokens, number, image, row in stream:
            assert number.tolist() == row.tolist()
            assert samples.plain(tokens) == [VALUES["tokens"][n] for n in row]
            assert image.tolist() == [VALUES["image"][n] for n in row]
    with Batches(stored(wanted), 50, shuffle=order, columns=list(wanted)) as stream:
        assert [list(batch) for batch in stream] == [list(wanted)] * 4


@pytest.mark.parametrize("order", ORDERS)
def test_drop_last_leaves_out_a_smaller_last_batch(order, tmp_path):
    for drop in (False, True):
        with Batches(TABLE, 64, shuffle=order, columns=("number",), drop_last=drop, scratch=tmp_path) as stream:
            for _ in range(2):
                length = stream.epoch_batches()
                sizes = [len(number) for (number,) in stream]
                assert len(sizes) == length
                assert set(sizes) == {64} or not drop
            if order in EXACT:
                assert sizes == [64] * 3 + [8] * (not drop)


def test_batches_are_copies_that_may_be_changed():
    with Batches(TABLE, 32, shuffle="global", columns=("number", "tokens", "image")) as stream:
        kept = []
        for number, tokens, image in stream:
            kept.append((number.copy(), tokens, image.copy()))
            number[:] = -1
            image[:] = 255
            tokens.values[:] = 0
    assert sorted(np.concatenate([number for number, _, _ in kept]).tolist()) == list(range(samples.ROWS))
    assert TABLE["image"].combine_chunks().values.to_numpy().min() < 255
    with Batches(TABLE, 32, shuffle="global", columns=("number", "tokens")) as stream:
        for number, tokens in stream:
            assert samples.plain(tokens) == [VALUES["tokens"][n] for n in number]


@pytest.mark.parametrize("kind", samples.SOURCES)
@pytest.mark.parametrize("column", ["number", "image", "tokens", "text", "info"])
def test_a_null_is_refused_by_row_and_column(kind, column, tmp_path):
    rows = samples.table(100).select(["small", column])
    values = rows[column].to_pylist()
    values[57] = None
    rows = rows.set_column(1, column, pa.array(values, rows[column].type))
    with samples.store(kind, tmp_path, rows, block_rows=10) as source:
        for order in ("corgipile", "global", "once"):
            for memory in ("50MB", samples.small_memory(source, order, ["small"]) + 300_000):
                with (
                    pytest.raises(DataError, match=rf"column '{column}'.*null.*(row 57|block \d)"),
                    Batches(source, 8, shuffle=order, memory=memory, scratch=tmp_path) as stream,
                ):
                    list(stream)
        with Batches(source, 8, columns=["small"]) as stream:
            assert sum(len(batch["small"]) for batch in stream) == 100
