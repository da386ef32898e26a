"""Results of groups: which model is chosen, what it predicts, and rows whose group has none."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import penstock
from penstock.batch import Batch
from penstock.blocks.memory import TableSource
from penstock.blocks.open import open as open_source
from penstock.columns.choose import choose_features as choose_columns
from penstock.columns.labels import LabelMap
from penstock.errors import ColumnError, DataError, FeatureError, ModelFileError, UnknownOptionError, UsageError
from penstock.events import Finished, Stream
from penstock.groups import families
from penstock.groups.registry import Index, Outcome, Writer
from penstock.groups.results import GroupModels
from penstock.groups.split import choose
from penstock.linear import LinearModel

CONFIGS = ({"l2": 0.1, "learning_rate": 0.5}, {"l2": 0.0, "learning_rate": 1.0})
WIDTH = 4
KEYS = [("FR", 1), ("FR", 2), ("a/b", 1), (None, None), ("Zürich ☃", 3)]


def rows(count=400, seed=0, *, sparse=False):
    """Rows of all groups mixed, and of one that nobody saw."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, len(KEYS) + 1, count)
    keys = [*KEYS, ("XX", 9)]
    table = {
        "country": pa.array([keys[g][0] for g in which], pa.string()),
        "device": pa.array([keys[g][1] for g in which], pa.int32()),
        "clicked": pa.array(rng.choice(["no", "yes"], count)),
    }
    x = rng.standard_normal((count, WIDTH)).astype(np.float32)
    if sparse:
        kept = [np.flatnonzero(row > 0) for row in x]
        table["indices"] = pa.array([k.astype(np.uint32) for k in kept], pa.list_(pa.uint32()))
        table["values"] = pa.array([row[k] for k, row in zip(kept, x)], pa.list_(pa.float32()))
        x = np.where(x > 0, x, 0)
    else:
        table |= {f"f{j}": x[:, j] for j in range(WIDTH)}
    return pa.table(table), x, which


def recipe_of(table, *, kind="logistic"):
    chosen = choose_columns(table.schema, label="clicked", exclude=["country", "device"])
    chosen = chosen.with_width(WIDTH) if chosen.sparse else chosen
    return chosen.with_labels(LabelMap(("no", "yes"), column="clicked")) if kind != "linear" else chosen


def trained(folder, table, *, kind="logistic", failed=(), **changes):
    """Write models of known weights, in two generations; of each group the second config is the better one."""
    index = Index(
        kind, recipe_of(table, kind=kind).to_dict(), ("country", "device"), CONFIGS, {"solver": "lbfgs"}, "fp"
    )
    weights = np.random.default_rng(9).standard_normal((len(KEYS), WIDTH + 1, 2)).astype(np.float32)
    with Writer(folder, index, keys=table.schema) as writer:
        for group, key in enumerate(KEYS):
            if group in failed:
                writer.add([Outcome.failure(group, key, rows=1, configs=2, reason="one class only")])
                continue
            given = {
                "selection_loss": [0.5, 0.4],
                "selection_score": [0.7, 0.8],
                "selection_rows": 10,
                "seconds": 0.5,
                "epochs": 3,
            }
            given |= {"loss": [0.3, 0.35], "weights": weights[group]} | changes
            writer.add([Outcome(group=group, key=key, rows=100 * (group + 1), **given)])
            if group == 1:
                writer.commit()
        writer.finish()
    return GroupModels.open(folder), weights


@pytest.fixture(params=[False, True], ids=["dense", "sparse"])
def data(request):
    return rows(sparse=request.param)


def expected_scores(weights, x, which):
    known = np.minimum(which, len(KEYS) - 1)
    return np.einsum("ij,ij->i", x, weights[known, :-1, 1]) + weights[known, -1, 1]


def test_the_frame_has_a_row_for_each_group_and_config(tmp_path, data):
    result, _ = trained(tmp_path, data[0])
    frame = result.frame
    assert len(frame) == 2 * len(KEYS)
    assert frame.column_names[:8] == [
        "country",
        "device",
        "text",
        "group",
        "rows",
        "selection_rows",
        "held_out_rows",
        "config",
    ]
    assert not {"generation", "place"} & set(frame.column_names)
    assert frame["text"].to_pylist()[::2] == ["FR/1", "FR/2", "a%2Fb/1", "%null/%null", "Zürich ☃/3"] == result.groups
    pandas = frame.to_pandas()
    assert pandas.groupby("text", sort=False)["selection_loss"].min().tolist() == [0.4] * 5


@pytest.mark.parametrize(
    ("loss", "held", "usable", "best"),
    [
        ([0.1, 0.2], [0.9, 0.8], [1, 1], 1),  # by rows held out
        ([0.2, 0.1], [np.nan, np.nan], [1, 1], 1),  # nothing held out
        ([0.1, 0.1], [0.5, 0.5], [1, 1], 0),  # equals
        ([0.1, 0.2], [0.5, 0.6], [0, 1], 1),  # failed
        ([0.1, 0.2], [np.nan, 0.6], [1, 1], 1),  # one of them lost its measure
        ([0.1, 0.2], [np.nan, 0.6], [1, 0], 0),  # measured only where it failed
        ([np.nan, np.inf], [np.nan, np.nan], [1, 1], None),
        ([0.1, 0.2], [0.1, 0.2], [0, 0], None),
    ],
)
def test_choosing(loss, held, usable, best):
    # The group stands between two others, which must not matter to it.
    groups = np.array([3, 5, 5, 8])
    loss, held = np.array([0.0, *loss, 0.0]), np.array([0.0, *held, np.nan])
    chosen = choose(groups, loss, selection_loss=held, usable=np.array([1, *usable, 1], bool))
    assert chosen.tolist() == [0, *([] if best is None else [1 + best]), 3]


def test_best_is_a_model_of_its_own(tmp_path, data):
    table, x, _ = data
    result, weights = trained(tmp_path / "models", table)
    for group, (key, text) in enumerate(zip(KEYS, result.groups)):
        model = result.best(text)
        assert isinstance(model, LinearModel)
        np.testing.assert_array_equal(model.weights.coef[0], weights[group, :-1, 1])
        np.testing.assert_array_equal(model.weights.intercept, weights[group, -1:, 1])
        np.testing.assert_array_equal(result.best(key).weights.coef, model.weights.coef)
    assert dict(model.config) == {"model": "logistic", "solver": "lbfgs", "l2": 0.0, "learning_rate": 1.0}
    assert model.metrics["selection_loss"] == 0.4
    assert (model.metrics["group"], model.fingerprint) == ("Zürich ☃/3", "fp")
    model.save(tmp_path / "one.penstock")
    loaded = penstock.load(tmp_path / "one.penstock")
    assert (loaded.l2, loaded.learning_rate) == (0.0, 1.0)
    np.testing.assert_allclose(LinearModel.load(tmp_path / "one.penstock").scores(Batch(x)), model.scores(Batch(x)))
    if "f0" in table.column_names:
        assert loaded.predict(table.to_pandas()).tolist() == model.decide(model.scores(Batch(x))).tolist()


def test_any_config_can_be_asked_for(tmp_path, data):
    result, weights = trained(tmp_path, data[0])
    np.testing.assert_array_equal(result.model(("FR", 2), 0).weights.coef[0], weights[1, :-1, 0])
    assert result.model("FR/2", 0).config["l2"] == 0.1
    with pytest.raises(UsageError, match="group FR/2 was not trained with config 7"):
        result.model("FR/2", 7)
    with pytest.raises(UsageError, match="there is no group 'FR/7'"):
        result.model("FR/7", 0)


def test_one_group_column_may_be_named_by_its_value(tmp_path):
    table = pa.table({"city": [3, 4], "x": [1.0, 2.0], "clicked": ["no", "yes"]})
    recipe = choose_columns(table.schema, label="clicked", exclude=["city"]).with_labels(LabelMap(("no", "yes")))
    with Writer(tmp_path, Index("logistic", recipe.to_dict(), ("city",), ({},)), keys=table.schema) as writer:
        writer.add([Outcome(group=0, key=(3,), rows=1, loss=[0.1], weights=np.ones((2, 1)))])
        writer.finish()
    result = GroupModels.open(tmp_path)
    assert result.best(3).metrics["group"] == result.best("3").metrics["group"] == "3"
    # Text files may tell whole numbers otherwise than the data trained on.
    other = table.set_column(0, "city", pa.array([3.0, 4.0]))
    assert result.predict(other)["prediction"].to_pylist() == ["yes", None]


@pytest.mark.parametrize("kind", ["logistic", "svm", "linear"])
def test_each_row_is_predicted_by_the_model_of_its_group(tmp_path, data, kind):
    table, x, which = data
    if kind == "linear":
        table = table.set_column(2, "clicked", pa.array(np.zeros(len(table))))
    result, weights = trained(tmp_path, table, kind=kind)
    source = TableSource.of(table, block_size=1000)
    assert len(source.block_rows) > 5
    made = result.predict(source, keep=["country"])
    scores, seen = expected_scores(weights, x, which), which < len(KEYS)
    assert made["country"].to_pylist() == table["country"].to_pylist()
    found = np.array(made["prediction"].to_pylist(), object)
    assert (found[~seen] == None).all()  # noqa: E711 - of each
    if kind == "linear":
        np.testing.assert_allclose(found[seen].astype(float), scores[seen], rtol=1e-4, atol=1e-5)
        assert made.column_names == ["country", "prediction"]
        return
    assert found[seen].tolist() == np.where(scores > 0, "yes", "no")[seen].tolist()
    if kind == "logistic":
        chances = made["probability_yes"].to_numpy()
        np.testing.assert_allclose(chances[seen], 1 / (1 + np.exp(-scores[seen])), rtol=1e-4)
        assert np.isnan(chances[~seen]).all()
        assert made["probability_no"].null_count == (~seen).sum()


def test_predictions_agree_with_those_of_each_model_alone(tmp_path, data):
    table, _, which = data
    result, _ = trained(tmp_path, table)
    together = result.predict(table)["probability_yes"].to_numpy()
    for group, key in enumerate(KEYS):
        here = np.flatnonzero(which == group)
        (alone,) = result.best(key).predictions(TableSource.of(table.take(here)))
        np.testing.assert_allclose(together[here], alone["probability_yes"].to_numpy(), rtol=1e-5)


def test_models_are_brought_together_in_parts(tmp_path, data, monkeypatch):
    result, _ = trained(tmp_path, data[0])
    whole = result.predict(data[0])
    monkeypatch.setattr(families, "_GATHERED", 2 * 4 * (WIDTH + 1))
    assert result.predict(data[0]).equals(whole)


def test_predictions_are_streamed_to_a_file(tmp_path, data):
    table, _, _ = data
    result, _ = trained(tmp_path / "models", table)
    parquet.write_table(table, tmp_path / "new.parquet", row_group_size=64)
    heard = []
    out = tmp_path / "out.parquet"
    count = result.predict(tmp_path / "new.parquet", out=out, keep=["device"], stream=Stream([heard.append]))
    assert count == len(table)
    assert isinstance(heard[-1], Finished)
    assert parquet.read_table(out).equals(result.predict(table, keep=["device"]))


def test_a_source_that_was_given_stays_open(tmp_path, data):
    result, _ = trained(tmp_path / "models", data[0])
    parquet.write_table(data[0], tmp_path / "new.parquet")
    with open_source(tmp_path / "new.parquet") as source:
        assert len(result.predict(source)) == len(result.predict(source)) == len(data[0])


def test_no_rows_at_all(tmp_path, data):
    result, _ = trained(tmp_path, data[0])
    assert result.predict(data[0].slice(0, 0)).num_rows == 0


def test_rows_of_unseen_groups(tmp_path, data):
    table, x, which = data
    result, weights = trained(tmp_path, table)
    largest = result.predict(table, unseen="largest")
    scores = expected_scores(weights, x, which)  # the last group is the largest, and has the unseen rows there too
    assert largest["prediction"].to_pylist() == np.where(scores > 0, "yes", "no").tolist()
    first = int(np.argmax(which == len(KEYS)))
    with pytest.raises(DataError, match=rf"row {first}: there is no group 'XX/9'; there are: FR/1, .*unseen='null'"):
        result.predict(TableSource.of(table, block_size=500), unseen="error")
    seen = table.take(np.flatnonzero(which < len(KEYS)))
    assert result.predict(seen, unseen="error").equals(result.predict(seen))
    with pytest.raises(UnknownOptionError, match="unseen='nul' is not known; choose one of: error, largest, null"):
        result.predict(table, unseen="nul")


def test_groups_that_failed(tmp_path, data):
    table, x, which = data
    result, weights = trained(tmp_path, table, failed=[0, 4])
    assert result.failed["text"].to_pylist() == ["FR/1", "FR/1", "Zürich ☃/3", "Zürich ☃/3"]
    assert set(result.failed["reason"].to_pylist()) == {"one class only"}
    with pytest.raises(UsageError, match="group FR/1 has no model: one class only"):
        result.best("FR/1")
    made = result.predict(table)["prediction"]
    assert made.is_null().to_numpy().tolist() == np.isin(which, [0, 4, 5]).tolist()
    largest = result.predict(table, unseen="largest")["prediction"].to_pylist()
    scores = x @ weights[3, :-1, 1] + weights[3, -1, 1]
    here = np.flatnonzero(np.isin(which, [0, 4, 5]))
    assert [largest[row] for row in here] == np.where(scores > 0, "yes", "no")[here].tolist()
    with pytest.raises(DataError, match=r"group (FR/1|Zürich ☃/3) has no model: one class only"):
        result.predict(table.take(np.flatnonzero(which < 5)), unseen="error")


def test_all_groups_failed(tmp_path, data):
    result, _ = trained(tmp_path, data[0], failed=range(5))
    assert result.predict(data[0])["prediction"].null_count == len(data[0])
    with pytest.raises(UsageError, match=r"no group in .* has a model"):
        result.predict(data[0], unseen="largest")
    told = result.summary()
    assert (told["groups_without_model"], told["failed"], told["held_out_loss"], told["chosen"]) == (5, 10, None, [])


def test_a_failed_config_is_never_chosen(tmp_path, data):
    result, weights = trained(tmp_path, data[0], status=["done", "failed"], reason=["", "diverged"])
    np.testing.assert_array_equal(result.best("FR/1").weights.coef[0], weights[0, :-1, 0])
    assert set(result.chosen["config"].to_pylist()) == {0}


def test_a_config_whose_model_is_not_kept_is_not_chosen(tmp_path, data):
    weights = np.ones((WIDTH + 1, 2), np.float32)
    weights[:, 1] = np.nan
    result, _ = trained(tmp_path, data[0], weights=weights)
    assert set(result.chosen["config"].to_pylist()) == {0}


def test_summary_is_plain_and_weighted_by_rows(tmp_path, data):
    result, _ = trained(tmp_path, data[0], failed=[4])
    told = json.loads(json.dumps(result.summary()))
    assert told == {
        "model": "logistic",
        "by": ["country", "device"],
        "finished": True,
        "groups": 5,
        "groups_without_model": 1,
        "configs": 2,
        "failed": 2,
        "refitted": 0,
        "rows": 1001,
        "seconds": 2.0,
        "loss": pytest.approx(0.35),
        "held_out_rows": None,
        "held_out_loss": None,
        "held_out_accuracy": None,
        "pooled": None,
        "selection_loss": pytest.approx(0.4),
        "selection_accuracy": pytest.approx(0.8),
        "chosen": [{"config": 1, "params": CONFIGS[1], "groups": 4}],
    }
    assert repr(result) == "<GroupModels of 5 groups by country, device, 2 configs: 4 groups with a model>"


def test_saved_elsewhere_and_opened(tmp_path, data):
    result, _ = trained(tmp_path / "here", data[0])
    result.save(tmp_path / "there")
    again = GroupModels.open(tmp_path / "there")
    assert again.frame.equals(result.frame)
    assert again.predict(data[0]).equals(result.predict(data[0]))
    with pytest.raises(UsageError, match="there holds models already; choose another folder"):
        result.save(tmp_path / "there")
    result.save(tmp_path / "here")


def test_a_training_not_finished_can_be_saved(tmp_path, data):
    trained(tmp_path / "whole", data[0])
    index = GroupModels.open(tmp_path / "whole").registry.index
    with Writer(
        tmp_path / "part",
        Index(**{n: getattr(index, n) for n in ("kind", "recipe", "by", "configs")}),
        keys=data[0].schema,
    ) as writer:
        for group in range(2):
            writer.add([Outcome(group=group, key=KEYS[group], rows=5, loss=[1, 2], weights=np.ones((WIDTH + 1, 2)))])
            writer.commit()
        GroupModels.open(tmp_path / "part").save(tmp_path / "copy")
    copied = GroupModels.open(tmp_path / "copy")
    assert copied.groups == ["FR/1", "FR/2"]
    assert not copied.summary()["finished"]
    assert copied.best("FR/2").weights.intercept.tolist() == [1]


def test_mistakes_name_the_columns_and_the_groups(tmp_path):
    table, _, _ = rows()
    result, _ = trained(tmp_path, table)
    with pytest.raises(ColumnError, match="has no group column 'device'; it has: "):
        result.predict(table.drop_columns(["device"]))
    with pytest.raises(ColumnError, match="has no column 'citi'"):
        result.predict(table, keep=["citi"])
    with pytest.raises(ColumnError, match="has no feature column 'f2'"):
        result.predict(table.drop_columns(["f2"]))
    with pytest.raises(UsageError, match=r"there is no group 'FR/l'; there are: FR/1.*did you mean 'FR/[12]'\?"):
        result.best("FR/l")
    bad = table.set_column(table.column_names.index("f1"), "f1", pa.array([np.nan] * len(table)))
    with pytest.raises(FeatureError, match="'f1' is not a finite number in row 1"):
        result.predict(bad)


def test_models_of_trees_are_read_as_text(tmp_path):
    table, _, _ = rows()
    index = Index("logistic", recipe_of(table).to_dict(), ("country", "device"), CONFIGS, family="trees")
    with Writer(tmp_path, index, keys=table.schema) as writer:
        writer.add([Outcome(group=0, key=KEYS[0], rows=5, loss=[1, 2], trees=["one", "two"])])
        writer.finish()
    result = GroupModels.open(tmp_path)
    assert result.registry.trees(1) == "two"
    assert result.best("FR/1").text == "one"
    for ask in (lambda: result.best("FR/1").booster, lambda: result.predict(table)):
        with pytest.raises(ModelFileError, match=r"the model of group FR/1.* cannot be read: it is not a whole model"):
            ask()


def test_weights_of_another_width_are_refused(tmp_path):
    table, _, _ = rows()
    result, _ = trained(tmp_path, table, weights=np.ones((WIDTH + 2, 2)))
    for ask in (lambda: result.best("FR/1"), lambda: result.predict(table)):
        with pytest.raises(ModelFileError, match="have 5 features, the index tells of 4; restore the folder"):
            ask()


def test_sparse_features_of_no_stated_width_have_that_of_the_models(tmp_path):
    table, _, _ = rows(sparse=True)
    recipe = choose_columns(table.schema, label="clicked", exclude=["country", "device"])
    index = Index("linear", recipe.to_dict(), ("country", "device"), ({},))
    with Writer(tmp_path, index, keys=table.schema) as writer:
        writer.add([Outcome(group=0, key=KEYS[0], rows=5, loss=[1], weights=np.ones((2, 1)))])
        writer.finish()
    one = table.slice(0, 1).to_pylist()[0] | {"country": "FR", "device": 1, "indices": [0, 3], "values": [2.0, 4.0]}
    assert GroupModels.open(tmp_path).predict(pa.Table.from_pylist([one], table.schema))["prediction"].to_pylist() == [
        3.0
    ]
