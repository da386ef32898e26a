"""A training that is killed and resumed ends at the same weights as one that was not.

The command runs in a process of its own, is ended by SIGKILL after its first checkpoint, and is run again with
``--resume``. Then it is run once without a break, and the two models are compared.
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


def write_rows(path: Path, count: int) -> None:
    """Write a Parquet file of five features and a label."""
    chance = np.random.default_rng(0)
    x = chance.standard_normal((count, 5)).astype(np.float32)
    columns = {f"x{j}": np.ascontiguousarray(x[:, j]) for j in range(5)}
    parquet.write_table(pa.table({**columns, "label": x.sum(axis=1) > 0}), path, row_group_size=5_000)


def main() -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data, broken, whole = (Path(folder, name) for name in ("rows.parquet", "broken.penstock", "whole.penstock"))
        write_rows(data, 100_000)
        command = [sys.executable, "-m", "penstock.cli", "train", str(data), "--label", "label", "--memory", "2MB"]
        command += ["--epochs", "8", "--json", "--out"]

        with subprocess.Popen([*command, broken], stdout=subprocess.DEVNULL) as process:
            checkpoint = Path(f"{broken}.checkpoint")
            while process.poll() is None and not checkpoint.exists():
                time.sleep(0.005)
            process.kill()
        print(f"killed; is there a model? {broken.exists()}; a checkpoint? {checkpoint.exists()}")

        subprocess.run([*command, broken, "--resume"], stdout=subprocess.DEVNULL, check=True)
        subprocess.run([*command, whole], stdout=subprocess.DEVNULL, check=True)
        resumed, straight = penstock.load(broken), penstock.load(whole)
        assert np.array_equal(resumed.coef_, straight.coef_)
        assert np.array_equal(resumed.intercept_, straight.intercept_)
        print(f"after {len(resumed.history_)} epochs the weights are the same: {np.round(resumed.coef_[0], 2)}")


if __name__ == "__main__":
    main()
