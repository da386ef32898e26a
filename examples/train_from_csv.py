"""From a CSV file sorted by label to a saved model: explain, convert, train, predict.

The rows are sorted as an export often leaves them; watch what that does to training in stored order.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np

import penstock
from penstock import LogisticRegression

NAMES = ["age", "visits", "price", "hour"]


def write_rows(path: Path, count: int, *, seed: int) -> None:
    """Write so many rows: first all that were not bought, then all that were."""
    chance = np.random.default_rng(seed)
    x = chance.standard_normal((count, len(NAMES)))
    bought = x @ [1.0, -0.5, 0.8, 0.0] + 0.3 * chance.standard_normal(count) > 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*NAMES, "bought"])
        for row in np.argsort(bought, kind="stable"):
            writer.writerow([*(f"{value:.5g}" for value in x[row]), "yes" if bought[row] else "no"])


def main() -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        orders, test = Path(folder, "orders.csv"), Path(folder, "test.csv")
        write_rows(orders, 30_000, seed=1)
        write_rows(test, 5_000, seed=2)

        found = penstock.explain(orders, label="bought", measure=False)
        assert found.clustering is not None
        print(f"{found.shape.rows:,} rows in {found.shape.blocks} blocks: {found.clustering.meaning}")

        # The label is text; its classes are kept in the model.
        packed = penstock.convert(orders, Path(folder, "orders.arrow"), label="bought")
        print(f"converted to {packed.blocks} blocks in {packed.seconds:.1f} s")

        for shuffle in ("none", "corgipile"):
            model = LogisticRegression(shuffle=shuffle, memory="1MB", epochs=5).fit(packed.path, test=test)
            last = model.history_[-1]
            print(f"{shuffle:10} progressive {last['progressive_accuracy']:.3f}, test {last['test_accuracy']:.3f}")

        model.save(Path(folder, "orders.penstock"))
        model = penstock.load(Path(folder, "orders.penstock"))
        rows = model.predict(test, out=Path(folder, "predictions.parquet"), keep=["age"])
        print(f"{rows:,} predictions; accuracy {model.score(test, y='bought'):.3f}")


if __name__ == "__main__":
    main()
