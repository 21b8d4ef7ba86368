"""The coordinator's hands on a real counters page and real directories; its children exist in name only."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from pathlib import Path

import pytest

from quiver_actors.shm.counters import CountersPage, RegionWriter, RowWriter
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor.decide import Child, Supervision
from quiver_actors.supervisor.figures import (
    NO_LIMIT,
    QUOTA_ROW,
    STORAGE_ROW,
    EvictionClass,
    QuotaFigure,
    StorageFigure,
    region_of,
)
from quiver_actors.supervisor.measure import measure, measuring
from quiver_actors.supervisor.spec import ChildSpec, Patience
from quiver_actors.supervisor.state import ChildState
from quiver_actors.supervisor.storage import Coordination, StorageSpec

MIB = 1 << 20
Measuring = Callable[[Iterable[str], Collection[str]], Generator[None, None, int]]


class Node:
    """Two children, their rows, and a data directory."""

    def __init__(self, root: Path, page: CountersPage, cap_bytes: int, measure_with: Measuring = measuring) -> None:
        self.root, self.page, self.cap_bytes, self.measure_with = root, page, cap_bytes, measure_with
        self.has_descriptors = True
        specs = [ChildSpec(name=f"core_{n}", index=n, cpu=None, run=lambda context: 0) for n in range(2)]
        self.children: list[Child] = Supervision(specs, Patience(), 0).children
        for core in range(2):
            (root / f"core_{core}").mkdir()
        self.regions: list[RegionWriter] = [page.writer(region_of(n)) for n in range(2)]
        self.own = page.writer(0)
        self.coordination = self.coordinator()

    def coordinator(self) -> Coordination:
        spec = StorageSpec(
            root=str(self.root),
            cap_bytes=lambda: self.cap_bytes,
            directories=self.directories,
            measuring=self.measure_with,
        )
        return Coordination(spec, self.children, self.page, self.own)

    def directories(self, core: int) -> list[str]:
        """Finding them takes a descriptor."""
        if not self.has_descriptors:
            raise OSError(errno.EMFILE, "no descriptor left")
        return [str(self.root / f"core_{core}")]

    def start(self, core: int, used_bytes: int) -> RowWriter:
        """The child lives and reports."""
        self.children[core].state = ChildState.READY
        row = self.regions[core].row(STORAGE_ROW, f"core_{core}")
        row.set(StorageFigure.USED_BYTES, used_bytes)
        row.set(StorageFigure.STEP_BYTES, MIB)
        row.set(StorageFigure.BEAT_NS, time.monotonic_ns())
        row.set(StorageFigure.REPORTED, 1)
        return row

    def turn(self) -> None:
        self.coordination.wake()
        self.coordination.turn(self.children)

    def quota_bytes(self, core: int) -> int:
        return LiveRow(self.page, 0, QUOTA_ROW, f"core_{core}").load(QuotaFigure.QUOTA_BYTES)


@pytest.fixture
def page() -> Iterator[CountersPage]:
    page = CountersPage.create(new_name(), 3, 16)
    yield page
    page.unlink()
    page.close()


@pytest.fixture
def node(tmp_path: Path, page: CountersPage) -> Node:
    return Node(tmp_path, page, 64 * MIB)


def put(path: Path, size_bytes: int) -> None:
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)


def test_without_a_cap_every_child_finds_a_grant_without_end(node: Node) -> None:
    node.cap_bytes = 0
    node.coordination.follow_cap()
    node.coordination.turn(node.children)
    assert [node.quota_bytes(core) for core in range(2)] == [NO_LIMIT, NO_LIMIT]
    assert node.coordination.next_deadline_ns() is None


def test_a_child_that_has_said_nothing_counts_with_what_its_directory_holds(node: Node) -> None:
    put(node.root / "core_1" / "segment", 60 * MIB)
    node.coordination = node.coordinator()
    node.start(0, 0)
    node.turn()
    assert node.quota_bytes(0) <= 4 * MIB


def test_a_dead_child_gives_back_what_it_does_not_use_once_it_was_measured(node: Node) -> None:
    rows = [node.start(core, 0) for core in range(2)]
    for _ in range(3):
        node.turn()
        for core, row in enumerate(rows):
            row.set(StorageFigure.QUOTA_SEEN_BYTES, node.quota_bytes(core))
    before = node.quota_bytes(1)
    assert before > 8 * MIB
    put(node.root / "core_1" / "log", 2 * MIB)
    node.children[1].state = ChildState.BACKOFF
    rows[0].set(StorageFigure.WANTED_BYTES, 50 * MIB)
    rows[0].set(StorageFigure.WAITING_SINCE_NS, 1)
    for _ in range(5):
        node.turn()
    assert node.quota_bytes(0) >= 50 * MIB
    assert node.quota_bytes(0) + measure([str(node.root / "core_1")]) <= 64 * MIB


def test_what_could_not_be_measured_is_measured_again(tmp_path: Path, page: CountersPage) -> None:
    """No descriptor is left, or the disk does not answer."""
    is_failing = False

    def measuring_or_not(directories: Iterable[str], without: Collection[str]) -> Generator[None, None, int]:
        if is_failing:
            raise OSError(errno.EMFILE, "no descriptor left")
        return (yield from measuring(directories, without))

    node = Node(tmp_path, page, 64 * MIB, measuring_or_not)
    node.start(0, 0).set(StorageFigure.WANTED_BYTES, 50 * MIB)
    put(node.root / "core_1" / "log", 2 * MIB)
    is_failing = True
    before = node.quota_bytes(0)
    for _ in range(3):
        node.turn()
    is_failing = False
    for _ in range(5):
        node.turn()
    assert node.quota_bytes(0) >= 50 * MIB > before


def test_directories_that_cannot_be_found_now_are_found_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor ended, and the node with it: it looks for what nobody owns every minute, for that of a worker when it has died, and
    for everything when the cap changes."""
    monkeypatch.setattr("quiver_actors.supervisor.storage.UNOWNED_INTERVAL_NS", 0)
    node.coordination = node.coordinator()
    node.start(0, 0).set(StorageFigure.WANTED_BYTES, 100 * MIB)
    put(node.root / "core_1" / "log", 2 * MIB)
    put(node.root / "other", 4 * MIB)
    node.has_descriptors = False
    node.turn()
    before, node.cap_bytes = node.quota_bytes(0), 128 * MIB
    node.coordination.follow_cap()
    node.turn()
    assert node.quota_bytes(0) <= before
    node.has_descriptors = True
    node.coordination.follow_cap()
    for _ in range(5):
        node.turn()
    assert before < 100 * MIB <= node.quota_bytes(0) <= 122 * MIB


def test_another_coordinator_goes_on_from_the_words_that_it_finds(node: Node) -> None:
    rows = [node.start(core, core * 8 * MIB) for core in range(2)]
    for _ in range(3):
        node.turn()
        for core, row in enumerate(rows):
            row.set(StorageFigure.QUOTA_SEEN_BYTES, node.quota_bytes(core))
    quotas = [node.quota_bytes(core) for core in range(2)]
    node.coordination = node.coordinator()
    node.turn()
    assert [node.quota_bytes(core) for core in range(2)] == quotas


def test_a_claim_is_written_for_the_child_with_the_oldest_and_taken_back_when_it_is_done(node: Node) -> None:
    rows = [node.start(core, 32 * MIB) for core in range(2)]
    for core, row in enumerate(rows):
        row.set(StorageFigure.EVICTABLE_CLASS, EvictionClass.PROCESSED)
        row.set(StorageFigure.EVICTABLE_OLDEST_UNIX_NS, 200 - 100 * core)
        row.set(StorageFigure.EVICTABLE_BYTES, MIB)
    node.turn()
    assert LiveRow(node.page, 0, QUOTA_ROW, "core_1").load(QuotaFigure.CLAIM) == 0, "not before both have looked"
    for row in rows:
        row.set(StorageFigure.BEAT_NS, time.monotonic_ns())
    node.turn()
    claims = [LiveRow(node.page, 0, QUOTA_ROW, f"core_{core}").load_all() for core in range(2)]
    assert claims[0][QuotaFigure.CLAIM] == 0
    assert claims[1][QuotaFigure.CLAIM] == 1
    assert claims[1][QuotaFigure.CLAIM_THROUGH_UNIX_NS] == 200
    rows[1].set(StorageFigure.CLAIM_DONE, 1)
    rows[1].set(StorageFigure.USED_BYTES, 8 * MIB)
    node.turn()
    assert LiveRow(node.page, 0, QUOTA_ROW, "core_1").load(QuotaFigure.CLAIM) == 0


def test_measuring_counts_what_du_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    put(tmp_path / "a" / "large", MIB)
    (tmp_path / "a" / "b" / "small").write_bytes(b"x")
    os.link(tmp_path / "a" / "large", tmp_path / "a" / "b" / "again")
    sparse = tmp_path / "sparse"
    sparse.touch()
    os.truncate(sparse, 100 * MIB)
    found = measure([str(tmp_path)])
    directories = sum(os.stat(path).st_blocks * 512 for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"))
    assert found == directories + MIB + os.stat(tmp_path / "a" / "b" / "small").st_blocks * 512
    assert measure([str(tmp_path)], [str(tmp_path / "a")]) < found - MIB
    assert measure([str(tmp_path / "missing")]) == 0
