"""`penstock.torch.DataLoader`: the batches of `penstock.batches`, as tensors."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import stats

import penstock
from penstock.errors import BudgetError, ColumnError, DataChangedError, NoMethodError, UnknownOptionError, UsageError
from penstock.loader.batches import Batches
from penstock.shuffle import ORDERS
from penstock.torch import DataLoader
from tests import samples
from tests.order_quality import label_balance

TABLE = samples.table()
VALUES = samples.expected(TABLE)


@pytest.fixture(scope="module", params=["table", "converted", "parquet"])
def stored(request, tmp_path_factory):
    with samples.store(request.param, tmp_path_factory.mktemp(request.param), TABLE) as source:
        yield source


def plain(column):
    if isinstance(column, torch.Tensor):
        return column.tolist()
    return [value.tolist() if isinstance(value, torch.Tensor) else value for value in column]


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_gives_the_batches_of_penstock_batches_as_tensors(stored, order, tmp_path):
    options = {"shuffle": order, "memory": samples.small_memory(stored, order), "scratch": tmp_path, "seed": 1}
    with Batches(stored, 32, row_numbers=True, **options) as stream:
        expected = [batch["row_number"].tolist() for _ in range(2) for batch in stream]
    with DataLoader(stored, 32, row_numbers=True, **options) as loader:
        length = len(loader) if ORDERS[order].facts.exact else None
        given = [list(loader) for _ in range(2)]
    assert length in (None, len(given[0]))
    batches = given[0] + given[1]
    assert [batch["row_number"].tolist() for batch in batches] == expected
    for batch, rows in zip(batches, expected, strict=True):
        for name, column in batch.items():
            if name != "row_number":
                assert plain(column) == [VALUES[name][row] for row in rows], name


def test_tensors_have_the_stored_types(stored):
    with DataLoader(stored, 8, shuffle=False) as loader:
        batch = next(iter(loader))
    assert {name: batch[name].dtype for name in samples.FIXED} == {
        "number": torch.int64,
        "small": torch.uint8,
        "half": torch.float16,
        "flag": torch.bool,
        "when": torch.int64,  # units since 1970
        "lasts": torch.int64,
        "image": torch.uint8,
        "grid": torch.float64,
        "tensor": torch.float32,
        "flags": torch.bool,
        "digest": torch.uint8,
    }
    assert batch["tensor"].shape == (8, 2, 3)
    assert [each.dtype for each in batch["tokens"]] == [torch.int32] * 8
    assert [each.dtype for each in batch["moments"]] == [torch.int64] * 8
    assert isinstance(batch["text"][0], str)
    assert isinstance(batch["raw"][0], bytes)
    assert isinstance(batch["info"][0], dict)


def test_shuffle_may_be_true_or_false_as_with_the_stock_loader():
    with DataLoader(TABLE, 50, shuffle=False, columns=("number",)) as loader:
        assert torch.cat([number for (number,) in loader]).tolist() == list(range(samples.ROWS))
    with (
        DataLoader(TABLE, 50, shuffle=True, columns=("number",)) as one,
        DataLoader(TABLE, 50, columns=("number",)) as two,
    ):
        assert all(torch.equal(a[0], b[0]) for a, b in zip(one, two, strict=True))
    assert DataLoader(TABLE, drop_last=True).batch_size == 1
    assert DataLoader(TABLE, drop_last=True).drop_last
    assert DataLoader(TABLE).data is TABLE


def test_kept_batches_stay_as_they_were():
    with DataLoader(TABLE, 16, shuffle="global", columns=("number", "tokens", "image")) as loader:
        kept = list(loader)
    for number, tokens, image in kept:
        assert plain(tokens) == [VALUES["tokens"][n] for n in number]
        assert image.tolist() == [VALUES["image"][n] for n in number]
        image += 1  # memory of its own, that may be written to


def test_transforms_of_batches_take_tensors_run_side_by_side_and_keep_the_order():
    meeting = threading.Barrier(3, timeout=30)

    def meet(batch):
        meeting.wait()
        return batch["image"].float().mean(dim=1), batch["number"]

    columns = ["image", "number"]
    with (
        DataLoader(TABLE.slice(0, 192), 16, transform=meet, workers=3, columns=columns) as loader,
        DataLoader(TABLE.slice(0, 192), 16, columns=columns) as straight,
    ):
        for (mean, number), batch in zip(loader, straight, strict=True):
            assert torch.equal(number, batch["number"])
            assert torch.equal(mean, batch["image"].float().mean(dim=1))


def test_per_sample_transforms_are_collated():
    def change(row):
        assert row["number"].shape == ()
        return {"image": row["image"].reshape(3, 4).float(), "words": row["text"], "size": len(row["tokens"])}

    with DataLoader(TABLE, 10, shuffle="none", transform=change, per_sample=True) as loader:
        batch = next(iter(loader))
    assert batch["image"].shape == (10, 3, 4)
    assert batch["words"] == VALUES["text"][:10]
    assert batch["size"].tolist() == [len(each) for each in VALUES["tokens"][:10]]

    def pad(rows):
        return torch.nn.utils.rnn.pad_sequence([tokens for tokens, _ in rows], batch_first=True)

    with DataLoader(
        TABLE,
        10,
        shuffle="none",
        columns=("tokens", "number"),
        transform=lambda row: row,
        per_sample=True,
        collate_fn=pad,
    ) as loader:
        padded = next(iter(loader))
    assert padded.shape == (10, max(len(each) for each in VALUES["tokens"][:10]))


def test_a_failing_transform_fails_the_loop_with_its_own_traceback():
    def fails_here(batch):
        raise ZeroDivisionError("of one's own")

    with DataLoader(TABLE, 10, transform=fails_here) as loader, pytest.raises(ZeroDivisionError) as told:
        next(iter(loader))
    assert "fails_here" in "".join(traceback.format_tb(told.tb))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinning_without_an_accelerator_warns_and_works():
    with pytest.warns(UserWarning, match="pin_memory=True has no effect: there is no accelerator"):
        loader = DataLoader(TABLE, 50, shuffle="none", pin_memory=True, columns=("number",))
    with loader:
        assert next(iter(loader))[0].tolist() == list(range(50))


def test_what_may_be_pinned_is_wherever_it_stands(monkeypatch):
    from collections import namedtuple

    from penstock.torch.tensors import pinned

    pair = namedtuple("pair", "a b")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    zero = torch.zeros(2)
    made = pinned({"a": zero, "b": [zero, "text"], "c": pair(zero, 3), "d": (zero,)})
    assert made["a"].tolist() == made["b"][0].tolist() == made["c"].a.tolist() == made["d"][0].tolist() == [1, 1]
    assert made["b"][1] == "text"
    assert isinstance(made["c"], pair)


@pytest.mark.parametrize("order", ["corgipile", "global"])
def test_a_place_survives_json_and_another_world(order, tmp_path):
    with samples.store("converted", tmp_path, TABLE) as source:
        options = {"shuffle": order, "columns": ("number",), "memory": samples.small_memory(source, order, ["number"])}
        with DataLoader(source, 16, **options) as loader:
            whole = [number.tolist() for (number,) in loader]
            loader.set_epoch(0)
            running = iter(loader)
            given = [next(running)[0].tolist() for _ in range(4)]
            state = json.loads(json.dumps(loader.state_dict()))
        assert given == whole[:4]
        with DataLoader(source, 16, **options) as loader:
            loader.load_state_dict(state)
            assert loader.epoch == 0
            assert [number.tolist() for (number,) in loader] == whole[4:]
        rest = []
        for rank in range(2):
            with DataLoader(source, 8, rank=rank, world=2, **options) as loader:
                loader.load_state_dict(state)
                mine = [number.tolist() for (number,) in loader]
                rest += mine
        assert sorted({n for batch in given + rest for n in batch}) == list(range(samples.ROWS))


def test_a_loop_left_early_leaves_no_thread():
    for _ in range(5):
        loader = DataLoader(TABLE, 4, shuffle="global", transform=lambda batch: batch)
        for _ in loader:
            break
        loader.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")] == []
    with pytest.raises(UsageError, match="was closed"):
        iter(loader)


def test_quality_does_not_tell_global_from_randperm():
    rows = 4000
    labels = np.repeat([0, 1], rows // 2)
    source = penstock.open(pa.table({"number": np.arange(rows)}), block_size="1kB")
    generator = torch.Generator().manual_seed(0)
    theirs = [label_balance(labels[torch.randperm(rows, generator=generator).numpy()], 50) for _ in range(60)]
    with DataLoader(source, 50, shuffle="global", columns=("number",)) as loader:
        ours = [label_balance(labels[torch.cat([n for (n,) in loader]).numpy()], 50) for _ in range(60)]
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3
    assert 0.9 < np.mean(ours) < 1.1


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"batch_size": 0}, UsageError, "batch_size=0"),
        ({"shuffle": "x"}, UnknownOptionError, "shuffle='x' is not known"),
        ({"columns": "x"}, UsageError, "columns='x' is one text"),
        ({"columns": ("x",)}, ColumnError, "no column 'x'"),
        ({"memory": 100}, BudgetError, "the smallest that works"),
        ({"rank": 1}, UsageError, "rank=1 and world=None: give both"),
        ({"world": 2}, UsageError, "rank=None and world=2: give both"),
        ({"rank": 3, "world": 2}, UsageError, "rank=3 of world=2"),
        ({"per_sample": True}, UsageError, "per_sample=True says how transform="),
        ({"collate_fn": list}, UsageError, "collate_fn= puts single rows together"),
    ],
)
def test_wrong_arguments_are_named_with_the_fix(options, kind, told):
    with pytest.raises(kind, match=told):
        DataLoader(TABLE, **options)


def test_a_state_of_other_data_is_refused():
    with DataLoader(TABLE, 8) as loader:
        state = loader.state_dict()
    with DataLoader(TABLE.slice(1), 8) as loader, pytest.raises(DataChangedError):
        loader.load_state_dict(state)


def test_a_transform_that_fails_says_at_which_row():
    def refuse(row):
        if row["number"] == 7:
            raise OSError("cannot identify image")
        return row["number"]

    table = pa.table({"number": list(range(20))})
    with (
        DataLoader(
            table, 5, shuffle="none", columns=["number"], transform=refuse, per_sample=True, row_numbers=True
        ) as loader,
        pytest.raises(OSError, match="cannot identify image") as caught,
    ):
        list(loader)
    assert "while transforming row 7" in caught.value.__notes__[0]


def test_tensors_are_data_too():
    with DataLoader({"x": torch.arange(6).reshape(3, 2)}, 3, shuffle="none", columns=("x",)) as loader:
        ((x,),) = list(loader)
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_what_would_share_its_rows_out_twice_is_told_why_it_cannot():
    with DataLoader(TABLE, 8) as loader:
        assert not hasattr(loader, "worker_init_fn")
        with pytest.raises(NoMethodError, match="shares rows out over processes itself"):
            _ = loader.worker_init_fn


@pytest.mark.parametrize(("order", "memory"), [("global", "50MB"), ("corgipile", "50MB"), ("corgipile", "1.3MB")])
def test_a_small_batch_costs_a_few_python_calls_and_files_are_not_asked_after_once_rows_are_held(
    order, memory, tmp_path, monkeypatch
):
    rows = np.arange(40_000, dtype=np.float32)
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(rows, 8)), 8)
    penstock.convert(pa.table({"x": x, "label": np.arange(40_000)}), tmp_path / "rows.arrow")
    asked = []
    stat = os.fstat
    with DataLoader(str(tmp_path / "rows.arrow"), 8, shuffle=order, memory=memory, columns=("x", "label")) as loader:
        list(loader)
        monkeypatch.setattr(os, "fstat", lambda *args: asked.append(args) or stat(*args))
        calls = []
        sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
        try:
            batches = list(loader)
        finally:
            sys.setprofile(None)
    assert len(batches) == 5_000
    assert len(calls) < 5 * len(batches), "one call to another, down to the pass itself"
    if memory == "50MB":
        assert len(asked) <= 2, "as the epoch begins"


@pytest.mark.parametrize("memory", ["50MB", "200kB"])
def test_batches_are_independent_of_one_another(memory):
    data = {"x": np.arange(80_000, dtype=np.float32).reshape(-1, 8), "n": np.arange(10_000)}
    with DataLoader(data, 16, shuffle="corgipile", memory=memory) as loader:
        batches = list(loader)
    first, second = batches[:2]
    kept = second["x"].clone()
    first["x"].zero_()
    assert torch.equal(second["x"], kept)
    assert (first["x"]._version, second["x"]._version) == (1, 0), "what autograd saved of one is not told of the other"
    assert second["x"].untyped_storage().nbytes() == 16 * 8 * 4, "what saving it saves"
    assert sorted(row for batch in batches for row in batch["n"].tolist()) == list(range(10_000))


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_rows_of_unequal_length_come_without_those_of_other_batches(transform):
    words = [np.arange(n % 5, dtype=np.int32) + n for n in range(1000)]
    with Batches(pa.table({"words": words}), 8, shuffle="corgipile", transform=transform) as stream:
        columns = [batch["words"] for batch in stream]
    assert [int(column.offsets[0]) for column in columns] == [0] * 125
    assert [len(column.values) for column in columns] == [int(column.offsets[-1]) for column in columns]
    assert sorted(tuple(row) for column in columns for row in column) == sorted(map(tuple, words))
