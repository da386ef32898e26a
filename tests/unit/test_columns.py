"""What columns become features, by what they hold: text, dates, missing values, identifiers; with and without options."""

from __future__ import annotations

import datetime
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.blocks.memory import TableSource
from penstock.columns.base import Place
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.hashing import Hashed
from penstock.columns.number import Number
from penstock.config import Config
from penstock.errors import DataError, FeatureError, LabelError, UsageError
from penstock.evaluation import evaluate
from penstock.events import Stream, Warned
from penstock.memory_learner import linear_job
from penstock.model import predict
from penstock.training import Columns

ROWS = 600


def table(**more):
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    return pa.table({"x": x, "label": (x + rng.normal(size=ROWS) > 0).astype(int), **more})


def recipe_of(data, **columns):
    return Columns(label="label", **columns).recipe(TableSource.of(data, block_size=2000))


def part_of(values, **columns):
    """Return the features that one column beside x becomes, or the reason for leaving it out."""
    recipe = recipe_of(table(c=values), **columns)
    found = [part for part in recipe.parts if part.columns == ("c",)]
    return recipe.left_out["c"] if not found else found[0] if len(found) == 1 else found


def learned(data, *, config=None, **columns):
    warnings = []
    stream = Stream([lambda event: warnings.append(str(event.message)) if isinstance(event, Warned) else None])
    job = linear_job(TableSource.of(data), config or Config(), Columns(label="label", **columns), stream=stream)
    return job.run(), warnings


def texts(count):
    return pa.array([f"v{i % count}" for i in range(ROWS)])


class TestText:
    def test_few_values_are_a_category_and_those_of_one_row_share_a_feature(self):
        values = ["a"] * 400 + ["b"] * 190 + ["c", "d", "f", "g"] + ["e"] * 6
        assert part_of(pa.array(values)) == Category("c", ("a", "b", "e"), rare=True, dense=True)

    def test_a_missing_level_where_there_are_nulls(self):
        values = ["a", "b", None] * 200
        for array in (pa.array(values), pa.array(values).dictionary_encode(), pa.array(values, pa.large_string())):
            assert part_of(array) == Category("c", ("a", "b"), missing=True, dense=True)

    def test_many_values_are_hashed_by_how_many_there_are(self, monkeypatch):
        monkeypatch.setattr("penstock.columns.fit.MOST_LEVELS", 100)  # a table of 10,000 values would be slow
        assert part_of(texts(300)) == Hashed("c", 11)
        with pytest.raises(UsageError, match=r"names 'c', which has about 2\d\d values|about 3\d\d values"):
            part_of(texts(300), category=["c"])

    def test_prose_is_hashed_by_words(self):
        values = pa.array([f"the {i} cats of number {i % 7} sat on mat {i % 90}" for i in range(ROWS)])
        assert part_of(values) == Hashed("c", 18, words=True)

    def test_what_names_the_row_or_is_constant_is_left_out_unless_named(self):
        assert part_of(texts(ROWS)) == "a value of its own in nearly every row"
        assert part_of(pa.array(["same"] * ROWS)) == "one value"
        assert part_of(pa.array([None] * ROWS, pa.string())) == "empty"
        assert isinstance(part_of(texts(ROWS), features=["x", "c"]), Category)

    def test_numbers_stored_as_text(self):
        values = [str(i / 4) if i % 10 else "?" for i in range(ROWS)]
        found = part_of(pa.array(values))
        assert isinstance(found, Number)
        assert found.missing
        assert found.fill == pytest.approx(75.0, abs=1)
        codes = part_of(pa.array(["1", "2", "3"] * 200))
        assert codes == Category("c", ("1", "2", "3"), dense=True)
        assert isinstance(part_of(pa.array(["1", "2", "3"] * 200), number=["c"]), Number)
        with pytest.raises(UsageError, match=r"names 'c', which has the value 'b', not a number"):
            part_of(pa.array(["1", "b", "3"] * 200), number=["c"])

    @pytest.mark.parametrize("stray", ["unknown", "1,234", "-", "2026-13-01"])
    def test_a_few_values_that_are_no_numbers_are_missing_and_told(self, stray):
        values = pa.array([stray, *map(str, range(1, ROWS))])
        part = part_of(values)
        assert isinstance(part, Number)
        assert part.null_values[-1] == stray
        _, warnings = learned(table(c=values))
        assert [text for text in warnings if "taken as missing" in text and repr(stray) in text]
        _, warnings = learned(table(c=values), null_values=[stray])
        assert not [text for text in warnings if "taken as missing" in text]

    def test_odd_values_of_few_numbers_are_missing_and_told(self):
        values = pa.array(["oops", *(str(i % 13) for i in range(1, ROWS))])
        part, (_, warnings) = part_of(values), learned(table(c=values))
        assert isinstance(part, Number)
        assert part.null_values[-1] == "oops"
        assert [text for text in warnings if "taken as missing: 'oops' in 'c'" in text]
        words = part_of(pa.array(["?" if i % 9 == 0 else str(i % 13) for i in range(ROWS)]))
        assert isinstance(words, Number)
        assert words.missing

    @pytest.mark.parametrize(
        "values",
        [
            ["A", "1", "2"],
            ["0", "1", "2", "3", "4+"],
            ["1", "2", "3", "?"],
            [str(i) for i in range(13)],
            ["01", "2", "3", "?"],
        ],
    )
    def test_codes_of_few_values_are_categories(self, values):
        assert isinstance(part_of(pa.array([values[i % len(values)] for i in range(ROWS)])), Category)
        rare = pa.array([values[-1] if i % 20 == 0 else values[i % (len(values) - 1)] for i in range(ROWS)])
        assert isinstance(part_of(rare), Category)

    def test_dates_may_have_a_few_values_that_are_none(self):
        part, *_ = part_of(pa.array(["soon", *(f"2026-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(1, ROWS))]))
        assert isinstance(part, Date)
        assert part.null_values[-1] == "soon"

    def test_many_values_that_are_no_numbers_make_a_category(self):
        values = pa.array(["a", "b", "c", "d", *map(str, range(4, ROWS))])
        told = "numbers but for 'a', 'b', 'c', …; name these values as missing ones"
        assert part_of(values) == told
        assert isinstance(part_of(values, null_values=["a", "b", "c", "d"]), Number)
        often = pa.array([str(i % 50) if i % 3 else "unknown" for i in range(ROWS)])
        assert isinstance(part_of(often), Category)
        assert isinstance(part_of(pa.array([str(i % 50) if i % 20 else "unknown" for i in range(ROWS)])), Number)
        assert part_of(values, missing="refuse") == told

    def test_a_category_of_numbers_with_many_other_values_is_told(self):
        values = pa.array([*(f"bad{i}" for i in range(12)), *(str(i % 100 / 4) for i in range(12, ROWS))])
        assert isinstance(part_of(values), Category)
        told = "text taken as categories: 'c' (numbers but for some values, such as '0.0')"
        assert [text for text in learned(table(c=values))[1] if text.startswith(told)]
        for numbers in (values, pa.array([i % 100 for i in range(ROWS)])):
            assert not [text for text in learned(table(c=numbers), category=["c"])[1] if "taken as categories" in text]
        codes = pa.array([f"{i % 200:03}" for i in range(ROWS)])
        assert not [text for text in learned(table(c=codes))[1] if "taken as categories" in text]

    def test_numbers_with_a_zero_in_front_are_codes(self):
        assert isinstance(part_of(pa.array([f"{i % 300:05}" for i in range(ROWS)])), Category)

    @pytest.mark.parametrize(
        ("spelling", "told"),
        [
            ("{}.25 km", "numbers with ' km', such as '0.25 km'"),
            ("EUR {}.5", "numbers with 'EUR '"),
            ("({})", r"numbers with '\(' and '\)'"),
            (">{}", "numbers with '>'"),
            ("{}.11.2026", "dates in another order"),
            ("Jun {} 2022", "dates in another order or spelling than that of ISO 8601, such as 'Jun 0 2022'"),
            ("{} June 2022", "dates in another order"),
            ("{}-Jun-22", "dates in another order"),
            ("Mon, {} Sept. 2022", "dates in another order"),
            ("Mayor-{}-22", None),
            ("A{}", None),
            ("{}/b/c/{}", None),
        ],
    )
    def test_categories_that_are_numbers_or_dates_in_another_spelling_are_told(self, spelling, told):
        values = pa.array([spelling.format(i % 28, i % 28) for i in range(ROWS)])
        part, (_, warnings) = part_of(values), learned(table(c=values))
        assert isinstance(part, Category)
        heard = [text for text in warnings if "text taken as categories" in text]
        assert len(heard) == (told is not None)
        assert told is None or re.search(told, heard[0])

    @pytest.mark.parametrize("spelling", ["{},5", "{}.5 %", "${}", "1,{:03}"])
    def test_numbers_in_another_spelling_are_left_out_and_told(self, spelling):
        values = pa.array([spelling.format(i % 300) for i in range(ROWS)])
        assert "numbers with a comma" in part_of(values)
        assert not isinstance(part_of(values, features=["x", "c"]), str)

    @pytest.mark.parametrize("count", [ROWS, 300])
    @pytest.mark.parametrize("odd", [0, 12])
    def test_thousands_separators_beside_plain_numbers_are_left_out_and_told(self, count, odd):
        numbers = [f"{7.25 * (i % count):,.2f}" for i in range(odd, ROWS)]
        values = pa.array([*(f"bad{i}" for i in range(odd)), *numbers])
        _, warnings = learned(table(c=values))
        told = [text for text in warnings if text.startswith("left out: 'c' (numbers with a comma, a currency")]
        assert len(told) == 1
        assert re.search(r"such as '1,\d+\.\d+'; write plain numbers, such as 1234\.5, into the data\)$", told[0])
        _, warnings = learned(table(c=values, id=np.arange(ROWS)))
        assert any(re.search(r"'id' \(row numbers\); name the features to learn", text) for text in warnings)

    def test_numbers_with_thousands_separators_are_told_where_they_are_named(self):
        values = pa.array([f"{7.25 * (i % 300):,.2f}" for i in range(ROWS)])
        _, warnings = learned(table(c=values), features=["x", "c"])
        assert any(
            "text taken as categories: 'c' (numbers with a comma" in text and "'1,000.50'" in text for text in warnings
        )
        with pytest.raises(UsageError, match=r"'1,000\.50', not a number") as caught:
            part_of(values, number=["c"])
        assert "write plain numbers, such as 1234.5, into the data" in caught.value.fixes

    def test_own_null_values(self):
        found = part_of(pa.array(["a", "b", "-"] * 200), null_values=["-"])
        assert found == Category("c", ("a", "b"), missing=True, dense=True, null_values=("-",))

    def test_numbers_are_categories_when_asked_for(self):
        assert part_of(pa.array([1, 2, 2] * 200), category=["c"]) == Category("c", ("1", "2"), dense=True)

    def test_one_column_of_two_kinds_is_refused(self):
        with pytest.raises(UsageError, match=r"names 'x', which is named for category too") as caught:
            recipe_of(table(), category=["x"], number=["x"])
        assert caught.value.option == "number"

    def test_all_text_is_hashed_by_a_star(self):
        recipe = recipe_of(table(c=texts(3), d=texts(4)), hash=["*"])
        assert recipe.parts[1:] == (Hashed("c"), Hashed("d"))

    def test_many_levels_are_sparse_and_few_dense(self):
        assert not recipe_of(table(c=texts(20))).sparse
        assert recipe_of(table(c=texts(100))).sparse


class TestDates:
    def test_days_and_the_parts_that_vary(self):
        days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=i % 40) for i in range(ROWS)]
        found = part_of(pa.array(days))
        assert [type(part) for part in found] == [Date, Category, Category]
        assert [part.of for part in found[1:]] == ["month", "weekday"]
        assert found[1].levels == ("1", "2")

    def test_dates_in_another_spelling_of_many_values_are_left_out_with_that_reason(self):
        days = [datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=7 * i) for i in range(ROWS)]
        told = "dates in another order or spelling than that of ISO 8601, such as 'Jan 01 2026 00:00'; write them as 2026-11-18 into the data"
        assert part_of(pa.array([f"{day:%b %d %Y %H:%M}" for day in days])) == told

    @pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()])
    def test_dates_written_as_numbers_are_told(self, kind):
        days = [datetime.date(2022, 1, 1) + datetime.timedelta(days=i % 500) for i in range(ROWS)]
        numbers = [int(f"{day:%Y%m%d}") for day in days]
        heard = lambda values: [text for text in learned(table(c=values))[1] if "dates written as numbers" in text]  # noqa: E731
        written = pa.array([*numbers[:-1], None]).cast(kind)
        assert len(heard(written)) == 1
        assert "as quantities: 'c'" in heard(written)[0]
        assert not heard(pa.array([*numbers[:-1], 20220631]).cast(kind))
        assert not heard(pa.array([20220101 + i % 9 for i in range(ROWS)]).cast(kind))

    def test_text_that_is_dates(self):
        stamps = [f"2026-03-01 {i % 24:02}:30:00" if i % 5 else None for i in range(ROWS)]
        found = part_of(pa.array(stamps))
        assert [getattr(part, "of", "") for part in found] == ["", "hour"]
        assert found[0].missing

    def test_a_text_that_is_no_date(self):
        with pytest.raises(UsageError, match=r"names 'c', which has the value 'soon', no date"):
            part_of(pa.array(["2026-01-01", "soon"] * 300), date=["c"])
        data = table(c=pa.array([f"2026-01-{i % 28 + 1:02}" for i in range(ROWS)]))
        model, _ = learned(data)
        odd = data.set_column(2, "c", pa.array(["2026-01-01"] * 3 + ["soon"] + ["2026-01-01"] * (ROWS - 4)))
        with pytest.raises(FeatureError, match=r"'c' is 'soon' in row 3, where dates were learnt from"):
            predict(model, TableSource.of(odd))

    @pytest.mark.parametrize(
        "spelling", ["2026-01-{:02}T22:30:00Z", "2026-01-{:02}T23:30:00+01:00", "2026-01-{:02} 22:30:00.123456"]
    )
    def test_text_with_a_zone_or_fractions_is_dates_in_utc(self, spelling):
        values = pa.array([spelling.format(1 + i % 28) for i in range(ROWS)])
        date, weekday = part_of(values)
        assert (date.kind, weekday.of) == ("date", "weekday")
        into = np.empty((1, 1), np.float32)
        Date("c", 20454.0).write(values[:1], into, Place())  # of 2026-01-01
        np.testing.assert_allclose(into, 22.5 / 24, atol=1e-5)

    def test_times_with_a_zone_are_taken_in_utc(self):
        stamp = pa.array([datetime.datetime(2026, 1, 1, 23)], pa.timestamp("us", "America/New_York"))
        naive = stamp.cast(pa.timestamp("us"))
        hour = Category("c", ("23",), of="hour")
        assert hour.codes(stamp).tolist() == hour.codes(naive).tolist()


class TestMissing:
    def holed(self):
        x = table()["x"].to_numpy().copy()
        x[::3] = np.nan
        return table(c=pa.array(x, from_pandas=True), d=pa.array(np.where(np.arange(ROWS) % 200, x * 0 + 1, 1)))

    def test_numbers_are_filled_with_their_mean_and_told_where_not_rare(self):
        data = table(c=pa.array([None, 1.0, 3.0] * 200), d=pa.array([None] + [2.0, 4.0] * 299 + [2.0]))
        model, _ = learned(data)
        assert model.recipe.names == ("x", "c", "c is missing", "d")
        fills = {part.column: part.fill for part in model.recipe.parts}
        assert fills["c"] == 2.0
        assert fills["d"] == pytest.approx(3.0, abs=0.01)
        assert fills["x"] is not None  # a null that comes later is filled as well

    def test_nan_is_missing_and_infinity_refused(self):
        assert learned(table(c=[float("nan"), 1.0, 3.0] * 200))[0].recipe.names == ("x", "c", "c is missing")
        with pytest.raises(FeatureError, match="'c' is not a finite number in row 0"):
            learned(table(c=[float("inf"), 1.0, 3.0] * 200))

    @pytest.mark.parametrize("standardize", [True, False])
    @pytest.mark.parametrize("solver", ["sgd", "lbfgs"])
    def test_every_solver_learns_from_missing_values(self, standardize, solver):
        rng = np.random.default_rng(1)
        label = rng.integers(0, 2, ROWS)
        c = pa.array([None if y and i % 2 else float(i % 3) for i, y in enumerate(label)])
        data = pa.table({"c": c, "city": pa.array(["a", None, "b"] * 200), "label": label})
        model, _ = learned(data, config=Config(standardize=standardize, solver=solver))
        assert evaluate(model, TableSource.of(data))["accuracy"] > 0.7

    def test_the_policies(self):
        data = table(c=pa.array([None, 1.0, 3.0] * 200))
        assert learned(data, missing="fill")[0].recipe.names == ("x", "c")
        assert learned(data, missing="indicator")[0].recipe.names == ("x", "c", "c is missing")
        with pytest.raises(FeatureError, match="column 'c' is null in row 0"):
            learned(data, missing="refuse")
        model, warnings = learned(data, missing="drop")
        assert model.recipe.names == ("x", "c")
        assert any("200 rows lack a feature and are left out" in each for each in warnings)
        without, _ = learned(data.filter(pa.compute.is_valid(data["c"])), config=Config(validation=0.0))
        dropped, _ = learned(data, missing="drop", config=Config(validation=0.0))
        np.testing.assert_allclose(dropped.weights.coef, without.weights.coef, rtol=1e-3)
        with pytest.raises(UsageError) as caught:
            learned(data, missing="guess")
        assert (caught.value.option, caught.value.value) == ("missing", "guess")

    def test_no_row_is_left(self):
        with pytest.raises(DataError, match=r"every row lacks one of the features x, c, so that none is left"):
            learned(table(c=pa.nulls(ROWS, pa.float64())), missing="drop")

    def test_columns_of_numbers_without_a_value_are_left_out_and_told(self, tmp_path):
        path = tmp_path / "t.csv"
        rows = table(note=pa.nulls(ROWS, pa.float64()), z=pa.array([1.5, None] * (ROWS // 2)), id=np.arange(ROWS))
        csv.write_csv(rows, path)
        for data in (path, rows):
            model = penstock.LogisticRegression().fit(data, y="label").model_
            assert model.recipe.left_out == {"id": "row numbers", "note": "empty"}
            assert model.recipe.names == ("x", "z", "z is missing")
            assert "left out: id (row numbers), note (empty)" in str(penstock.explain(data, label="label"))
        assert "left out: 'note' (empty)" in learned(rows.drop(["id"]))[1]
        assert learned(rows, features=["x", "note"])[0].recipe.names == ("x", "note")
        alone = learned(rows.select(["note", "id", "label"]))[0].recipe
        assert (alone.names, alone.left_out) == (("id",), {"note": "empty"})

    def test_columns_of_no_type_are_missing_values(self):
        days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=i % 40) for i in range(ROWS)]
        data = table(c=texts(3), d=pa.array(days), n=np.random.default_rng(2).normal(size=ROWS))
        model, _ = learned(data)
        empty = pa.table({name: pa.nulls(2) for name in ("x", "c", "d", "n", "label")})
        assert len(predict(model, TableSource.of(empty))) == 2
        with pytest.raises(DataError, match="no row"):
            evaluate(model, TableSource.of(empty))

    def test_what_contradicts_itself_is_refused(self):
        with pytest.raises(UsageError, match=r"names 'c', which is int64, neither a date nor text"):
            part_of(pa.array([1, 2, 2] * 200), date=["c"])
        with pytest.raises(UsageError, match=r"names 'c', which is excluded too"):
            part_of(pa.array([1, 2, 2] * 200), category=["c"], exclude=["c"])

    def test_a_feature_that_is_excluded_too_is_refused_and_others_are_not(self):
        data = table(z=np.random.default_rng(3).normal(size=ROWS))
        struct = data.append_column("visit", pa.array([{"pages": i % 9, "spent": i / 7} for i in range(ROWS)]))
        message = r"features=\['x'\] names 'x', which is excluded too; leave it out of features or of exclude"
        with pytest.raises(UsageError, match=message):
            recipe_of(data, features=["x", "z"], exclude=["x"])
        with pytest.raises(UsageError, match=r"names 'visit.pages', which is excluded too, as a member of 'visit'"):
            recipe_of(struct, features=["visit.pages"], exclude=["visit"])
        assert recipe_of(data, features=["z"], exclude=["x"]).names == ("z",)
        assert recipe_of(struct, features=["visit"], exclude=["visit.spent"]).names == ("visit.pages",)

    def test_every_way_to_train_refuses_a_feature_that_is_excluded_too(self, tmp_path):
        data = table(z=np.random.default_rng(3).normal(size=ROWS), g=texts(2))
        both = {"features": ["x", "z"], "exclude": ["x"]}
        calls = [
            lambda: penstock.LogisticRegression().fit(data, "label", **both),
            lambda: penstock.bigmodel.LogisticRegression(model_dir=tmp_path / "m").fit(data, "label", **both),
            lambda: penstock.groups.GroupBy(data, by="g", **both).fit(penstock.LogisticRegression(), y="label"),
            lambda: penstock.explain(data, label="label", **both),
            lambda: penstock.convert(data, tmp_path / "t.arrow", label="label", **both),
        ]
        for call in calls:
            with pytest.raises(UsageError, match=r"names 'x', which is excluded too") as raised:
                call()
            assert raised.value.option == "features"

    def test_a_column_that_is_kept_may_be_a_feature_too(self, tmp_path):
        path = tmp_path / "t.arrow"
        penstock.convert(table(), path, label="label", features=["x"], keep=["x"])
        assert penstock.open(path).schema.names == ["features", "label", "x"]

    def test_a_column_to_group_by_may_be_a_feature_if_it_is_named(self):
        grouped = penstock.groups.GroupBy(table(g=np.arange(ROWS) % 3), by="g", features=["x", "g"])
        with grouped.fit(penstock.LogisticRegression(), y="label") as models:
            assert models.recipe.names == ("x", "g")


class TestLabels:
    @pytest.mark.parametrize("model", ["logistic", "linear", "svm", "softmax"])
    def test_rows_without_a_label_are_left_out_and_counted(self, model):
        data = table()
        labels = [None if i % 4 == 0 else y for i, y in enumerate(data["label"].to_pylist())]
        holed = data.set_column(1, "label", pa.array(labels))
        kept = holed.filter(pa.compute.is_valid(holed["label"]))
        config = Config(model=model, validation=0.0)
        found, warnings = learned(holed, config=config)
        assert any("150 rows have no 'label'" in each for each in warnings)
        other, _ = learned(kept, config=config)
        np.testing.assert_allclose(found.weights.coef, other.weights.coef, rtol=0.05, atol=0.02)
        name = "r2" if model == "linear" else "accuracy"
        assert evaluate(found, TableSource.of(holed))[name] == pytest.approx(
            evaluate(found, TableSource.of(kept))[name]
        )
        with pytest.raises(LabelError, match=r"'label' is missing \(null\) in row 0"):
            learned(holed, config=config, missing="refuse")

    def test_a_model_is_measured_on_the_rows_that_have_a_label(self):
        model, _ = learned(table(), config=Config(validation=0.0))
        holed = table().set_column(1, "label", pa.array([None, *table()["label"].to_pylist()[1:]]))
        assert evaluate(model, TableSource.of(holed))["rows"] == ROWS - 1

    def test_no_label_at_all(self):
        data = table().set_column(1, "label", pa.nulls(ROWS, pa.int64()))
        with pytest.raises(DataError, match="'label' is missing in every row"):
            learned(data)


class TestIdentifiers:
    def test_row_numbers_are_left_out_and_told(self):
        rng = np.random.default_rng(0)
        for numbers in (np.arange(ROWS), rng.permutation(ROWS) + 1000, np.arange(ROWS).astype(float)):
            model, warnings = learned(table(id=numbers))
            assert model.recipe.names == ("x",)
            assert model.recipe.left_out == {"id": "row numbers"}
            assert any("left out: 'id' (row numbers)" in each for each in warnings)
        assert learned(table(id=np.arange(ROWS)), features=["x", "id"])[0].recipe.names == ("x", "id")

    def test_row_numbers_with_gaps_or_repeats_are_left_out(self):
        rng = np.random.default_rng(0)
        kept = np.sort(rng.choice(int(ROWS / 0.8), ROWS, replace=False))
        for numbers in (np.r_[np.arange(ROWS - 12), np.arange(12)] + 10**6, kept, np.arange(ROWS) * 2):
            assert learned(table(id=numbers))[0].recipe.left_out == {"id": "row numbers"}

    def test_other_whole_numbers_are_features(self):
        for numbers in (
            np.arange(ROWS) // 2,
            np.arange(ROWS) * 3,
            np.random.default_rng(0).integers(0, 2 * ROWS, ROWS),
        ):
            assert learned(table(n=numbers))[0].recipe.names == ("x", "n")

    def test_random_keys_of_rows_are_told(self):
        rng = np.random.default_rng(0)
        data = pa.table({"x": rng.normal(size=2000), "key": rng.integers(0, 2**62, 2000), "label": np.arange(2000) % 2})
        model, warnings = learned(data)
        assert model.recipe.names == ("x", "key")
        assert [text for text in warnings if "a whole number of its own in 'key'" in text and "exclude" in text]
        assert not [text for text in learned(data, features=["x", "key"])[1] if "of its own" in text]

    def test_held_out_rows_do_not_decide_which_levels_are_known(self):
        """With levels of few rows each, the score that is told is that of new rows."""
        rng = np.random.default_rng(1)
        shops, effects = rng.integers(0, 1000, 12_000), rng.normal(size=1000) * 2
        label = (effects[shops] + rng.logistic(size=12_000) > 0).astype(int)
        data = pa.table({"x": rng.normal(size=12_000), "shop": [f"s{n}" for n in shops], "label": label})
        model, _ = learned(data.slice(0, 5_000), config=Config(validation=0.2))
        told = model.metrics["held_out_accuracy"]
        found = evaluate(model, TableSource.of(data.slice(5_000)))["accuracy"]
        assert told - found < 0.03

    def test_columns_of_unfit_types_are_left_out_and_told(self):
        model, warnings = learned(table(c=pa.array([[1.0], [1.0, 2.0]] * 300)))
        assert model.recipe.names == ("x",)
        assert any("'c' (list<item: double>" in each for each in warnings)


def test_members_of_structs_are_features():
    data = table(s=pa.array([{"a": 1.0, "t": {"b": "u"}}, None, {"a": 3.0, "t": {"b": "w"}}] * 200))
    model, _ = learned(data)
    assert model.recipe.names == ("x", "s.a", "s.a is missing", "s.t.b=u", "s.t.b=w", "s.t.b is missing")
    assert len(predict(model, TableSource.of(data))) == ROWS


def test_a_saved_model_scores_new_nulls_and_levels(tmp_path):
    data = table(c=texts(3), n=np.random.default_rng(2).normal(size=ROWS))
    pq.write_table(data, tmp_path / "t.parquet")
    penstock.LogisticRegression().fit(tmp_path / "t.parquet", y="label").save(tmp_path / "m")
    rows = pa.table({"x": [0.5, None], "c": [None, "new"], "n": [None, 1.0]})
    rows = rows.set_column(2, "n", rows["n"].cast(pa.float32()))
    pq.write_table(rows, tmp_path / "new.parquet")
    assert len(penstock.load(tmp_path / "m").predict(tmp_path / "new.parquet")) == 2


def test_rows_sorted_by_label_in_little_memory(tmp_path):
    rng = np.random.default_rng(3)
    n = 30_000
    city = rng.integers(0, 50, n)
    x = rng.normal(size=n)
    label = (x + np.sin(city) * 2 + rng.normal(size=n) > 0).astype(int)
    x[rng.random(n) < 0.1] = np.nan
    order = np.argsort(label, kind="stable")
    data = pa.table(
        {"x": pa.array(x[order], from_pandas=True), "city": [f"c{i}" for i in city[order]], "label": label[order]}
    )
    pq.write_table(data, tmp_path / "t.parquet", row_group_size=2000)
    scores = [
        penstock.LogisticRegression(memory=memory, seed=1)
        .fit(tmp_path / "t.parquet", y="label")
        .score(tmp_path / "t.parquet")
        for memory in ("200MB", "700KB")
    ]
    assert scores[0] > 0.8
    assert abs(scores[0] - scores[1]) < 0.01


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_whole_numbers_beyond_those_of_a_double_are_rounded_beside_missing_ones(kind):
    into = np.empty((1, 3), np.float32)
    Number("n", 0.0).write(pa.array([2**53 + 1, None, 2**62], kind), into, Place())
    assert into.tolist() == [[2.0**53, 0.0, 2.0**62]]


def test_intervals_of_databases_are_numbers():
    spans = pa.array([(0, at % 7, 10**9) if at % 3 else None for at in range(ROWS)], pa.month_day_nano_interval())
    model = penstock.LogisticRegression().fit(table(c=spans), y="label")
    part = next(part for part in model.model_.recipe.parts if part.columns == ("c",))
    assert (part.kind, part.missing, part.fill) == ("number", True, pytest.approx(1 + 86_400 * 3, rel=0.05))
    assert np.isfinite(model.predict_proba(table(c=spans))).all()
