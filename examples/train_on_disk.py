"""A model larger than the memory it is given: explained, trained, killed, resumed, and asked.

The rows have features with 64-bit numbers; a few are in most rows, most are in one row only. The training is ended by
SIGKILL after its first checkpoint, resumed, and compared with one that had no break.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

import penstock

FAR = 499_979  # features are multiples of it: a dimension of 10^12


def write_rows(path: Path, count: int, *, seed: int) -> None:
    """Write so many sparse rows; the frequent features decide whether one was clicked."""
    chance = np.random.default_rng(seed)
    rank = (2_000_000 ** chance.random((count, 20))).astype(np.uint64)  # 1 is the most frequent
    clicked = np.where(rank < 300, rank.astype(int) % 3 - 1, 0).sum(axis=1) > 0
    rows = {"indices": list(rank * FAR), "values": list(np.ones(rank.shape, np.float32)), "clicked": clicked}
    parquet.write_table(pa.table(rows), path, row_group_size=1_000)


def main() -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data, test, broken, whole = (
            Path(folder, name) for name in ("clicks.parquet", "test.parquet", "broken", "whole")
        )
        write_rows(data, 8_000, seed=1)
        write_rows(test, 2_000, seed=2)
        program = [sys.executable, "-m", "penstock.cli"]
        options = ["--label", "clicked", "--memory", "1MB", "--model-memory", "200kB", "--model-dir"]

        told = subprocess.run(
            [*program, "explain", data, *options, whole], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        print(told)

        command = [*program, "train", data, "--epochs", "4", "--learning-rate", "0.05", "--json", *options]
        with subprocess.Popen([*command, broken], stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not (broken / "state.penstock").exists():
                time.sleep(0.005)
            process.kill()
        stopped = penstock.load(broken)
        print(f"killed; the last checkpoint has {len(stopped.history_)} of 4 epochs, and answers:")
        print(f"  test accuracy {stopped.score(test, y='clicked'):.3f}")
        stopped.close()

        subprocess.run([*command, broken, "--resume"], stdout=subprocess.DEVNULL, check=True)
        subprocess.run([*command, whole], stdout=subprocess.DEVNULL, check=True)
        resumed, straight = (penstock.load(each, memory="1MB") for each in (broken, whole))
        some = np.arange(100_000, dtype=np.uint64) * FAR
        weights = resumed.weights(some)
        assert np.array_equal(weights, straight.weights(some))
        print(f"after {len(resumed.history_)} epochs the weights are the same; of the first {len(some):,} features")
        print(f"  {np.count_nonzero(weights):,} have one, test accuracy {resumed.score(test, y='clicked'):.3f}")
        resumed.close()
        straight.close()


if __name__ == "__main__":
    main()
