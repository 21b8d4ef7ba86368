from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from quiver_actors.store.disk.posix import PosixDisk


def test_a_look_at_the_lock_keeps_no_engine_from_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks whether it is free holds the lock for a moment, shared: one refusal proves no holder."""
    real = fcntl.flock
    refused: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if len(refused) < 2:
            refused.append(operation)
            raise BlockingIOError
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    disk = PosixDisk(str(tmp_path))
    lock = disk.lock("quiver.lock")
    assert lock is not None
    assert disk.lock("quiver.lock") is None
    lock.release()
    disk.close()
