"""A worker that starts on a full disk waits for room instead of dying of it until it is given up."""

from __future__ import annotations

import errno

import pytest

from quiver_actors.disk.faulty import FaultyDisk
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.engine import Engine
from quiver_actors.errors import DiskError
from quiver_actors.units import MIB
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.room import open_when_there_is_room
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
