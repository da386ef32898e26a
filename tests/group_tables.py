"""Rows of groups whose names are awkward, some of them past learning, and what is compared of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock.groups.keys import to_text
from penstock.groups.results import GroupModels

KEYS = [("FR", "i/os"), ("Ελλάδα", "100 %"), (None, "ios"), ("FR", None), ("", "a"), ("DE", "web")]
SIZES = [500, 260, 150, 120, 90, 80]
BAD = {("one", "class"): 40, ("too", "few"): 1, ("not a", "number"): 60}
L2 = [0.5, 0.05, 0.01]


def rows_of(
    sizes: dict[tuple[Any, ...], int], *, by: tuple[str, ...] = ("country", "device"), seed: int = 0
) -> pa.Table:
    """Return rows of groups of these sizes, in no order, each with weights of its own."""
    rng = np.random.default_rng(seed)
    keys = list(sizes)
    owner = rng.permutation(np.repeat(np.arange(len(keys)), list(sizes.values())))
    x = rng.standard_normal((len(owner), 3)).astype(np.float32)
    truth = rng.standard_normal((len(keys), 3))
    score = (x * truth[owner]).sum(1) + rng.standard_normal(len(owner))
    columns: dict[str, Any] = {
        name: pa.array([keys[number][place] for number in owner]) for place, name in enumerate(by)
    }
    columns |= {name: x[:, place] for place, name in enumerate("abc")}
    return pa.table(columns | {"clicked": score > 0, "amount": score})


def with_bad() -> pa.Table:
    """Return the rows of all keys and of groups that cannot be trained."""
    table = rows_of(dict(zip(KEYS, SIZES, strict=True)) | BAD)
    country = np.array(table["country"].to_pylist(), object)
    clicked, a = table["clicked"].to_numpy().copy(), table["a"].to_numpy().copy()
    clicked[country == "one"] = True
    a[np.flatnonzero(country == "not a")[:30]] = np.inf  # more than can all be held out
    columns = {name: table[name] for name in table.column_names} | {"clicked": clicked, "a": a}
    return pa.table(columns).drop_columns(["amount"])


def logistic(**options: Any) -> penstock.LogisticRegression:
    usual = {"solver": "lbfgs", "epochs": 100, "tolerance": 1e-6, "standardize": False}
    return penstock.LogisticRegression(**usual | options)


def frame_rows(result: GroupModels, key: tuple[Any, ...]) -> list[dict[str, Any]]:
    return result.frame.filter(pc.equal(result.frame["text"], to_text(key))).to_pylist()


def chosen(table: pa.Table, key: tuple[Any, ...], by: tuple[str, ...] = ("country", "device")) -> pa.Table:
    """Return the rows of a group, in their order."""
    places = [
        at for at, found in enumerate(zip(*(table[name].to_pylist() for name in by), strict=True)) if found == key
    ]
    return table.take(pa.array(places))


def same_results(one: GroupModels, two: GroupModels) -> None:
    """Compare all but the time it took."""
    for name in one.frame.column_names:
        if name == "seconds":
            continue
        mine, other = one.frame[name], two.frame[name]
        if pa.types.is_floating(mine.type):
            np.testing.assert_allclose(mine.to_numpy(), other.to_numpy(), rtol=1e-5, err_msg=name)
        else:
            assert mine.to_pylist() == other.to_pylist(), name
    for text in one._models:
        for mine, other in zip(coefficients(one, text), coefficients(two, text), strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-5)


def coefficients(result: GroupModels, key: Any) -> tuple[Any, Any]:
    weights = result.best(key).weights
    return weights.coef[0], weights.intercept
