"""One model of all rows by `GroupBy`: what a single group learns, without a column to group by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import UsageError
from penstock.explanation.group_training import explain_groups
from penstock.groups import Boosting, GroupBy, GroupModels
from penstock.model_kinds import open_model


def rows_of(count: int = 1200) -> pa.Table:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2))
    word = rng.choice(["a", "b"], count)
    return pa.table({"x1": x[:, 0], "x2": x[:, 1], "word": word, "y": np.where(x[:, 0] * x[:, 1] > 0, "yes", "no")})


@pytest.mark.parametrize("model", [penstock.LogisticRegression(), Boosting(rounds=15)])
def test_all_rows_are_learned_from_as_one_group_is(model: Any, inline: None, tmp_path: Any) -> None:
    rows = rows_of()
    options: dict[str, Any] = {"y": "y", "workers": 1, "pooled": False, "search": {"learning_rate": [0.1, 0.3]}}
    result = GroupBy(rows, by=None).fit(model, **options, out=tmp_path / "one")
    constant = GroupBy(rows.append_column("all", pa.array([1] * len(rows))), by="all").fit(model, **options)
    assert (result.by, result.groups, result.chosen["rows"].to_pylist()) == ((), [""], [len(rows)])
    assert result.metrics == constant.metrics
    found = result.predict(rows)["prediction"]
    assert found.equals(constant.predict(rows.append_column("all", pa.array([1] * len(rows))))["prediction"])
    assert result.evaluate(rows)["accuracy"] == np.mean(found.to_numpy() == rows["y"].to_numpy())
    assert result.columns == ("x1", "x2", "word")
    opened = GroupModels.open(tmp_path / "one")
    assert opened.predict(rows)["prediction"].equals(found)
    opened.best("").save(tmp_path / "model")
    with open_model(tmp_path / "model") as single:
        assert single.columns == result.columns


def test_no_name_at_all_is_still_refused(inline: None) -> None:
    with pytest.raises(UsageError, match="names no column"):
        GroupBy(rows_of(), by=[]).fit(Boosting(rounds=2), y="y", workers=1)


def test_what_it_will_take_is_told(inline: None) -> None:
    told = "\n".join(explain_groups(rows_of(), (), model=Boosting(rounds=3), workers=[1], label="y").lines())
    assert "1,200 rows, all of which one model learns from" in told
    assert "for each group" not in told.split("Measured")[0]
