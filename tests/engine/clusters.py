"""A real Ray of two nodes on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A head and a node with one CPU each."""
    from ray.cluster_utils import Cluster

    os.environ.update(ENVIRONMENT)
    folder = tempfile.mkdtemp(prefix="prb-test-", dir="/tmp")  # sockets need short names
    (Path(tempfile.gettempdir()) / "ray").mkdir(exist_ok=True)  # Ray leaves the address of the cluster there
    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "temp_dir": folder})
    try:
        made.add_node(**node)
        yield made
    finally:
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
