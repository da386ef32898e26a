"""A Ray cluster of several nodes on this machine, for tests."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.testing.executors import await_that

STORE = 80 << 20
"""Bytes of each node's object store; /dev/shm may be small."""

_QUICK = {
    # A node that is gone is found out after about four seconds rather than fifteen; we find it out before that in any case.
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 4,
    # Our actors have variables of their own, and cannot use processes that were started before they were asked for.
    "prestart_worker_first_driver": False,
}


@contextmanager
def ray_cluster(*cpus: int) -> Iterator[Any]:
    """Start a node for each number of pretended cores, and connect to the first one, as a user's program does."""
    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="rays-", dir="/tmp")  # Ray's sockets are in it, and their names may not be long
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        os.mkdir(os.path.join(folder, "ray"))
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": cpus[0],
                "object_store_memory": STORE,
                "include_dashboard": False,
                "_system_config": _QUICK,
            },
        )
        try:
            for each in cpus[1:]:
                cluster.add_node(num_cpus=each, object_store_memory=STORE)
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            await_that(lambda: shutil.rmtree(folder, ignore_errors=True) or not os.path.exists(folder), "logs are left")
