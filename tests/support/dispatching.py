"""A scheduler of pytest-xdist: the tests of a file run in one process, one file after the other.

The files of `ONE_SESSION` count as one: each process that runs one of them starts a node and a JVM for all of its tests.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

ONE_SESSION = frozenset(
    f"tests/integration/test_spark_{name}.py"
    for name in ("agreement", "archive", "commit", "connection", "drain", "live", "protocols", "source", "stream")
)


class FilesTogether(LoadFileScheduling):
    """Scheduler that keeps the tests of a file in one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "one Spark session" if file in ONE_SESSION else file
