"""One cluster of two hosts for all of these tests: about 20 seconds to start and 3 GB of memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiver_actors.spark.testing import StandaloneCluster

TOPICS = (
    *("plain", "remote", "local", "executor", "python", "quiver", "speculation", "stream", "copied"),
    *("rounds", "many", "many_copied", "archives", "moved"),
)
CONFIG = "[segment]\nmax_open_duration = '1h'\ntarget_size = '256KiB'\n" + "".join(f"[topics.{t}]\n" for t in TOPICS)


@pytest.fixture(scope="session")
def cluster() -> Iterator[StandaloneCluster]:
    with StandaloneCluster(2, config=CONFIG) as cluster:
        yield cluster
