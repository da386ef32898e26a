"""Lost connections: the server ends the sessions of a training at a random moment."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from benchmarks.faults.doors import PENSTOCK
from benchmarks.faults.outcome import Outcome

DOOR = "PostgreSQL"
_TABLE = """
    CREATE TABLE clicks AS
    SELECT array_agg((random() + (n % 2)) :: real) AS features, (n % 2) AS label
    FROM generate_series(1, 20000) AS n, generate_series(1, 8) AS i GROUP BY n ORDER BY label
"""
_TRAIN = "SELECT features, label FROM clicks TRAIN BY logistic AS m WITH (epochs = 20, buffer_size = 10%, cache = off)"
_OTHERS = "SELECT pid FROM pg_stat_activity WHERE datname = 'postgres' AND pid <> pg_backend_pid()"


def lost_connections(*, faults: int, seed: int) -> list[Outcome]:
    """End one session of a training, or all of them; the model has to be that of an undisturbed training."""
    with _server() as server:
        server.run("SELECT setseed(0.5)")
        server.run(_TABLE)
        began = time.monotonic()
        with _train(server) as process:
            _, stderr = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the training fails without a fault: {stderr}")
        seconds, truth = time.monotonic() - began, _weights(server)
        outcomes = []
        for number in range(faults):
            chance = np.random.default_rng([seed, number])
            server.run("DELETE FROM penstock.models")
            with _train(server) as process:
                time.sleep(seconds * chance.uniform(0.2, 1.0))
                pids = [pid for (pid,) in server.run(_OTHERS)]
                for pid in chance.permutation(pids)[: 1 if number % 2 else len(pids)]:
                    server.run(f"SELECT pg_terminate_backend({pid})")
                _, stderr = process.communicate()
            outcomes.append(_judge(process.returncode, stderr, _weights(server), truth))
        return outcomes


@contextmanager
def _server() -> Iterator[Any]:
    from tests.servers import Server

    with closing(Server()) as server:
        yield server


def _train(server: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PENSTOCK, "sql", "--db", server.address(), _TRAIN],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _weights(server: Any) -> list[Any]:
    return [list(row) for row in server.run("SELECT coef, intercept FROM penstock.models WHERE name = 'm'")]


def _judge(status: int, stderr: str, weights: list[Any], truth: list[Any]) -> Outcome:
    if status:
        crashed = status < 0 or "Traceback" in stderr
        half = "a model was saved" if weights else ""
        return Outcome(
            DOOR, "lost connection", "crashed" if crashed else "silent" if half else "refused", stderr[-300:]
        )
    return Outcome(DOOR, "lost connection", "correct" if weights == truth else "silent", stderr[-300:])
