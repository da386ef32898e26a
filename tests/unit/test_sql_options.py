"""Options into configs, columns and ways of reading; what is wrong is told in the words that were written."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from penstock.config import Config
from penstock.errors import ColumnError, UnknownOptionError, UsageError
from penstock.sql.engines.base import Reading
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.grammar import parse
from penstock.sql.options import evaluate_settings, option_names, pack_settings, settings
from penstock.sql.statements import Query, Train
from penstock.training import Columns

SCHEMA = pa.schema(
    [("id", pa.int64()), ("age", pa.float32()), ("City", pa.string()), ("w", pa.float64()), ("label", pa.int32())]
)
PAPER = pa.schema(
    [
        ("id", pa.int64()),
        ("features_k", pa.list_(pa.int32())),
        ("features_v", pa.list_(pa.float32())),
        ("label", pa.int32()),
    ]
)


def train(options: str = "", model: str = "logistic") -> Train:
    (found,) = parse(f"TABLE t TRAIN BY {model} WITH ({options})", dialect=DUCKDB)
    return found


def create(options: str, model: str = "logistic_reg") -> Train:
    (found,) = parse(f"CREATE MODEL m OPTIONS(model_type='{model}'{options}) AS SELECT * FROM t", dialect=DUCKDB)
    return found


def without(schema: pa.Schema, *columns: str) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in columns])


def test_nothing_asked_for():
    found = settings(train(model="svm"), SCHEMA)
    assert found.config == Config(model="svm")
    assert found.columns == Columns(label="label")
    assert found.reading == Reading()
    assert found.wanted == ("id", "age", "City", "w", "label")
    assert not found.replace
    assert found.for_rows(10**6) is found


def test_the_papers_names():
    asked = (
        "learning_rate = 0.5, decay = 0.9, max_epoch_num = 7, block_size = 10MB, buffer_size = 10 %, batch_size = 32"
    )
    found = settings(train(asked), SCHEMA)
    assert found.config == Config(learning_rate=0.5, decay=0.9, epochs=7, memory="10%", batch_size=32)
    assert found.reading == Reading(block_size=10_000_000)


def test_our_names():
    asked = (
        "epochs = 3, memory = '1MB', rate = inverse_scaling, power = 1, l1 = 1e-3, l2 = 0, intercept = off, seed = 9,"
        " shuffle = Sliding-Window, standardize = true, patience = 2, tolerance = 0.01, test_fraction = 0.25,"
        " label = ID, weight = w, exclude = city, nulls = skip, cache = '20GB', connections = 3, folder = '/tmp/x',"
        " replace = true"
    )
    found = settings(train(asked), SCHEMA)
    assert found.config == Config(
        epochs=3, memory="1MB", rate="inverse-scaling", power=1.0, l1=1e-3, l2=0.0, intercept=False, seed=9,
        shuffle="sliding-window", standardize=True, patience=2, tolerance=0.01, validation=0.25,
    )  # fmt: skip
    assert found.columns == Columns(label="id", weight="w")
    assert found.wanted == ("id", "age", "w", "label")
    assert found.reading == Reading(
        nulls="skip", cache=20 * 10**9, connections=3, folder="/tmp/x", memory=1_000_000
    )  # fmt: skip
    assert found.replace


@pytest.mark.parametrize(
    ("written", "cache"),
    [
        ("on", True),
        ("off", False),
        ("true", True),
        ("false", False),
        ("1GB", 10**9),
        ("'512kB'", 512_000),
        ("4096", 4096),
    ],
)
def test_cache_is_a_switch_or_a_size(written, cache):
    assert settings(train(f"cache = {written}"), SCHEMA).reading.cache == cache


def test_solvers_and_null():
    assert settings(train("solver = LBFGS"), SCHEMA).config.solver == "lbfgs"
    found = settings(train("learning_rate = null, label = null, epochs = null"), SCHEMA)
    assert (found.config, found.columns.label) == (Config(), "label")


@pytest.mark.parametrize("written", ["['Age', id]", "('age','ID')", "'age, id'"])
def test_features_in_a_list_or_with_commas(written):
    found = settings(train(f"features = {written}"), SCHEMA)
    assert found.columns.features == ("age", "id")
    assert found.wanted == ("id", "age", "label")


def test_columns_are_found_whatever_their_case_but_exactly_where_that_is_possible():
    both = pa.schema([("a", pa.int64()), ("A", pa.int64()), ("a,b", pa.int64()), ("label", pa.int64())])
    assert settings(train("features = 'A'"), both).columns.features == ("A",)
    assert settings(train("features = 'a,b'"), both).columns.features == ("a,b",)
    assert settings(train('label = "A"'), both).columns.label == "A"
    with pytest.raises(ColumnError, match="line 1, column 33: the query has no label column 'B'; it has: a, A"):
        settings(train("label = B"), both)


def test_a_label_in_any_case_is_the_default():
    assert settings(train(), pa.schema([("x", pa.float32()), ("Label", pa.int8())])).columns.label == "Label"


def test_without_a_label_the_way_to_name_it_is_shown():
    schema = without(SCHEMA, "label")
    with pytest.raises(UsageError, match=r"WITH \(label = 'clicked'\); the query has: id, age, City, w"):
        settings(train(), schema)
    with pytest.raises(UsageError, match=r"OPTIONS\(input_label_cols=\['clicked'\]\)"):
        settings(create(""), schema)


def test_the_papers_schema_is_the_default():
    found = settings(train(), PAPER)
    assert found.columns == Columns(label="label", features=("features_k", "features_v"))
    assert found.wanted == ("features_k", "features_v", "label")
    assert settings(train(), without(PAPER, "features_k")).columns.features == ("features_v",)
    assert settings(train("features = id"), PAPER).wanted == ("id", "label")
    assert settings(train("exclude = features_k"), PAPER).columns.features is None


@pytest.mark.parametrize("option", ["features = 'age, w'", "category = age", "number = age", "hash = 'age:2^4'"])
def test_a_column_that_is_named_and_excluded_is_refused(option):
    with pytest.raises(UsageError, match="names 'age', which is excluded too; leave it out of ") as raised:
        settings(train(f"exclude = AGE, {option}"), SCHEMA)
    assert raised.value.option == option.split(" ", 1)[0]


def test_hashed_columns():
    found = settings(train("features = age, hash = 'city:2^10:words'"), SCHEMA)
    assert found.columns.hash == ("City:2^10:words",)
    assert found.wanted == ("age", "City", "label")
    with pytest.raises(UsageError, match=r"line 1, column 33: hash = 'city:2\^4:2\^5' cannot be read"):
        settings(train("hash = ['city:2^4:2^5']"), SCHEMA)


def test_a_column_that_is_there_twice_cannot_be_used():
    twice = pa.schema([("x", pa.int8()), ("x", pa.int8()), ("y", pa.int8()), ("label", pa.int8())])
    with pytest.raises(ColumnError, match="the column 'x' more than once"):
        settings(train(), twice)
    assert settings(train("exclude = x"), twice).wanted == ("y", "label")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("learning_rat = 1", "line 1, column 33: there is no option 'learning_rat'; choose from: average, batch_size, .*mean 'learning_rate'"),
        ("max_iterations = 1", "there is no option 'max_iterations'"),
        ("to = bytea", "there is no option 'to'"),
        ("max_epoch_num = 0", "max_epoch_num = 0 is not a number of epochs; choose 1 or more"),
        ("epochs = 1, max_epoch_num = 2", "line 1, column 45: max_epoch_num and epochs mean the same"),
        ("learning_rate = '0.1'", "learning_rate = '0.1' is not a number; write learning_rate = 0.1, without quotes"),
        ("learning_rate = true", "learning_rate = true is not a number"),
        ("epochs = 1.5", "epochs = 1.5 is not a whole number"),
        ("epochs = many", "epochs = 'many' is not a whole number"),
        ("intercept = 2", "intercept = 2 is not true or false"),
        ("label = 3", "label = 3 is not a word or a string"),
        ("features = 3", "features = 3 is not a list of columns"),
        ("features = [1]", "features = 1 is not a word"),
        ("features = []", r"features = \[\] is not a list of columns"),
        ("features = nothing", "the query has no features column 'nothing'"),
        ("exclude = label", "'label' is the label and cannot be left out"),
        ("nulls = drop", "nulls = 'drop' is not known; choose one of: error, fill, skip"),
        ("cache = maybe", "cache = 'maybe' is not a size"),
        ("block_size = 10 %", "block_size = '10%' is not a size"),
        ("block_size = true", "block_size = true is not an amount of memory"),
        ("connections = 0", "connections = 0 is not a number of connections"),
        ("memory = 1.5", "memory = 1.5 is not an amount of memory"),
        # What the config finds is told by the option's own name.
        ("max_epoch_num = -1", "line 1, column 33: max_epoch_num = -1 is not a number of epochs"),
        ("buffer_size = lots", "line 1, column 33: buffer_size = 'lots' is not an amount of memory"),
        ("test_fraction = 2", "line 1, column 33: test_fraction = 2.0 is not a share of the rows"),
        ("shuffle = corgi", "line 1, column 33: shuffle = 'corgi' is not known; choose one of: .*corgipile"),
        ("solver = gd, decay = 0.5", "line 1, column 46: decay = 0.5 is for solver = 'sgd'.*leave decay out"),
        ("patience = 1, tolerance = -1", "line 1, column 47: tolerance = -1.0 must be zero or a positive number"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(asked, told):
    with pytest.raises((UsageError, ColumnError)) as caught:
        settings(train(asked), SCHEMA)
    assert re.search(told, str(caught.value))
    assert str(caught.value).startswith("line 1, column ")


def test_errors_keep_their_kind():
    for asked in ("shuffle = corgi", "nulls = x", "learning_rat = 1"):
        with pytest.raises(UnknownOptionError):
            settings(train(asked), SCHEMA)


def test_the_warehouses_names():
    asked = (
        ", input_label_cols=['Label'], max_iterations=9, learn_rate=0.3, learn_rate_strategy='CONSTANT', l1_reg=0.1,"
        " l2_reg=0.2, early_stop=true, min_rel_progress=0.05, data_split_method='random', fit_intercept=false,"
        " data_split_eval_fraction=0.1, optimize_strategy='auto_strategy', exclude=['id'], shuffle='none'"
    )
    found = settings(create(asked), SCHEMA)
    assert found.config == Config(
        epochs=9, learning_rate=0.3, rate="constant", l1=0.1, l2=0.2, patience=1, tolerance=0.05, validation=0.1,
        intercept=False, shuffle="none",
    )  # fmt: skip
    assert found.columns.label == "label"
    assert found.wanted == ("age", "City", "w", "label")
    assert not found.auto_split


@pytest.mark.parametrize(
    ("asked", "rows", "share"),
    [
        ("", 499, 0.0),
        ("", 500, 0.2),
        ("", 50_000, 0.2),
        ("", 1_000_000, 0.01),
        (", data_split_method='auto_split'", 1000, 0.2),
        (", data_split_method='no_split'", 1000, 0.0),
        (", data_split_method='random'", 100, 0.2),
        (", data_split_eval_fraction=0.5", 100, 0.5),
        (", test_fraction=0.5", 100, 0.5),
    ],
)
def test_rows_are_set_aside_as_in_the_warehouses(asked, rows, share):
    found = settings(create(asked), SCHEMA).for_rows(rows)
    assert found.config.validation == share
    assert not found.auto_split


def test_more_of_the_warehouses_ways():
    assert settings(create(", optimize_strategy='batch_gradient_descent'"), SCHEMA).config.solver == "gd"
    assert settings(create(", min_rel_progress=0.1"), SCHEMA).config.patience == 1
    assert settings(create(", min_rel_progress=0.1, early_stop=false"), SCHEMA).config.patience is None
    assert settings(create(", input_label_cols='AGE', learn_rate_strategy=null"), SCHEMA).columns.label == "age"
    (found,) = parse("CREATE OR REPLACE MODEL m OPTIONS(model_type='svm') AS SELECT 1", dialect=DUCKDB)
    assert settings(found, SCHEMA).replace


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("input_label_cols=['a','b']", "a model has one label"),
        ("input_label_cols=['label'], label='label'", "input_label_cols and label mean the same"),
        ("learn_rate_strategy='line_search'", "'line_search' is not supported; leave it out, or write 'constant'"),
        ("learn_rate_strategy='other'", "learn_rate_strategy = 'other' is not known; choose one of: constant"),
        ("learn_rate_strategy=1", "learn_rate_strategy = 1 is not a word"),
        ("ls_init_learn_rate=0.1", "ls_init_learn_rate is for a line search.*write learn_rate=0.1"),
        (
            "data_split_method='seq'",
            "data_split_method = 'seq' is not known; choose one of: auto_split, no_split, random",
        ),
        (
            "data_split_method='no_split', data_split_eval_fraction=0.1",
            "has no meaning with data_split_method='no_split'",
        ),
        ("early_stop='yes'", "early_stop = 'yes' is not true or false"),
        ("optimize_strategy='normal_equation'", "not supported; solver='lbfgs' comes to the same weights"),
        ("optimize_strategy='x'", "choose one of: auto_strategy, batch_gradient_descent"),
        ("max_iterations=5, epochs=6", "epochs and max_iterations mean the same"),
        ("max_iterations=-5", "max_iterations = -5 is not a number of epochs"),
        ("data_split_eval_fraction=3", "data_split_eval_fraction = 3.0 is not a share"),
        ("num_trials=3", "there is no option 'num_trials'; choose from: .*max_iterations"),
        ("input_label_col=['a']", "did you mean 'input_label_cols'"),
    ],
)
def test_what_the_warehouses_have_and_we_have_not(asked, told):
    with pytest.raises(UsageError) as caught:
        settings(create(f", {asked}"), SCHEMA)
    assert re.search(told, str(caught.value))
    assert str(caught.value).startswith("line 1, column ")


def test_evaluate():
    (asked,) = parse("EVALUATE MODEL m ON TABLE t WITH (label = AGE, nulls = skip, memory = 1MB)", dialect=DUCKDB)
    found = evaluate_settings(asked, SCHEMA)
    assert (found.label, found.memory, found.reading.nulls, found.reading.memory) == ("age", "1MB", "skip", 1_000_000)
    assert evaluate_settings(asked).label == "AGE"
    (plain,) = parse("EVALUATE MODEL m ON TABLE t", dialect=DUCKDB)
    assert evaluate_settings(plain, SCHEMA).label is None
    (wrong,) = parse("EVALUATE MODEL m ON TABLE t WITH (epochs = 3)", dialect=DUCKDB)
    with pytest.raises(
        UnknownOptionError, match="line 1, column 35: there is no option 'epochs'; choose from: block_size"
    ):
        evaluate_settings(wrong, SCHEMA)


def test_pack():
    def packed(options: str, schema: pa.Schema = SCHEMA, **keys):
        (asked,) = parse(f"PACK t INTO u WITH ({options})", dialect=DUCKDB)
        return pack_settings(asked, schema, **keys)

    found = packed("")
    assert (found.features, found.kept, found.label) == (("id", "age", "w"), ("City", "label"), "label")
    assert (found.to, found.replace) == ("bytea", False)
    found = packed("to = Vector, exclude = w, replace = true", keys=["id"])
    assert (found.features, found.kept) == (("age",), ("id", "City", "w", "label"))
    assert (found.to, found.replace) == ("vector", True)
    assert packed("features = [w, age], label = id").features == ("w", "age")
    assert packed("", without(PAPER, "features_k")).features == ("features_v",)
    with pytest.raises(UsageError, match=r"sparse features \(features_k, features_v\)"):
        packed("", PAPER)
    with pytest.raises(UsageError, match="'label' is the label; leave it out"):
        packed("features = [age, label]")
    with pytest.raises(UsageError, match="names 'age', which is excluded too"):
        packed("features = [age, w], exclude = age")
    with pytest.raises(ColumnError, match="t has no numbers to pack; it has: City"):
        packed("", pa.schema([SCHEMA.field("City")]))
    with pytest.raises(UnknownOptionError, match="to = 'json' is not known; choose one of: bytea, vector"):
        packed("to = json")


def test_names_for_completion():
    assert {"max_epoch_num", "label", "nulls"} <= set(option_names())
    assert "max_iterations" not in option_names()
    assert {"max_iterations", "input_label_cols", "label"} <= set(option_names(of_warehouse=True))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 3), pa.binary()])
def test_a_column_of_vectors_called_features_is_taken_alone(kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("features", kind), ("label", pa.int32())])
    found = settings(Train(Query("TABLE t"), "svm"), schema)
    assert (found.columns.features, found.wanted) == (("features",), ("features", "label"))
    number = settings(
        Train(Query("TABLE t"), "svm"), pa.schema({"features": pa.int64(), "x": pa.int64(), "label": pa.int64()})
    )
    assert number.columns.features is None
