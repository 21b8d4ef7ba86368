"""A worker that starts on a full disk waits for space; it does not die again and again until it is abandoned."""

from __future__ import annotations

import errno

import pytest

from quiver_actors.base.units import MIB
from quiver_actors.errors import DiskError
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.room import open_when_there_is_room
from quiver_actors.store.engine import Engine
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import ManualClock, topic_settings


def test_an_engine_is_opened_when_somebody_makes_room() -> None:
    disk, journal, beats, rests = SimDisk(capacity_bytes=0), Journal(0), [], []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            disk.capacity_bytes = 64 * MIB

    engine = open_when_there_is_room(
        lambda: Engine.open(disk, "default/core_0", topic_settings(), 0, ManualClock()),
        journal,
        lambda: beats.append(len(rests)),
        rest,
    )
    assert len(rests) == 3
    assert beats == [0, 1, 2]
    assert journal.error_count == 1
    assert "space" in journal.last_error
    engine.close()


def test_another_error_is_not_waited_out() -> None:
    disk = FaultyDisk(SimDisk())
    disk.fail("create", 1, errno.EIO)
    with pytest.raises(DiskError, match="Input/output error"):
        open_when_there_is_room(
            lambda: Engine.open(disk, "default/core_0", topic_settings(), 0, ManualClock()),
            Journal(0),
            lambda: None,
            lambda seconds: pytest.fail("it waits"),
        )
