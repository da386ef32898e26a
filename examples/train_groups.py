"""A model for every country and device, each with a search of its own: killed, resumed, shown, and compared.

On each device something else makes people click, so one model for all cannot do well. One group has a single class, and is
marked. The training is ended by SIGKILL once some groups are done, and resumed.
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
from penstock.groups import GroupModels


def write_visits(path: Path, count: int, *, seed: int) -> None:
    """Write so many visits, in no order of their groups."""
    chance = np.random.default_rng(seed)
    country = chance.choice(["FR", "DE", "IT", "NO"], count, p=[0.6, 0.25, 0.1, 0.05])
    device = chance.choice(["ios", "android", "web"], count)
    x = chance.normal(size=(count, 8)).astype(np.float32)
    score = x[:, 0] * np.where(device == "ios", 2, -1) + x[:, 1] + 0.5 * chance.normal(size=count)
    clicked = (score > 0) | ((country == "NO") & (device == "web"))
    rows = {f"x{n}": x[:, n] for n in range(8)}
    parquet.write_table(pa.table({"country": country, "device": device, **rows, "clicked": clicked}), path)


def main() -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data, test, models, answers = (
            Path(folder, name) for name in ("visits.parquet", "test.parquet", "models", "answers.parquet")
        )
        write_visits(data, 60_000, seed=1)
        write_visits(test, 10_000, seed=2)
        Path(folder, "grid.toml").write_text("[grid]\nl2 = [1, 0.1, 0.01, 0.001]\nlearning_rate = [1, 0.5]\n")
        program = [sys.executable, "-m", "penstock.cli", "groups"]
        train = [*program, "train", data, "--by", "country,device", "--label", "clicked", "--out", models]
        train += ["--grid", Path(folder, "grid.toml"), "--rows", Path(folder, "rows")]

        with subprocess.Popen(train, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not (models / "index.json").exists():
                time.sleep(0.005)
            process.kill()
        subprocess.run([*train, "--resume"], stdout=subprocess.DEVNULL, check=True)
        result = GroupModels.open(models)
        told = result.summary()
        why = result.failed["reason"][0].as_py()
        print(f"{told['groups']} groups, {told['groups_without_model']} without a model: {why}")
        print(f"after the kill and --resume, accuracy on held-out rows: {told['held_out_accuracy']:.3f}")
        subprocess.run([*program, "show", models, "--lines", "3"], check=True)

        subprocess.run([*program, "predict", models, test, "--out", answers, "--keep", "clicked"], check=True)
        table = parquet.read_table(answers).drop_null()
        each = np.mean(table["prediction"].to_numpy() == table["clicked"].to_numpy())
        single = penstock.LogisticRegression(epochs=5)
        single.fit(data, y="clicked", hash=["country:2^4", "device:2^4"])
        print(f"one model for all: {single.score(test, y='clicked'):.3f}, a model for each: {each:.3f}")
        print(f"  (the latter of the {len(table):,} of 10,000 rows whose group has a model)")


if __name__ == "__main__":
    main()
