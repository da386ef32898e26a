"""An order of your own: blocks as CorgiPile shuffles them, but backwards in every second epoch.

What two epochs in opposite directions do wrong partly cancels, as has been shown for SGD over shuffled blocks (arXiv 2604.00260). An
order is a pure plan: it sees the sizes of blocks and reads nothing. `tests/docs/test_own_order.py` holds this one to the
conformance suite that all orders pass.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import LogisticRegression, seeds
from penstock.shuffle import ORDERS, Mixer, OrderFacts, Shape, Window
from penstock.shuffle.deal import equal_groups


class BackAndForth:
    """Blocks in a random order, backwards in odd epochs, and the rows of as many as may be held mixed."""

    name = "back-and-forth"
    facts = OrderFacts("blocks and rows mixed, back and forth", by_block=True, places_rows=True)

    def windows(self, shape: Shape, epoch: int) -> Iterator[Window]:
        """Plan one epoch."""
        blocks = seeds.generator(shape.seed, self.name, epoch // 2).permutation(len(shape.block_rows))
        mine = (blocks[::-1] if epoch % 2 else blocks)[shape.rank :: shape.world]
        for index, held in enumerate(equal_groups(mine, shape.block_rows, shape.held_rows)):
            key = seeds.key(shape.seed, self.name, epoch, index, shape.rank)
            yield Window(index, np.sort(held), int(shape.block_rows[held].sum()), key)

    def mixer(self, shape: Shape, epoch: int, carried: int = 0) -> Mixer | None:
        """Return None: windows are independent of each other."""
        return None


ORDERS["back-and-forth"] = BackAndForth()


def write_rows(path: Path, count: int, *, seed: int) -> None:
    """Write a table sorted by its label."""
    chance = np.random.default_rng(seed)
    x = chance.standard_normal((count, 3))
    bought = (x.sum(1) + chance.standard_normal(count) > 0).astype(np.int8)
    order = np.argsort(bought, kind="stable")
    table = pa.table({**{f"x{j}": x[order, j] for j in range(3)}, "bought": bought[order]})
    pq.write_table(table, path, row_group_size=100)


def main() -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder, "train.parquet"), Path(folder, "test.parquet")
        write_rows(train, 20_000, seed=1)
        write_rows(test, 2_000, seed=2)
        model = LogisticRegression(solver="sgd", shuffle="back-and-forth", memory="200kB", epochs=4)
        model.fit(train, y="bought", test=test)
        print(f"back-and-forth: test accuracy {model.history_[-1]['test_accuracy']:.3f}")


if __name__ == "__main__":
    main()
