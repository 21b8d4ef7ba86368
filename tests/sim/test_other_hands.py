"""One engine, and somebody else's hands in its directory: segments are deleted under it and while it is stopped, opens fail for a while,
and bundles cannot be decoded, by anybody or by one subscriber.

What is demanded: everybody gets each bundle or is told of it, but for segments that were deleted while nobody watched; nobody is told of a
bundle that nothing happened to, or that he was durably done with; and no bundle is delivered without end.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from random import Random

import pytest

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import NotStored, StorageUnavailable
from quiver_actors.store.engine.read_failures import TRIES_MAX
from quiver_actors.store.files.paths import EnginePaths
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.support.undecodable import with_undecodable_bundle

PATHS = EnginePaths("default/core_0")
SETTINGS = topic_settings(segment_compaction="off")
SUBSCRIBERS = ("ann", "ben", "blind")
BundleId = tuple[int, int]


class Store:
    """The engine, those who use it, and what was done to its files."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = FaultyDisk(SimDisk(shows_descriptors=True))
        self.driver = EngineDriver(self.disk, SETTINGS)
        for subscriber in SUBSCRIBERS:
            self.driver.engine.registrations.register(subscriber, "earliest")
        self.driver.flush_progress()
        self.pushed: set[BundleId] = set()
        self.deleted: set[int] = set()
        self.deleted_unwatched: set[int] = set()
        self.spoiled: set[BundleId] = set()
        self.acked: dict[str, set[BundleId]] = {subscriber: set() for subscriber in SUBSCRIBERS}
        self.told: dict[str, set[BundleId]] = {subscriber: set() for subscriber in SUBSCRIBERS}
        self.failures: Counter[tuple[str, BundleId]] = Counter()
        """Bundles that could not be decoded, counted by subscriber in the present life of the engine."""

    def push(self) -> None:
        count = self.random.randint(1, 4)
        for run in self.driver.push_numbered(len(self.pushed), count):
            self.pushed |= {(run.segment_seq, run.bundle_index + each) for each in range(run.count)}
        self.driver.seal()

    def consume(self) -> None:
        subscriber, owner = self.random.choice(SUBSCRIBERS), object()
        for grant in self.driver.engine.claims.claim(subscriber, owner, self.random.randint(1, 6)):
            self._take(subscriber, owner, grant.segment_seq, grant.token, list(grant.indexes))
        while (notice := self.driver.engine.claims.take_gap(subscriber, owner)) is not None:
            self._hear(subscriber, notice.segment_seq, notice.bundle_index_first, notice.bundle_count)
            self.driver.engine.claims.ack_gap(subscriber, notice.notice)
        self.driver.flush_progress()

    def _take(self, subscriber: str, owner: object, segment_seq: int, token: int, indexes: list[int]) -> None:
        engine = self.driver.engine
        try:
            os.close(engine.open_segment(segment_seq)[0])
        except (StorageUnavailable, NotStored):
            engine.claims.resolve(subscriber, owner, segment_seq, token, "return", indexes, SECOND_NS)
            return
        for index in indexes:
            id_ = segment_seq, index
            if id_ in self.spoiled or (subscriber == "blind" and index == 0):
                self.failures[subscriber, id_] += 1
                assert self.failures[subscriber, id_] <= 2 * TRIES_MAX, (
                    f"{id_} is delivered to {subscriber} without end"
                )
                engine.cannot_read(subscriber, owner, segment_seq, token, [index], SECOND_NS)
            elif not engine.claims.resolve(subscriber, owner, segment_seq, token, "ack", [index], 0):
                self.acked[subscriber].add(id_)

    def _hear(self, subscriber: str, segment_seq: int, first: int, count: int) -> None:
        ids = {id_ for id_ in self.pushed if id_[0] == segment_seq and id_[1] >= first}
        lost = {id_ for id_ in ids if not count or id_[1] < first + count}
        unharmed = {id_ for id_ in lost if id_[0] not in self.deleted and id_ not in self.spoiled}
        assert not unharmed, f"nothing has happened to {unharmed}, and {subscriber} is told of it"
        assert not (done := lost & self.acked[subscriber]), f"{subscriber} was done with {done}"
        self.told[subscriber] |= lost

    def delete(self, *, is_watched: bool = True) -> None:
        there = [name for name in self.disk.inner.list_directory(PATHS.segments) if name.endswith(".qseg")]
        if there:
            name = self.random.choice(there)
            self.disk.inner.unlink(f"{PATHS.segments}/{name}")
            self.deleted.add(int(name[:16]))
            if not is_watched:
                self.deleted_unwatched.add(int(name[:16]))

    def spoil(self) -> None:
        """One bundle of a stored segment becomes one that nobody can decode; the checksum of the file is right."""
        stored = [info for info in self.driver.engine.segments() if info.segment_seq not in self.deleted]
        if not stored:
            return
        info = self.random.choice(stored)
        path, index = PATHS.segment(info.segment_seq), self.random.randrange(info.bundle_count)
        if (info.segment_seq, index) not in self.spoiled:
            file = self.disk.inner.open_read(path)
            content = with_undecodable_bundle(file.read(file.size(), 0), index)
            file.close()
            written = self.disk.inner.create(path + ".new")
            written.write([content], 0)
            written.fsync()
            written.make_read_only()
            written.close()
            self.disk.inner.rename(path + ".new", path)
            self.spoiled.add((info.segment_seq, index))

    def fail_for_a_while(self) -> None:
        self.disk.fail("open_read", 1, errno.EIO, then=["open_read"])
        for _ in range(3):
            self.consume()
            self.driver.run_for(SECOND_NS)
        self.disk.heal()

    def restart(self) -> None:
        # What was deleted right before nobody may have noticed.
        self.deleted_unwatched |= self.deleted & {info.segment_seq for info in self.driver.engine.segments()}
        if self.random.random() < 0.5:
            self.driver.drain_and_close()
        else:
            self.disk.inner = self.disk.inner.copy()  # type: ignore[attr-defined]
        if self.random.random() < 0.5:
            self.delete(is_watched=False)
        self.failures.clear()
        self.driver.reopen()
        self.driver.settle()

    def pass_time(self) -> None:
        self.driver.run_for(self.random.choice((1, 3)) * SECOND_NS)

    def end(self) -> None:
        """Nothing happens any more; within a bounded time everybody has what there is."""
        for _ in range(120):
            self.consume()
            self.driver.run_for(SECOND_NS)
        for subscriber in SUBSCRIBERS:
            counts = self.driver.engine.owed.pending(subscriber)
            assert (counts.pending, counts.claimed, counts.deferred, counts.gaps) == (0, 0, 0, 0), subscriber
            left = self.pushed - self.acked[subscriber] - self.told[subscriber]
            set_aside = {id_ for id_ in left if subscriber == "blind" and id_[1] == 0}
            assert counts.blocked <= len(set_aside)
            unwatched = {id_ for id_ in left if id_[0] in self.deleted_unwatched}
            assert left <= set_aside | unwatched, f"{subscriber} neither got nor was told of {left}"


@pytest.mark.parametrize("seed", range(10))
def test_whatever_others_do_to_the_files_everybody_gets_or_is_told(seed: int) -> None:
    store = Store(seed)
    steps = (
        store.push,
        store.consume,
        store.delete,
        store.spoil,
        store.fail_for_a_while,
        store.restart,
        store.pass_time,
    )
    for _ in range(40):
        store.random.choices(steps, (6, 10, 1, 1, 1, 2, 3))[0]()
    store.end()
