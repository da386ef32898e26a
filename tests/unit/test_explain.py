"""`penstock.explain` on small data of every format: what it says of them, and that its advice works."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.blocks.open import open as open_source
from penstock.cli import app
from penstock.errors import ColumnError, DataError, FeatureError, LabelError, UnknownOptionError
from penstock.explanation.explanation import format_sections
from penstock.explanation.sample import SampledColumns
from penstock.explanation.training import training_sections
from penstock.loader.loader import Loader
from penstock.sgd import kernels
from penstock.shuffle import ORDERS
from penstock.training import Columns

ROWS = 20_000


def table(*, clustered: bool, rows: int = ROWS, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    y = np.arange(rows) >= rows // 2 if clustered else rng.random(rows) < 0.5
    # The label decides the feature's sign, so that gradients of one block are alike where its labels are.
    x = 1 + 0.1 * rng.normal(size=(rows, 2))
    return pa.table({"a": x[:, 0], "b": x[:, 1], "y": y.astype(np.int64)})


def written(folder: Path, kind: str, *, clustered: bool = True) -> tuple[Path, str | None]:
    data, path = table(clustered=clustered), folder / f"data.{kind}"
    if kind == "parquet":
        pq.write_table(data, path, row_group_size=500)
    elif kind == "csv":
        csv.write_csv(data, path)
    elif kind == "libsvm":
        lines = zip(*(data[c].to_pylist() for c in ("y", "a", "b")), strict=True)
        path.write_text("".join(f"{y} 1:{a:.4f} 2:{b:.4f}\n" for y, a, b in lines))
        return path, None
    elif kind == "arrow":
        penstock.convert(data, path, label="y", block_size="4KB")
        return path, None
    else:
        np.save(path, np.column_stack([data[c].to_numpy() for c in ("a", "b", "y")]))
        return path, "2"
    return path, "y"


@pytest.mark.parametrize("kind", ["parquet", "csv", "libsvm", "arrow", "npy"])
def test_every_format_is_explained(tmp_path: Path, kind: str) -> None:
    path, label = written(tmp_path, kind)
    found = penstock.explain(path, label=label, measure=False)
    assert abs(found.shape.rows - ROWS) <= 0.02 * ROWS
    assert found.shape.layout == ("packed" if kind == "arrow" else "decoded")
    assert found.shape.sparse == (kind == "libsvm")
    assert found.clustering is not None
    assert found.clustering.by == "label"
    assert {p.strategy for p in found.predictions} == set(ORDERS)
    assert all(p.seconds > 0 and p.first_seconds > 0 for p in found.predictions)
    assert found.cost("once").prepare_seconds > 0
    assert (found.converting is None) == (kind == "arrow")
    if found.converting is not None:
        assert found.converting.seconds_now > 0
        assert found.converting.command.startswith(f"penstock convert {path}")
    assert 10 < len(found.lines()) <= 45
    assert str(path) in str(found)


def test_rows_sorted_by_label_have_an_h_d_of_about_b() -> None:
    found = penstock.explain(table(clustered=True), label="y", measure=False, block_size="8KB").clustering
    assert found is not None
    assert found.piece_rows > 100
    assert found.h_D > 0.9 * found.piece_rows
    assert found.label_h_D > 0.95 * found.piece_rows
    assert "clustered by label: training in stored order would lose accuracy" in found.meaning


def test_shuffled_rows_have_an_h_d_of_about_one() -> None:
    found = penstock.explain(table(clustered=False), label="y", measure=False, block_size="8KB").clustering
    assert found is not None
    assert abs(found.h_D - 1) < 3 * found.error + 0.5
    assert found.h_D < 0.05 * found.piece_rows
    assert not found.clustered
    assert "as if shuffled" in found.meaning


def test_rows_sorted_by_a_feature_are_told_from_rows_sorted_by_label() -> None:
    rng = np.random.default_rng(1)
    y = rng.choice([-1, 1], ROWS)
    turned = np.where(np.arange(ROWS) < ROWS // 2, 1.0, -1.0)  # what the feature says of the label turns over
    data = pa.table({"x": y * turned + 0.1 * rng.normal(size=ROWS), "y": y})
    found = penstock.explain(data, label="y", measure=False, block_size="8KB").clustering
    assert found is not None
    assert found.label_h_D < 0.1 * found.piece_rows
    assert found.by == "feature"
    assert "clustered by feature" in found.meaning


@pytest.mark.parametrize("kind", ["parquet", "csv", "arrow"])
@pytest.mark.parametrize("memory", ["2%", "100KB", "512MB"])
def test_recommended_memory_works_in_a_loader(tmp_path: Path, kind: str, memory: str) -> None:
    path, label = written(tmp_path, kind)
    found = penstock.explain(path, label=label, memory=memory, measure=False)
    advice = found.recommendation
    assert f"--memory {advice.memory_text}" in advice.command
    with open_source(path) as source:
        recipe = Columns(label=label).recipe(source)
        for given in (advice.memory, advice.memory_text):
            with Loader(source, recipe, advice.strategy, memory=given) as loader:
                assert sum(len(w.batch) for w in loader.epoch(0)) == ROWS
                assert loader.plan.held_rows >= 0.02 * ROWS


def test_a_budget_too_small_is_warned_of_with_the_smallest_that_works(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "arrow")
    found = penstock.explain(path, memory="5KB", measure=False)
    assert any("the smallest that works" in w for w in found.warnings)
    assert found.recommendation.memory > 5000


def test_data_that_fit_are_said_to_stay_in_memory(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "arrow")
    found = penstock.explain(path, measure=False)
    assert found.resident
    assert "stay decoded in memory" in found.cost("corgipile").note
    assert not penstock.explain(path, memory="10%", measure=False).resident


def test_without_a_label_h_d_is_not_measured_but_all_else_is(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "csv")
    found = penstock.explain(path, measure=False)
    assert found.clustering is None
    assert "name it with label='COLUMN'" in str(found.clustering_note)
    assert found.label is None
    assert "--label COLUMN" in found.recommendation.command
    assert all(p.seconds > 0 for p in found.predictions)
    assert "h_D was not measured" in str(found)


def test_a_tiny_sorted_file_is_still_seen_to_be_sorted(tmp_path: Path) -> None:
    path = tmp_path / "tiny.csv"
    csv.write_csv(table(clustered=True, rows=200), path)
    found = penstock.explain(path, label="y", measure=False)
    assert found.shape.rows == 200
    assert found.clustering is not None
    assert found.clustering.by == "label"


def test_three_rows_are_explained_without_h_d(tmp_path: Path) -> None:
    path = tmp_path / "three.csv"
    csv.write_csv(table(clustered=True, rows=3), path)
    found = penstock.explain(path, label="y", measure=False)
    assert found.clustering is None
    assert "too few" in str(found.clustering_note)


def test_many_classes_are_explained_for_softmax_and_numbers_for_linear() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=5000)
    classes = penstock.explain(pa.table({"x": x, "y": rng.integers(0, 12, 5000)}), label="y", measure=False)
    assert classes.model == "softmax"
    assert "--model softmax" in classes.recommendation.command
    assert any("12 values" in w for w in classes.warnings)
    numbers = penstock.explain(pa.table({"x": x, "y": rng.normal(size=5000)}), label="y", measure=False)
    assert numbers.model == "linear"


@pytest.mark.parametrize("model", ["svm", "linear", "softmax"])
def test_every_model_is_explained(model: str) -> None:
    found = penstock.explain(table(clustered=True), label="y", model=model, measure=False, block_size="8KB")
    assert found.model == model
    assert found.clustering is not None
    assert found.clustering.clustered


def test_text_and_nulls_are_features_in_a_table_of_columns() -> None:
    data = table(clustered=True).append_column("town", pa.array([f"t{i % 5}" for i in range(ROWS)]))
    data = data.append_column("holes", pa.array([None if i % 7 == 0 else float(i % 3) for i in range(ROWS)]))
    data = data.append_column("same", pa.array(["x"] * ROWS)).append_column("row", pa.array(range(ROWS)))
    found = penstock.explain(data, label="y", measure=False)
    assert found.shape.features == 2 + 5 + 2
    columns = {each["column"]: each for each in found.columns}
    assert columns["town"].items() >= {"kind": "category", "levels": 5, "missing": "no feature", "mean": None}.items()
    assert columns["holes"].items() >= {"kind": "number", "levels": None, "missing": "own feature"}.items()
    assert columns["holes"]["mean"] == pytest.approx(1, abs=0.1)
    assert found.left_out == {"same": "one value", "row": "row numbers"}
    assert "left out: same (one value), row (row numbers)" in str(found)
    assert found.fit is not None
    assert found.converting is not None
    assert "--exclude" not in found.recommendation.command


def test_options_of_the_recipe_are_part_of_the_recommended_command() -> None:
    data = table(clustered=True).append_column("code", pa.array([i % 5 for i in range(ROWS)]))
    data = data.append_column("holes", pa.array([-9 if i % 7 == 0 else i % 3 for i in range(ROWS)]))
    options = {"category": ["code"], "missing": "indicator", "null_values": ["-9"]}
    found = penstock.explain(data, label="y", measure=False, **options)
    assert {each["column"]: each["kind"] for each in found.columns}["code"] == "category"
    assert "--category code --missing indicator --null-values -9" in found.recommendation.command
    refused = {**options, "missing": "refuse"}
    with pytest.raises(FeatureError, match="'holes' is null in row 0"):
        penstock.explain(data, label="y", measure=False, **refused)


def test_what_columns_hold_is_found_in_the_sampled_blocks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.explanation.sample.MOST_BLOCKS", 5)  # so that few rows are many blocks
    path = tmp_path / "towns.parquet"
    data = table(clustered=False).append_column("town", pa.array([f"t{i % 5}" for i in range(ROWS)]))
    pq.write_table(data, path, row_group_size=ROWS // 40)
    with penstock.open(path) as source:
        read, seen = source.read, set()

        def note(block: int, columns: list[str]) -> Any:
            seen.add(block)
            return read(block, columns)

        monkeypatch.setattr(source, "read", note)
        sampled = SampledColumns.of(source, Columns("y"), seed=0)
        assert len(source.block_rows) > 20
        assert seen <= {*sampled.blocks.tolist(), *sampled.timed.tolist()}
        assert len(seen) <= 10
    assert [part.kind for part in sampled.recipe.parts] == ["number", "number", "category"]


def test_text_can_be_hashed_here_as_well() -> None:
    data = table(clustered=True).append_column("town", pa.array([f"t{i % 50}" for i in range(ROWS)]))
    found = penstock.explain(data, label="y", hash=["town:2^10"], measure=False)
    assert found.shape.sparse
    assert "--hash 'town:2^10'" in found.recommendation.command


def test_one_class_and_features_that_are_not_finite_are_warned_of() -> None:
    same = table(clustered=True).set_column(2, "y", pa.array([1] * ROWS))
    assert any("two classes" in w for w in penstock.explain(same, label="y", measure=False).warnings)
    x = np.ones(ROWS)
    x[::10] = np.inf
    odd = table(clustered=True).set_column(0, "a", pa.array(x, from_pandas=False))
    assert any("not finite" in w for w in penstock.explain(odd, label="y", measure=False).warnings)


def test_row_groups_larger_than_a_block_are_told_of(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    pq.write_table(table(clustered=True), path, row_group_size=5000)
    found = penstock.explain(path, label="y", memory="200KB", measure=False, block_size="4KB")
    assert found.shape.row_groups == 4
    assert not found.resident
    assert any("row groups meet" in w or "row group meets" in w for w in found.warnings)
    assert found.converting is not None
    assert found.converting.worth_it


@pytest.mark.parametrize("large", [False, True])
def test_sorted_rows_in_few_row_groups_get_a_way_that_mixes_them(tmp_path: Path, large: bool) -> None:
    path = tmp_path / "groups.parquet"
    pq.write_table(
        table(clustered=True, rows=200_000 if large else ROWS), path, row_group_size=50_000 if large else 5000
    )
    found = penstock.explain(path, label="y", memory="2MB" if large else "200KB", measure=False, block_size="16KB")
    advice, gained = found.recommendation, found.converting
    assert gained is not None
    assert gained.convert_seconds > 0
    # Windows of the file as it is hold rows of one class: whatever they cost, another way is recommended.
    assert advice.strategy == "once" or advice.convert
    assert found.shuffled is not None
    assert found.shuffled.balance < 2
    # Of those that mix, the one that the table calls cheapest for a training, or nearly so.
    costs = {"once": found.cost("once").total(20), "convert": gained.cost.total(20)}
    assert costs["convert" if advice.convert else "once"] <= max(1.5 * min(costs.values()), min(costs.values()) + 1)
    shown = [line for line in found.lines() if line.startswith("→")]
    assert [line.split()[1] for line in shown] == ["converted" if advice.convert else "once"]


def test_the_recommended_lines_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(table(clustered=True), "groups.parquet", row_group_size=5000)
    found = penstock.explain("groups.parquet", label="y", memory="200KB", measure=False, block_size="4KB")
    assert found.converting is not None
    assert found.converting.target == "groups.arrow"
    for line in filter(None, (found.converting.command, found.recommendation.convert, found.recommendation.command)):
        done = CliRunner().invoke(app, [*shlex.split(line)[1:], *_keep_anyway(line)])
        assert done.exit_code == 0, (line, done.stderr)


def _keep_anyway(line: str) -> list[str]:
    return ["--keep-anyway"] if "train" in line else []  # the features say nothing of the label


def test_memory_for_a_converted_file_is_not_what_the_unconverted_one_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = 100_000
    data = table(clustered=True, rows=rows)
    pq.write_table(data, "groups.parquet", row_group_size=rows // 3 + 1)
    memory = f"{penstock.explain('groups.parquet', label='y', measure=False).shape.decoded_bytes // 10}B"
    found = penstock.explain("groups.parquet", label="y", memory=memory, measure=False)
    advice = found.recommendation
    assert advice.convert
    assert found.memory_bytes > advice.memory  # the row groups of the file as it is need more
    assert found.shuffled is not None
    assert found.shuffled.balance < 2
    text = str(found)
    assert f"--memory {advice.memory_text}" in text
    assert "of the rows of the converted file together" in text
    assert "Converted and shuffled as recommended" in text
    assert all(not w.startswith("Groups.parquet") for w in found.warnings)
    for line in (advice.convert, advice.command.replace(advice.memory_text, memory)):
        epochs = ["--epochs", "1"] if "train" in line else []
        done = CliRunner().invoke(app, [*shlex.split(line)[1:], *epochs, *_keep_anyway(line)])
        assert done.exit_code == 0, (line, done.stderr)


def test_few_large_blocks_in_a_window_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "large.arrow"
    penstock.convert(table(clustered=True), path, label="y", block_size="16KB")
    found = penstock.explain(path, memory="150KB", measure=False)
    assert found.shuffled is not None
    assert (found.recommendation.strategy, found.shuffled.balance) == ("once", 1)
    assert found.recommendation.memory >= 150_000  # less would shuffle worse still
    assert any("smaller blocks" in w for w in found.warnings)
    even = penstock.explain(table(clustered=False), label="y", memory="150KB", measure=False, block_size="8KB")
    assert even.shuffled is not None
    assert even.shuffled.balance < 1.2
    assert not any("smaller blocks" in w for w in even.warnings)


def test_wrong_usage_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "csv")
    with pytest.raises(ColumnError, match=r"no label column 'yy'.*did you mean 'y'"):
        penstock.explain(path, label="yy", measure=False)
    with pytest.raises(UnknownOptionError, match="did you mean 'logistic'"):
        penstock.explain(path, label="y", model="logistc", measure=False)
    with pytest.raises(DataError, match="no rows"):
        penstock.explain(pa.table({"x": pa.array([], pa.float64())}), measure=False)
    holes = table(clustered=True).set_column(2, "y", pa.array([None] + [1] * (ROWS - 1)))
    with pytest.raises(LabelError, match="missing"):
        penstock.explain(holes, label="y", missing="refuse", measure=False)


def test_what_is_found_is_plain_json_and_the_same_for_a_seed(tmp_path: Path) -> None:
    path, label = written(tmp_path, "parquet")
    first, second = (penstock.explain(path, label=label, measure=False, seed=3) for _ in range(2))
    told: dict[str, Any] = json.loads(json.dumps(first.to_dict(), allow_nan=False))
    assert told["clustering"]["h_D"] == first.clustering.h_D  # type: ignore[union-attr]  # there is a label
    assert first.clustering == second.clustering
    assert first.shape == second.shape
    assert told["predictions"][0]["strategy"] == "none"


def test_an_open_source_is_left_open(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "arrow")
    with open_source(path) as source:
        opened = source.max_open
        penstock.explain(source, measure=False)
        assert source.max_open == opened
        assert len(source.read(0)) > 0


def test_the_timed_learning_goes_through_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "wide.libsvm"  # whose later blocks have features that the first ones have not
    path.write_text("".join(f"{i % 2} 1:1 {2 + i // 10}:0.5\n" for i in range(5000)))
    real, stopped = kernels.train, list[int]()

    def train(*args: Any, **named: Any) -> int:
        stopped.append(real(*args, **named))
        return stopped[-1]

    monkeypatch.setattr(kernels, "train", train)
    found = penstock.explain(path, measure=False)
    assert found.shape.features >= 501
    assert set(stopped) == {-1}


def test_a_sample_of_nearly_one_label_is_still_seen_to_be_sorted(tmp_path: Path) -> None:
    # One row group is decoded from its start only, so the sample ends soon after the first label does.
    rng = np.random.default_rng(0)
    y = np.arange(50_000) >= 12_400
    path = tmp_path / "one-group.parquet"
    features = {f"x{i}": rng.normal(size=len(y)).astype(np.float32) for i in range(12)}
    pq.write_table(pa.table({**features, "y": y.astype(np.int64)}), path, row_group_size=len(y))
    found = penstock.explain(path, label="y", measure=False, block_size="2KB")
    assert found.clustering is not None
    assert found.clustering.by == "label"
    assert "as if shuffled" not in found.clustering.meaning


def test_a_window_of_nearly_all_rows_is_told_in_plain_percent(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "arrow")
    found = penstock.explain(path, memory="95%", measure=False)
    advice = replace(found.recommendation, window_share=0.997)
    nearly = format_sections(training_sections({**found.facts, "recommendation": advice}))
    assert any("shuffle 99% of the rows together" in line for line in nearly)


def test_blocks_that_are_small_already_are_not_to_be_made_smaller(tmp_path: Path) -> None:
    path = tmp_path / "small.arrow"
    penstock.convert(table(clustered=True), path, label="y", block_size="4KB")
    found = penstock.explain(path, memory="40KB", measure=False)
    assert any("give more memory for a better shuffle" in w for w in found.warnings), found.warnings
    assert not any("smaller blocks" in w for w in found.warnings)


def test_rows_without_a_label_are_left_out_or_refused_by_their_row(tmp_path: Path) -> None:
    y = np.zeros(ROWS)
    y[::2] = 1
    y[-3:] = np.nan
    path = tmp_path / "gap.parquet"
    pq.write_table(table(clustered=False).set_column(2, "y", pa.array(y, from_pandas=True)), path, row_group_size=500)
    assert penstock.explain(path, label="y", measure=False).fit is not None
    with pytest.raises(LabelError, match=rf"gap.parquet: 'y' is missing \(null\) in row {ROWS - 3};"):
        penstock.explain(path, label="y", missing="refuse", measure=False)
