"""What follows in a range is fetched while a program reads, within limits, and its failures are told where it is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.archive.reading.archive import Archive
from quiver_actors.client import read_ahead
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.errors import ChecksumMismatch
from quiver_actors.store.objects.directory_store import DirectoryStore
from tests.integration.capped_node import wait_until
from tests.support.archived import ArchiveWriter, sealed_segments

SEGMENTS, BUNDLES = 12, 3


class Opened:
    """An archive of small segments, and which of them were asked for."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        batches = [
            [pa.record_batch({"id": [seq * BUNDLES + index]}) for index in range(BUNDLES)] for seq in range(SEGMENTS)
        ]
        self.contents = sealed_segments(directory / "store", batches)
        self.writer = ArchiveWriter(f"file://{directory}/archive")
        self.writer.archive(dict(enumerate(self.contents)))
        self.asked: set[int] = set()
        self._lock = threading.Lock()
        plain = DirectoryStore.read

        def noted(store: DirectoryStore, key: str, start: int, end: int) -> Iterator[bytes | memoryview]:
            with self._lock:
                self.asked.add(int(key.rpartition("/")[2].partition(".")[0]))
            return plain(store, key, start, end)

        monkeypatch.setattr(DirectoryStore, "read", noted)
        self.archive: Archive = quiver_actors.open_archive(f"file://{directory}/archive")


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    found = Opened(tmp_path, monkeypatch)
    with found.archive:
        yield found


def number_in(bundle: StoredBundle) -> int:
    return int(bundle.batch.column(0)[0].as_py())


def wait_for(opened: Opened, expected: Callable[[], set[int]]) -> None:
    wait_until(lambda: opened.asked >= expected(), "what follows to be fetched")


def test_who_reads_one_bundle_fetches_one_segment(opened: Opened) -> None:
    bundles = opened.archive.read("default", 0)
    assert number_in(next(bundles)) == 0
    opened.archive.close()  # waits for what would be under way
    assert opened.asked == {0}


def test_what_follows_is_fetched_within_the_limit_while_a_program_reads(opened: Opened) -> None:
    bundles = opened.archive.read("default", 0)
    assert [number_in(next(bundles)) for _ in range(2)] == [0, 1]
    wait_for(opened, lambda: {0, 1})
    for number, bundle in enumerate(bundles, 2):
        assert number_in(bundle) == number
        assert max(opened.asked) <= number // BUNDLES + read_ahead.AHEAD_SEGMENTS
    assert opened.asked == set(range(SEGMENTS))


def test_over_a_slow_line_one_segment_is_fetched_ahead_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches, may_end = read_ahead.BackgroundFetches(), threading.Event()
    monkeypatch.setattr(read_ahead, "QUICK_SECONDS", float("inf"))
    assert fetches.begin(may_end.wait)
    assert not fetches.begin(may_end.wait), "nobody knows yet that the line is quick"
    may_end.set()
    wait_until(lambda: fetches.begin(lambda: None), "the first one to end")
    may_end.clear()
    wait_until(lambda: fetches.begin(may_end.wait), "the second one to end")
    assert fetches.begin(may_end.wait), "two at a time after a quick one"
    monkeypatch.setattr(read_ahead, "QUICK_SECONDS", 0.0)
    may_end.set()
    fetches.join()
    may_end.clear()
    assert fetches.begin(may_end.wait)
    assert not fetches.begin(may_end.wait)
    may_end.set()
    fetches.close()


def test_large_segments_are_fetched_ahead_within_a_limit_of_bytes(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", 1)
    bundles = opened.archive.read("default", 0)
    assert [number_in(next(bundles)) for _ in range(2)] == [0, 1]
    wait_for(opened, lambda: {0, 1})
    opened.archive.close()
    assert opened.asked == {0, 1}


def test_damage_is_told_by_the_bundle_that_is_damaged(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "archive" / opened.writer.key(2)
    path.write_bytes(bytes(path.stat().st_size))
    found, damaged = [], 0
    for bundle in opened.archive.read("default", 0):
        try:
            found.append(number_in(bundle))
        except ChecksumMismatch:
            damaged += 1
    assert damaged == BUNDLES
    assert found == [number for number in range(SEGMENTS * BUNDLES) if number // BUNDLES != 2]


def test_nothing_is_begun_behind_the_close_and_what_is_under_way_ends_before() -> None:
    fetches = read_ahead.BackgroundFetches()
    may_end, ended, late = threading.Event(), threading.Event(), threading.Event()

    def fetch() -> None:
        may_end.wait(30)
        ended.set()

    fetches.begin(fetch)
    closer = threading.Thread(target=fetches.close)
    closer.start()
    may_end.set()
    closer.join(30)
    assert ended.is_set()
    fetches.begin(late.set)
    fetches.close()
    assert not late.is_set()
