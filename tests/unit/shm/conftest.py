"""Fixtures of the shared-memory tests: nothing named is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiver_actors.shm.names import new_name, unlink_name
from tests.unit.shm.children import Gate


@pytest.fixture
def name() -> Iterator[str]:
    """A fresh name of shared memory, unlinked at the end whatever the test did."""
    fresh = new_name()
    yield fresh
    unlink_name(fresh)


@pytest.fixture
def gates() -> Iterator[tuple[Gate, Gate]]:
    """Two gates, for instance "ready" and "go on"."""
    pair = (Gate(), Gate())
    yield pair
    for gate in pair:
        gate.close()
