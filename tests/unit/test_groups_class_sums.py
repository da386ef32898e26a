"""Sums of softmax over a group's rows: those of the plain formula, dense and sparse, weighted, and split in parts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from penstock.batch import Batch, Csr
from penstock.groups.patterns.algebraic import class_sums

CLASSES, WIDTH, CONFIGS, ROWS = 4, 3, 2, 700


@pytest.mark.parametrize("sparse", [False, True])
def test_loss_gradient_and_selection_are_those_of_the_formula(sparse: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32) * (rng.random((ROWS, WIDTH)) < 0.6)
    y, weight = rng.integers(0, CLASSES, ROWS), rng.choice([0.0, 0.5, 2.0], ROWS).astype(np.float32)
    parts = rng.integers(0, 3, ROWS).astype(np.uint8)
    at = rng.standard_normal(((WIDTH + 1) * CLASSES, CONFIGS))
    rows = Batch(x, y.astype(np.float32), weight)
    if sparse:
        kept = x != 0
        ends = np.concatenate([[0], np.cumsum(kept.sum(1))]).astype(np.uint64)
        csr = Csr(ends, np.nonzero(kept)[1].astype(np.uint32), x[kept], WIDTH)
        rows = Batch(csr, y.astype(np.float32), weight)
    found = class_sums(rows, at=at, classes=CLASSES, hold=parts)
    ones = np.column_stack([x, np.ones(ROWS)])
    for config in range(CONFIGS):
        scores = ones @ at[:, config].reshape(WIDTH + 1, CLASSES)
        chances = log_softmax(scores, axis=1)
        loss = -chances[np.arange(ROWS), y]
        train, chosen = weight * (parts == 0), weight * (parts == 1)
        slopes = train[:, None] * (np.exp(chances) - np.eye(CLASSES)[y])
        assert found.loss[config] == pytest.approx(train @ loss, rel=1e-4)
        np.testing.assert_allclose(found.gradient[:, config], (ones.T @ slopes).ravel(), atol=2e-3)
        assert found.held_loss[config] == pytest.approx(chosen @ loss, rel=1e-4)
        assert found.held_right[config] == pytest.approx(chosen @ (scores.argmax(1) == y))
    assert (found.weight, found.held_weight) == (pytest.approx(train.sum()), pytest.approx(chosen.sum()))
