"""Ratings of items by users, learnt as factors that live on disk, in memory for a quarter of them.

The ratings come from factors that are known here, so that what is learnt can be judged; then it says what a user would like.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

import penstock
from penstock.bigmodel import MatrixFactorization

USERS, ITEMS, RANK, NOISE = 3_000, 400, 4, 0.1


def write_ratings(path: Path, count: int) -> None:
    """Write so many ratings, some users and items being much more frequent than others."""
    chance = np.random.default_rng(0)
    users, items = (chance.standard_normal((n, RANK)) for n in (USERS, ITEMS))
    who = (USERS * chance.random(count) ** 1.5).astype(int)
    what = (ITEMS * chance.random(count) ** 1.5).astype(int)
    stars = 3 + 0.5 * np.einsum("ij,ij->i", users[who], items[what]) + NOISE * chance.standard_normal(count)
    rated = {"user": [f"user {n}" for n in who], "item": what, "stars": stars.astype(np.float32)}
    parquet.write_table(pa.table(rated), path, row_group_size=10_000)


def main() -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ratings, place = Path(folder, "ratings.parquet"), Path(folder, "mf.model")
        write_ratings(ratings, 200_000)
        model = MatrixFactorization(
            model_dir=place, rank=16, memory="25%", epochs=15, learning_rate=0.05, validation=0.05
        ).fit(ratings, rating="stars")
        for row in model.history_[::7]:
            print(
                f"epoch {row['epoch']:2}: progressive error {row['progressive_rmse']:.3f}, on held-out rows {row['held_out_rmse']:.3f}"
            )
        print(f"(the noise is {NOISE}; mean rating {model.mean_:.2f})")

        model = penstock.load(place)
        expected = model.predict((["user 7"] * ITEMS, np.arange(ITEMS)))
        best = np.argsort(-expected)[:3]
        print("user 7 would like the items", ", ".join(f"{n} ({expected[n]:.1f})" for n in best))
        factors, biases = model.factors(items=best)
        print(f"their factors: {factors.shape}, their biases: {np.round(biases, 2)}")


if __name__ == "__main__":
    main()
