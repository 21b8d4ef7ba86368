"""The end of a process that has a store open, and of the last object that uses one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.embedded.opened import close_all
from quiver_actors.errors import AlreadyRunning
from tests.unit.embedded.batches import PATIENCE_SECONDS, numbered, until

BUNDLES, ACKNOWLEDGED = 8, 5


def _exit() -> None:
    """End as the interpreter does, for the store."""
    close_all()
    os._exit(0)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()


def acknowledge_and_end(path: Path, end: Callable[[], None]) -> None:
    store = quiver_actors.open(path)
    store.push_many(map(numbered, range(BUNDLES)))
    subscription = store.subscribe("s", start="earliest")
    for _ in range(ACKNOWLEDGED):
        delivery = subscription.get(timeout=PATIENCE_SECONDS)
        assert delivery is not None
        delivery.ack()
    end()


@pytest.mark.parametrize("end", [_exit, _terminate])
def test_acknowledgements_that_waited_to_be_sent_count_after_the_end_of_the_process(
    tmp_path: Path, end: Callable[[], None]
) -> None:
    """Regression: the store was closed before they were sent, or the process ended before the store had made them durable."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE_SECONDS))
        try:
            acknowledge_and_end(tmp_path / "data", end)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == (0 if end is _exit else -signal.SIGTERM)
    with quiver_actors.open(tmp_path / "data") as store, store.subscribe("s") as subscription:
        assert subscription.pending_count() == BUNDLES - ACKNOWLEDGED


def test_a_subscription_keeps_the_store_open_that_made_it(tmp_path: Path) -> None:
    """Regression: the store closed itself as its own object was gone, and the subscription waited for ever."""
    path = tmp_path / "data"
    with quiver_actors.open(path) as store:
        store.push(numbered(0))
    subscription = quiver_actors.open(path).subscribe("s", start="earliest")
    delivery = subscription.get(timeout=PATIENCE_SECONDS)
    assert delivery is not None
    del subscription, delivery

    def is_closed() -> bool:
        try:
            quiver_actors.open(path).close()
        except AlreadyRunning:
            return False
        return True

    until(is_closed, "the store to close itself")
