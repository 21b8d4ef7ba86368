"""A store in a process that has hardly any descriptor left: whatever cannot be opened is an error of ours, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import quiver_actors
from quiver_actors.errors import QuiverError
from tests.unit.embedded.batches import numbered, stored

FREE = (1, 3, 4, 8)
"""Numbers of free descriptors with which a store cannot be opened, each at another call."""


@contextlib.contextmanager
def only(free: int) -> Iterator[None]:
    """Leave the process so many descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], highest + 64), limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


def test_a_store_that_cannot_be_opened_says_so_and_leaves_the_directory_free(tmp_path: Path) -> None:
    """Regression: some of the calls that failed raised a bare OSError, which no caller expects."""
    with quiver_actors.open(tmp_path / "data") as store:
        store.push(numbered(0))
    refused: list[str] = []
    for free in FREE:
        with only(free):
            try:
                quiver_actors.open(tmp_path / "data").close()
            except QuiverError as error:
                refused.append(str(error))
        with quiver_actors.open(tmp_path / "data") as store:
            assert stored(store) == [0]
    assert len(refused) >= 3
    assert all("Too many open files" in why for why in refused), refused
