"""Matrix factorisation on disk: as good as in memory, the same whenever it is run, and whole whatever happens."""

from __future__ import annotations

import functools
import math
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import seeds
from penstock.bigmodel.estimators import MatrixFactorization
from penstock.bigmodel.factor_learner import FactorConfig
from penstock.bigmodel.factor_model import blank
from penstock.bigmodel.factor_trainer import (
    FactorTrainer,
    RatingPiece,
    first_factors_reference,
    rating_pages_reference,
    rating_slots_reference,
)
from penstock.bigmodel.grid import FactorLayout, Grid, Shares
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.ratings import Roles, read_ratings, scan_ratings, triples
from penstock.bigmodel.store import PageStore
from penstock.blocks.memory import TableSource
from penstock.budget import Budget
from penstock.errors import (
    BudgetError,
    ColumnError,
    CorruptFileError,
    DataChangedError,
    DataError,
    DivergedError,
    ModelFileError,
    UsageError,
)
from penstock.events import Advanced, Epoch, Warned
from penstock.lock import locked
from penstock.modelfile import write_model
from penstock.sgd.factor import ABSENT, COUNT, SQUARES, TOTALS, factor_rows
from penstock.sgd.reference import factor_scores_reference

USERS, ITEMS, ROWS, RANK = 900, 600, 30_000, 60
KILLED = """
import os, signal, sys
from penstock.bigmodel.estimators import MatrixFactorization
from penstock.events import Advanced
folder, path, after = sys.argv[1:]
seen = 0
def kill(event):
    global seen
    if isinstance(event, Advanced) and event.task == "train":
        if seen == int(after):
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
model = MatrixFactorization(model_dir=folder, rank=60, memory="25%", epochs=3, learning_rate=0.02, seed=4)
model.fit(path, listeners=[kill])
"""


@functools.cache
def rated(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    user = (USERS * rng.random(rows) ** 1.5).astype(np.int64)
    item = (ITEMS * rng.random(rows) ** 1.5).astype(np.int64)
    truth = np.random.default_rng(99)
    p, q = truth.normal(0, 0.6, (USERS, 4)), truth.normal(0, 0.6, (ITEMS, 4))
    tastes = (p[user] * q[item]).sum(axis=1) + truth.normal(0, 0.4, USERS)[user] + truth.normal(0, 0.4, ITEMS)[item]
    stars = (3.5 + tastes + rng.normal(0, 0.2, rows)).astype(np.float32)
    return pa.table({"user": [f"u{k}" for k in user], "item": item * 11, "rating": stars})


def model_in(folder, **changes):
    given = {"rank": RANK, "memory": "25%", "epochs": 3, "learning_rate": 0.02, "seed": 4} | changes
    return MatrixFactorization(model_dir=folder, **given)


def all_factors(model):
    found = [model.factors(users=model.model_.users.keys), model.factors(items=model.model_.items.keys)]
    return np.concatenate([np.column_stack(pair) for pair in found])


def in_memory(table, *, rank, epochs, learning_rate, l2=0.02, seed=4, rng=None):
    """Train with all in memory and the ratings in a random order; return records, layout, scan and errors by epoch."""
    source, roles = TableSource.of(table), Roles()
    found = scan_ratings(source, roles)
    layout = FactorLayout.of(rank, users=len(found.users), items=len(found.items))
    rows = np.concatenate([triples(read, found.users, found.items, layout) for read in read_ratings(source, roles)])
    buffer, pages = np.empty((layout.pages, layout.page_floats), np.float32), np.arange(layout.pages)
    blank(layout, seed=seed, spread=found.spread)(pages, pages, buffer)
    records, errors = buffer.reshape(-1, layout.width), []
    rng = rng or np.random.default_rng(0)
    for epoch in range(epochs):
        mixed, totals = rows[rng.permutation(len(rows))], np.zeros(TOTALS)
        users, items, bits = (np.ascontiguousarray(mixed[:, c]) for c in range(3))
        given = (np.float32(found.mean), np.float32(learning_rate * 0.95**epoch), np.float32(l2), rank, totals)
        assert factor_rows(records, users, items, bits.view(np.float32), *given) == -1
        errors.append(math.sqrt(totals[SQUARES] / totals[COUNT]))
    return records, layout, found, errors


class TestLearning:
    def test_a_quarter_of_the_memory_learns_as_well_as_all_of_it(self, tmp_path):
        train, test = rated(), rated(seed=1, rows=5000)
        model = model_in(tmp_path, epochs=8).fit(train, test=test)
        layout = model.model_.layout
        memory = Budget.parse(model.memory).resolve(layout.nbytes)
        grid = Grid.plan(layout, frames=Shares.of(memory).pool // (layout.page_floats * 4))
        assert grid.buckets > 4
        records, layout, found, errors = in_memory(train, rank=RANK, epochs=8, learning_rate=0.02)
        rows = [triples(r, found.users, found.items, layout) for r in read_ratings(TableSource.of(test), Roles())]
        rows = np.concatenate(rows)
        scores = factor_scores_reference(records, rows[:, 0], rows[:, 1], mean=found.mean, rank=RANK)
        expected = math.sqrt(np.mean((scores - test.column("rating").to_numpy()) ** 2))
        assert model.evaluate(test)["rmse"] == pytest.approx(expected, rel=0.01)
        assert model.history_[-1]["test_rmse"] == pytest.approx(model.evaluate(test)["rmse"], rel=1e-5)
        assert model.history_[-1]["progressive_rmse"] < 0.7 * model.history_[0]["progressive_rmse"]
        assert errors[-1] == pytest.approx(model.history_[-1]["progressive_rmse"], rel=0.05)

    def test_the_history_says_what_was_done(self, tmp_path):
        heard = []
        model = model_in(tmp_path, validation=0.2).fit(rated(), listeners=[heard.append])
        row = model.history_[1]
        assert row["epoch"] == 2
        assert row["progressive_loss"] == pytest.approx(row["progressive_rmse"] ** 2 / 2)
        assert row["rows"] == model.model_.header["rows"] < 0.9 * ROWS
        assert row["bytes"] > row["rows"] * 12
        assert row["seconds"] > 0
        assert 0 < row["held_out_rmse"] < 1.5
        assert [e.epoch for e in heard if isinstance(e, Epoch)] == [1, 2, 3]
        learnt = sum(e.amount for e in heard if isinstance(e, Advanced) and e.task == "train")
        assert learnt == 3 * row["rows"]

    def test_held_out_rows_are_not_learnt_from(self, tmp_path):
        rows = [("a", 1, 5.0)] * 50 + [("b", 2, 1.0)] * 50
        table = pa.table(dict(zip(["user", "item", "rating"], map(list, zip(*rows, strict=True)), strict=True)))
        model = model_in(tmp_path, memory="1MB", validation=0.5).fit(table)
        assert model.history_[0]["rows"] == model.model_.users.counts.sum() < 80

    def test_threads_share_the_work(self, tmp_path):
        one, two = (model_in(tmp_path / str(n), threads=n, epochs=4, validation=0.0).fit(rated()) for n in (1, 2))
        assert two.history_[-1]["progressive_rmse"] == pytest.approx(one.history_[-1]["progressive_rmse"], rel=0.02)
        assert two.history_[-1]["rows"] == ROWS

    @pytest.mark.parametrize("rate", ["exponential", "inverse-scaling", "constant"])
    def test_each_learning_rate_learns(self, tmp_path, rate):
        model = model_in(tmp_path, rate=rate).fit(rated())
        assert model.history_[-1]["progressive_rmse"] < model.history_[0]["progressive_rmse"]

    def test_text_files_have_whole_numbers_for_keys(self, tmp_path):
        path = tmp_path / "rated.csv"
        path.write_text("user,item,rating\n" + "".join(f"{n % 7},b{n % 5},{n % 3}\n" for n in range(200)))
        model = model_in(tmp_path / "model", memory="1MB").fit(path)
        assert model.model_.users.keys.type == pa.int64()
        assert len(model.predict(path)) == 200

    def test_large_steps_are_warned_of_or_refused(self, tmp_path):
        heard = []
        with pytest.raises(DivergedError, match=r"diverged in epoch 1 at learning rate 3: .*try 0\.\d+\)"):
            model_in(tmp_path, learning_rate=3.0, validation=0.0).fit(rated(), listeners=[heard.append])
        model_in(tmp_path, learning_rate=0.5, l2=0.5, validation=0.0).fit(rated(), listeners=[heard.append])
        assert any(isinstance(event, Warned) and "smaller learning rate" in event.message for event in heard)


class TestTheSameAgain:
    def test_the_same_seed_gives_the_same_bytes(self, tmp_path):
        for name in ("a", "b"):
            model_in(tmp_path / name).fit(rated())
        for file in ("pages.a", "pages.b", "users.arrow", "items.arrow", "ratings.bin"):
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
        other = model_in(tmp_path / "c", seed=5).fit(rated())
        assert not np.array_equal(all_factors(other), all_factors(MatrixFactorization.load(tmp_path / "a")))

    def test_a_model_that_fits_is_the_kernel_to_the_last_bit(self, tmp_path, monkeypatch):
        orders, real = [], FactorTrainer.learn

        def noted(self, chunk, totals, **rate):
            orders.append(chunk.piece.rows[chunk.piece.order].copy())
            return real(self, chunk, totals, **rate)

        monkeypatch.setattr(FactorTrainer, "learn", noted)
        model = model_in(tmp_path, memory="100MB", epochs=2).fit(rated())
        assert model.model_.layout.pages * model.model_.layout.page_floats * 4 < 100_000_000
        found = model.model_
        layout, pages = found.layout, np.arange(found.layout.pages)
        buffer = np.empty((layout.pages, layout.page_floats), np.float32)
        found.blank()(pages, pages, buffer)
        records = buffer.reshape(-1, layout.width)
        assert len(orders) == 2
        for epoch, rows in enumerate(orders):
            users, items, bits = (np.ascontiguousarray(rows[:, c]) for c in range(3))
            steps = (np.float32(found.mean), np.float32(0.02 * 0.95**epoch), np.float32(0.02), RANK, np.zeros(TOTALS))
            factor_rows(records, users, items, bits.view(np.float32), *steps)
        users = records[: layout.users, : RANK + 1]
        items = records[layout.first_item : layout.first_item + layout.items, : RANK + 1]
        assert all_factors(model).tobytes() == np.concatenate([users, items]).tobytes()

    @pytest.mark.parametrize(
        ("memory", "after"), [("25%", 1), ("25%", 7), ("25%", "epoch"), ("50MB", 1), ("50MB", "epoch")]
    )
    def test_a_training_broken_off_and_resumed_is_one_that_was_not(self, tmp_path, memory, after):
        whole = model_in(tmp_path / "whole", memory=memory).fit(rated())
        epochs, chunks = [], []

        def stop(event):
            if isinstance(event, Epoch):
                epochs.append(event)
            elif isinstance(event, Advanced) and event.task == "train" and len(epochs) == 1:
                chunks.append(event)
            if len(epochs) == 2 if after == "epoch" else len(chunks) == after:
                raise ArithmeticError("broken off")

        with pytest.raises(ArithmeticError, match="broken off"):
            model_in(tmp_path / "broken", memory=memory).fit(rated(), listeners=[stop])
        between = MatrixFactorization.load(tmp_path / "broken")
        assert len(between.history_) == (2 if after == "epoch" else 1)
        assert between.evaluate(rated())["rmse"] < 1.5
        resumed = model_in(tmp_path / "broken", memory=memory).fit(rated(), resume=True)
        assert all_factors(resumed).tobytes() == all_factors(whole).tobytes()
        assert [row["progressive_rmse"] for row in resumed.history_] == [
            row["progressive_rmse"] for row in whole.history_
        ]

    @pytest.mark.slow
    @pytest.mark.parametrize("after", [0, 20])
    def test_a_process_that_is_killed_leaves_the_last_checkpoint(self, tmp_path, after):
        pq.write_table(rated(), tmp_path / "rated.parquet")
        whole = model_in(tmp_path / "whole").fit(tmp_path / "rated.parquet")
        given = [str(tmp_path / "killed"), str(tmp_path / "rated.parquet"), str(after)]
        done = subprocess.run([sys.executable, "-c", KILLED, *given], capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        resumed = model_in(tmp_path / "killed").fit(tmp_path / "rated.parquet", resume=True)
        assert all_factors(resumed).tobytes() == all_factors(whole).tobytes()

    def test_more_epochs_go_on_from_the_last(self, tmp_path):
        whole = model_in(tmp_path / "whole", epochs=4).fit(rated())
        model_in(tmp_path / "parts", epochs=2).fit(rated())
        model = model_in(tmp_path / "parts", epochs=4).fit(rated(), resume=True)
        assert all_factors(model).tobytes() == all_factors(whole).tobytes()

    def test_ratings_that_were_lost_or_damaged_are_made_again(self, tmp_path):
        whole = model_in(tmp_path / "whole", epochs=4).fit(rated())
        for name, spoil in (("lost", lambda p: p.unlink()), ("cut", lambda p: p.write_bytes(p.read_bytes()[:100]))):
            model_in(tmp_path / name, epochs=2).fit(rated())
            spoil(tmp_path / name / "ratings.bin")
            model = model_in(tmp_path / name, epochs=4).fit(rated(), resume=True)
            assert all_factors(model).tobytes() == all_factors(whole).tobytes()

    def test_resuming_with_other_memory_goes_on(self, tmp_path):
        model_in(tmp_path, epochs=2).fit(rated())
        model = model_in(tmp_path, epochs=4, memory="60%").fit(rated(), resume=True)
        assert model.history_[-1]["progressive_rmse"] < model.history_[1]["progressive_rmse"]

    def test_a_fresh_fit_begins_anew(self, tmp_path):
        first = all_factors(model_in(tmp_path).fit(rated()))
        assert all_factors(model_in(tmp_path).fit(rated())).tobytes() == first.tobytes()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return model_in(tmp_path_factory.mktemp("asking")).fit(rated())


class TestAsking:
    def test_predictions_are_those_of_the_factors_in_the_rows_order(self, fitted):
        table = rated().slice(0, 3000)
        users, user_bias = fitted.factors(users=table.column("user"))
        items, item_bias = fitted.factors(items=table.column("item").to_pylist())
        expected = fitted.mean_ + user_bias + item_bias + (users * items).sum(axis=1)
        np.testing.assert_allclose(fitted.predict(table), expected, atol=1e-4)
        pairs = fitted.predict((table.column("user"), table.column("item").to_numpy()))
        np.testing.assert_allclose(pairs, expected, atol=1e-4)
        errors = expected - table.column("rating").to_numpy()
        r2 = 1 - (errors**2).mean() / table.column("rating").to_numpy().var()
        mae = np.abs(errors).mean()
        expected = {"loss": (errors**2).mean() / 2, "rmse": np.sqrt((errors**2).mean()), "r2": r2, "mae": mae}
        assert fitted.evaluate(table) == pytest.approx({**expected, "rows": 3000}, rel=1e-4)
        assert fitted.score(table) == pytest.approx(r2, rel=1e-4)

    def test_what_is_not_known_is_predicted_by_the_mean_and_the_known_bias(self, fitted):
        (bias,) = fitted.factors(users=["u3"])[1]
        (other,) = fitted.factors(items=[33])[1]
        found = fitted.predict((["u3", "nobody", "nobody"], [12345, 33, 12345]))
        np.testing.assert_allclose(found, [fitted.mean_ + bias, fitted.mean_ + other, fitted.mean_], atol=1e-5)

    def test_a_loaded_model_says_the_same_in_any_memory(self, fitted):
        table = rated().slice(0, 4000)
        for memory in (None, "15%", "100MB"):
            loaded = MatrixFactorization.load(fitted.model_dir, memory=memory)
            np.testing.assert_array_equal(loaded.predict(table), fitted.predict(table))
            assert loaded.history_ == fitted.history_
            assert loaded.rank == RANK

    def test_predictions_stream_to_a_file(self, fitted, tmp_path):
        pq.write_table(rated().slice(0, 5000), tmp_path / "rated.parquet")
        assert fitted.predict(tmp_path / "rated.parquet", out=tmp_path / "out.parquet") == 5000
        found = pq.read_table(tmp_path / "out.parquet").column("prediction").to_numpy()
        np.testing.assert_array_equal(found, fitted.predict(rated().slice(0, 5000)))

    def test_no_rows_have_no_predictions(self, fitted):
        assert len(fitted.predict(rated().slice(0, 0))) == 0
        with pytest.raises(DataError, match="nothing to measure"):
            fitted.evaluate(rated().slice(0, 0))

    def test_mistakes_are_named(self, fitted, tmp_path):
        with pytest.raises(UsageError, match="2 users came with 1 items"):
            fitted.predict((["u1", "u2"], [1]))
        with pytest.raises(UsageError, match="does not know the user 'eve'"):
            fitted.factors(users=["u1", "eve"])
        with pytest.raises(UsageError, match="of users or of items"):
            fitted.factors()
        with pytest.raises(UsageError, match="not trained yet"):
            model_in(tmp_path).predict((["u1"], [1]))
        with pytest.raises(ColumnError, match="no item column 'item'"):
            fitted.predict(rated().drop_columns(["item"]))
        with pytest.raises(ModelFileError, match="there is no model in"):
            MatrixFactorization.load(tmp_path)


class TestDirectory:
    def test_two_trainings_at_once_are_refused(self, tmp_path):
        with locked(tmp_path / "m"), pytest.raises(UsageError, match="in use"):
            model_in(tmp_path / "m").fit(rated())

    def test_a_model_of_other_data_is_not_lost_by_a_slip(self, tmp_path):
        model_in(tmp_path).fit(rated())
        with pytest.raises(UsageError, match="holds a model of other data"):
            model_in(tmp_path).fit(rated(seed=1))
        with pytest.raises(DataChangedError, match="is not the data"):
            model_in(tmp_path).fit(rated(seed=1), resume=True)

    @pytest.mark.parametrize(("name", "value"), [("rank", 8), ("l2", 0.5), ("seed", 9), ("learning_rate", 0.5)])
    def test_resuming_with_another_value_is_refused(self, tmp_path, name, value):
        model_in(tmp_path, epochs=1).fit(rated())
        with pytest.raises(UsageError, match=f"made with {name}="):
            model_in(tmp_path, **{name: value}).fit(rated(), resume=True)

    def test_bad_data_leave_the_old_model_whole(self, tmp_path):
        path = tmp_path / "rated.parquet"
        pq.write_table(rated(), path)
        model = model_in(tmp_path / "m").fit(path)
        before = all_factors(model)
        with pytest.raises(ColumnError):
            model_in(tmp_path / "m").fit(path, rating="stars")
        assert all_factors(MatrixFactorization.load(tmp_path / "m")).tobytes() == before.tobytes()

    def test_flipped_bytes_in_a_page_are_found(self, tmp_path):
        model = model_in(tmp_path, epochs=2).fit(rated())
        for name in ("pages.a", "pages.b"):
            content = bytearray((tmp_path / name).read_bytes())
            for at in range(100, len(content), 4096):
                content[at] ^= 1
            (tmp_path / name).write_bytes(content)
        with pytest.raises(CorruptFileError, match="checksum"):
            model.evaluate(rated())

    def test_flipped_bytes_in_the_ratings_are_found(self, tmp_path):
        model_in(tmp_path, epochs=1).fit(rated())
        content = bytearray((tmp_path / "ratings.bin").read_bytes())
        content[1000] ^= 1
        (tmp_path / "ratings.bin").write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"ratings.bin is damaged: block \d+"):
            model_in(tmp_path, epochs=2).fit(rated(), resume=True)

    def test_another_kind_of_model_is_refused(self, tmp_path):
        model = model_in(tmp_path, epochs=1).fit(rated())
        header = {**model.model_.header, "bigmodel": "linear", "kind": "logistic"}
        write_model(tmp_path / "state.penstock", model.model_.saved, header)
        with pytest.raises(ModelFileError, match="holds a logistic model, not a factor one; choose another"):
            MatrixFactorization.load(tmp_path)

    def test_too_little_memory_is_refused_before_anything_is_learnt(self, tmp_path):
        with pytest.raises(BudgetError, match=r"5.0 kB of memory .* the smallest that works is 18.8kB"):
            model_in(tmp_path, memory="5kB").fit(rated())

    @pytest.mark.parametrize(
        ("name", "value"),
        [("rank", 0), ("rank", 1.5), ("epochs", -1), ("threads", 0), ("validation", 1.0), ("l2", -1), ("seed", -1),
         ("memory", "much"), ("rate", "fast"), ("learning_rate", 0)],
    )  # fmt: skip
    def test_a_parameter_that_cannot_work_is_named(self, name, value):
        with pytest.raises(UsageError, match=f"{name}="):
            FactorConfig(**{name: value})

    def test_no_epochs_make_a_model_that_knows_the_mean(self, tmp_path):
        model = model_in(tmp_path, epochs=0).fit(rated())
        assert model.history_ == []
        assert model.predict((["nobody"], [1]))[0] == pytest.approx(model.mean_)


class TestVisits:
    LAYOUT = FactorLayout.of(5, users=5000, items=3000, page_bytes=4096)

    def test_first_factors_are_a_function_of_seed_and_record(self, tmp_path):
        layout, fill = self.LAYOUT, blank(self.LAYOUT, seed=7, spread=1.2)
        buffer = np.full((3, layout.page_floats), np.nan, np.float32)
        fill(np.array([4, 0]), np.array([2, 1]), buffer)
        records = buffer.reshape(3, layout.page_records, layout.width)
        again = np.empty_like(buffer)
        fill(np.arange(3), np.arange(3), again)
        assert again[0].tobytes() == buffer[1].tobytes()
        key = seeds.key(7, "factors")
        reach = np.float32(math.sqrt(12 * 0.1 * 1.2 / math.sqrt(5)))
        for page, frame, r in ((4, 2, 0), (4, 2, 9), (0, 1, 3)):
            expected = first_factors_reference(key, page * layout.page_records + r, 5, reach)
            assert records[frame, r, :5].tolist() == expected.tolist()
            assert not records[frame, r, 5:].any()
        assert abs(records[1, :, :5].mean()) < 0.05
        assert np.isnan(buffer[0]).all()

    def test_chunks_are_as_their_twins_say(self, tmp_path):
        layout, rng = self.LAYOUT, np.random.default_rng(0)
        rows = np.empty((200, 3), np.uint32)
        rows[:, 0] = rng.integers(0, 5000, 200)
        rows[:, 1] = layout.first_item + rng.integers(0, 3000, 200)
        rows[:, 2] = rng.random(200, np.float32).view(np.uint32)
        rows[::9, 0], rows[::7, 1] = ABSENT, ABSENT
        piece = RatingPiece(rows, rng.permutation(200)[:150].astype(np.uint32))
        with PageStore(tmp_path, pages=layout.pages, page_floats=layout.page_floats) as store:
            pool = PagePool(store, memory=(layout.pages - 1) * layout.page_floats * 4)
            visits = FactorTrainer(pool, layout, mean=3.0)
            pieces = iter([lambda: piece])
            (chunk,) = visits.chunks(pieces, learning=False)
            assert chunk.pages.tolist() == rating_pages_reference(piece, layout.shift).tolist()
            slots, ratings = rating_slots_reference(piece, layout.shift, pool.frame_of)
            assert np.column_stack([chunk.users, chunk.items]).tolist() == slots.tolist()
            assert chunk.ratings.tolist() == ratings.tolist()
            assert not pool.pinned


def test_epochs_added_to_a_model_that_kept_its_best_factors_count(tmp_path):
    def stop_after_three(event):
        if isinstance(event, Epoch) and event.epoch == 3:
            raise KeyboardInterrupt

    columns = {"user": "user", "item": "item", "rating": "rating"}
    with pytest.raises(KeyboardInterrupt):
        model_in(tmp_path / "m", epochs=None).fit(rated(), listeners=[stop_after_three], **columns)
    model = model_in(tmp_path / "m", epochs=9).fit(rated(), resume=True, **columns).model_
    losses = [row["held_out_loss"] for row in model.history]
    assert len(losses) == 9
    assert model.metrics["held_out_loss"] == min(losses) < losses[2]


def test_without_a_number_of_epochs_training_goes_on_while_the_held_out_loss_falls():
    config = FactorConfig()
    assert (config.epoch_limit(config.patience_for(0.1)), config.epoch_limit(config.patience_for(0.0))) == (100, 20)
    assert FactorConfig(epochs=7).epoch_limit(0) == 7
