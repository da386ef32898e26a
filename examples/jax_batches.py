"""JAX fed by `penstock.batches`: NumPy batches, shuffled and read ahead by threads, with no torch in sight.

Run `python examples/jax_batches.py`, with jax installed. Batches are NumPy arrays in memory of their own, which JAX takes
over through DLPack: on the CPU without a copy.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    print("jax is not installed, so there is nothing to show: pip install jax")
    sys.exit()

Weights = list[tuple[jax.Array, jax.Array]]


def write_rows(path: Path, count: int, *, seed: int) -> None:
    """Write points of two rings sorted by the ring they belong to."""
    chance = np.random.default_rng(seed)
    ring = np.arange(count) * 2 // count
    angle, radius = chance.uniform(0, 2 * np.pi, count), 1 + ring + 0.2 * chance.standard_normal(count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), 2)
    # JAX computes in 32 bits unless told otherwise, so that is what is stored: int64 would be cast in every batch.
    penstock.convert(pa.table({"point": column, "ring": ring.astype(np.int32)}), path)


def begin(sizes: tuple[int, ...]) -> Weights:
    """Return random weights for layers of these sizes."""
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    return [
        (jax.random.normal(key, (a, b)) * np.sqrt(2 / a), jnp.zeros(b))
        for key, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def score(weights: Weights, x: jax.Array) -> jax.Array:
    """Return a score for each ring."""
    for w, b in weights[:-1]:
        x = jax.nn.relu(x @ w + b)
    return x @ weights[-1][0] + weights[-1][1]


def loss(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the cross-entropy of a batch."""
    return -jnp.take_along_axis(jax.nn.log_softmax(score(weights, x)), y[:, None], axis=1).mean()


@jax.jit
def step(weights: Weights, x: jax.Array, y: jax.Array) -> Weights:
    """Return the weights after a step of gradient descent."""
    return jax.tree.map(lambda w, slope: w - 0.1 * slope, weights, jax.grad(loss)(weights, x, y))


def main(*, rows: int = 20_000, epochs: int = 3) -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as own:
        train, test = Path(own, "train.arrow"), Path(own, "test.arrow")
        write_rows(train, rows, seed=1)
        write_rows(test, rows // 10, seed=2)
        for shuffle in ("none", "corgipile"):
            weights = begin((2, 32, 32, 2))
            # drop_last: batches of one shape, so that the step is compiled once.
            with penstock.batches(train, 64, shuffle=shuffle, columns=("point", "ring"), drop_last=True) as stream:
                for _ in range(epochs):
                    for x, y in stream:
                        weights = step(weights, jax.dlpack.from_dlpack(x), jax.dlpack.from_dlpack(y))
            right = []
            with penstock.batches(test, 500, shuffle="none", columns=("point", "ring")) as stream:
                for x, y in stream:
                    right.append(np.asarray(score(weights, jnp.asarray(x)).argmax(1)) == y)
            print(f"shuffle={shuffle:10} test accuracy {np.concatenate(right).mean():.3f}")


if __name__ == "__main__":
    main()
