"""The pipeline that is used instead: DuckDB or Polars writes encoded rows, SGDClassifier learns from them by chunks.

Missing numbers are the mean, beside a column that tells of them, and all are scaled; categories, words, month, day of the week
and hour are hashed to 2^20 features; missing text is a value. One query finds means and spreads, a second writes the encoded rows,
which each pass of ``partial_fit`` reads again: nothing is encoded twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from benchmarks.raw_to_model_data import CHUNK, LABEL, LEVELS, NUMBERS, TEXT, TIME

FEATURES = 1 << 20
CODES = "codes"
DATE_PARTS = {"month": "month", "day_of_week": "dayofweek", "hour": "hour"}

SETTINGS: dict[str, Any] = {"alpha": 1e-6, "learning_rate": "constant", "eta0": 0.02, "average": True}
"""Of eight settings of SGDClassifier, its defaults among them, the one with the least loss on other held-out rows."""


def with_duckdb(paths: dict[str, str], encoded: dict[str, str]) -> None:
    """Encode all files with what is found in the training rows."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET preserve_insertion_order = false")  # rows come in no order, and memory is spared
        days = {name: name for name in NUMBERS} | {TIME: f"(epoch({TIME}) / 86400)"}
        moments = ", ".join(f"avg({number}), stddev_pop({number})" for number in days.values())
        found = connection.execute(f"SELECT {moments} FROM read_parquet('{paths['train']}')").fetchone()
        assert found is not None
        columns = []
        for at, (name, number) in enumerate(days.items()):
            mean, spread = found[2 * at], found[2 * at + 1]
            columns.append(f"((coalesce({number}, {mean}) - {mean}) / {spread})::FLOAT AS {name}")
            columns.append(f"({number} IS NULL)::INT::FLOAT AS {name}_missing")
        codes = [f"hash('{name}', coalesce({name}, 'missing')) % {FEATURES}" for name in LEVELS]
        codes += [f"hash('{name}', coalesce({part}({TIME}), -1)) % {FEATURES}" for name, part in DATE_PARTS.items()]
        words = f"list_transform(string_split(coalesce({TEXT}, 'missing'), ' '), lambda w: hash(w) % {FEATURES})"
        columns.append(f"list_concat([{', '.join(codes)}], {words})::INT[] AS {CODES}")
        for name, path in paths.items():
            connection.execute(
                f"COPY (SELECT {', '.join(columns)}, {LABEL} FROM read_parquet('{path}'))"
                f" TO '{encoded[name]}' (FORMAT parquet, ROW_GROUP_SIZE {CHUNK})"
            )


def with_polars(paths: dict[str, str], encoded: dict[str, str]) -> None:
    """Do the same in Polars' streaming engine."""
    import polars as pl

    numbers = {name: pl.col(name) for name in NUMBERS}
    numbers[TIME] = pl.col(TIME).dt.epoch("s") / 86_400
    wanted = [e.mean().alias(f"{n} mean") for n, e in numbers.items()]
    wanted += [e.std(ddof=0).alias(f"{n} spread") for n, e in numbers.items()]
    found = pl.scan_parquet(paths["train"]).select(wanted).collect(engine="streaming").row(0, named=True)

    def code(value: Any, seed: int) -> Any:
        return (value.hash(seed) % FEATURES).cast(pl.Int32)

    columns = []
    for name, number in numbers.items():
        mean, spread = found[f"{name} mean"], found[f"{name} spread"]
        columns.append(((number.fill_null(mean) - mean) / spread).cast(pl.Float32).alias(name))
        columns.append(number.is_null().cast(pl.Float32).alias(f"{name}_missing"))
    parts = [pl.col(TIME).dt.month(), pl.col(TIME).dt.weekday(), pl.col(TIME).dt.hour()]
    values = [pl.col(name).fill_null("missing") for name in LEVELS] + [part.fill_null(-1) for part in parts]
    codes = [code(value, seed) for seed, value in enumerate(values)]
    words = pl.col(TEXT).fill_null("missing").str.split(" ").list.eval(code(pl.element(), 0))
    columns.append(pl.concat_list([*codes, words]).alias(CODES))
    for name, path in paths.items():
        frame = pl.scan_parquet(path).select([*columns, LABEL])
        frame.sink_parquet(encoded[name], row_group_size=CHUNK)


ENCODERS = {"DuckDB": with_duckdb, "Polars": with_polars}


def encode(tool: str, train: str, test: str, folder: str) -> dict[str, str]:
    """Encode training and held-out rows with a tool; return the files."""
    encoded = {name: str(Path(folder) / f"{tool}-{name}.parquet") for name in ("train", "test")}
    ENCODERS[tool]({"train": train, "test": test}, encoded)
    return encoded


def chunks(path: str) -> Iterator[tuple[sp.csr_matrix, np.ndarray]]:
    """Read encoded rows by chunks, as sparse rows and labels."""
    file = pq.ParquetFile(path)
    for batch in file.iter_batches(CHUNK):
        yield as_matrix(pa.Table.from_batches([batch]))


def as_matrix(data: pa.Table) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return encoded rows as scikit-learn takes them: numbers first, then codes."""
    lists = data[CODES].combine_chunks()
    starts = lists.offsets.to_numpy()
    indices = lists.values.to_numpy()[starts[0] : starts[-1]]
    ones = np.ones(len(indices), np.float32)
    coded = sp.csr_matrix((ones, indices, starts - starts[0]), (len(data), FEATURES))
    names = [name for name in data.column_names if name not in (CODES, LABEL)]
    numbers = np.column_stack([data[name].to_numpy() for name in names])
    return sp.hstack([sp.csr_matrix(numbers), coded], format="csr"), data[LABEL].to_numpy()


def learn(train: str, test: str, passes: int, target: float) -> dict[str, Any]:
    """Learn by chunks until the held-out log loss is no more than ``target``, at most ``passes`` times over all rows.

    What measuring the loss takes is returned as ``measuring`` seconds.
    """
    from sklearn.linear_model import SGDClassifier
    from sklearn.metrics import log_loss

    model = SGDClassifier(loss="log_loss", random_state=0, **SETTINGS)
    losses: list[float] = []
    measuring = 0.0
    while len(losses) < passes and (not losses or losses[-1] > target):
        for x, y in chunks(train):
            model.partial_fit(x, y, classes=[0, 1])
        began = time.perf_counter()
        scored = [(y, model.predict_proba(x)) for x, y in chunks(test)]
        y, probability = (np.concatenate(part) for part in zip(*scored, strict=True))
        losses.append(float(log_loss(y, probability)))
        measuring += time.perf_counter() - began
    return {"losses": losses, "measuring": measuring}
