"""A segment file in memory: sealed ones have the size that was announced, logs what their seal leaves of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quiver_actors.errors import DiskError, Truncated
from quiver_actors.store.segment import mapping
from quiver_actors.store.segment.mapping import SegmentMapping


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    return os.open(path, os.O_RDONLY)


def test_a_sealed_file_that_is_shorter_than_announced_is_refused(descriptor: int) -> None:
    with pytest.raises(Truncated, match="segment 7 has 100 bytes: 101 were announced"):
        SegmentMapping(descriptor, 101, 7)
    os.close(descriptor)


@pytest.mark.parametrize(("is_log", "size_bytes"), [(False, 0), (True, 0), (True, 100)])
def test_an_empty_file_is_damaged(descriptor: int, is_log: bool, size_bytes: int, tmp_path: Path) -> None:
    os.truncate(tmp_path / "file", 0)
    with pytest.raises(Truncated, match="segment 7 is empty"):
        SegmentMapping(descriptor, size_bytes, 7, is_log=is_log)
    os.close(descriptor)


@pytest.mark.parametrize("is_log", [False, True])
def test_a_file_that_cannot_be_mapped_is_named(is_log: bool) -> None:
    with pytest.raises(DiskError, match="segment 7") as caught:
        SegmentMapping(-1, 100, 7, is_log=is_log)
    assert caught.value.errno == errno.EBADF


def test_a_log_that_was_sealed_since_is_mapped_as_far_as_it_goes(descriptor: int) -> None:
    found = SegmentMapping(descriptor, 1 << 20, 7, is_log=True)
    os.close(descriptor)
    assert bytes(found.memory) == bytes(range(100))


def test_a_log_may_be_sealed_while_it_is_mapped(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: between the look at its size and the mapping the seal cut off what had been reserved."""
    sizes = iter([1 << 20, 100])

    class Shrinking:
        @staticmethod
        def fstat(_: int) -> object:
            return type("Stat", (), {"st_size": next(sizes)})

    monkeypatch.setattr(mapping, "os", Shrinking)
    found = SegmentMapping(descriptor, 1 << 20, 7, is_log=True)
    os.close(descriptor)
    assert found.memory.nbytes == 100
