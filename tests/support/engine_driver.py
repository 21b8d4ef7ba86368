"""Drives one engine in a test: lays bundles out as a client does, and runs its jobs in order, in this thread."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from quiver_actors.base.config import SegmentSettings, TopicSettings, WalSettings
from quiver_actors.base.protocol.messages import AckRun, Push
from quiver_actors.errors import QuiverError
from quiver_actors.store.disk.interposed import InterposedDisk
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, DiskFile
from quiver_actors.store.encoding.entries import lay_out, plan
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.engine import Engine
from quiver_actors.store.engine.events import Event
from quiver_actors.store.files.cold_directory import ColdDisks, posix_cold_disk
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.subscriber.gaps import GapNotice
from quiver_actors.store.subscriber.grants import Grant
from quiver_actors.store.wal.entry_reader import EntryReader
from tests.disks.faulty import SimulatedCrash
from tests.support.open_logs import read_log


class ManualClock:
    """Time that moves only when a test says so."""

    def __init__(self, start_ns: int = 1_700_000_000_000_000_000) -> None:
        self.now_ns = start_ns
        self.wrong_by_ns = 0
        """Nanoseconds by which the clock on the wall is ahead."""

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns + self.wrong_by_ns

    def advance(self, duration_ns: int) -> None:
        self.now_ns += duration_ns


def topic_settings(**changes: Any) -> TopicSettings:
    """Settings with `segment_*` and `wal_*` arguments put into their sections."""
    segment = {name.removeprefix("segment_"): value for name, value in changes.items() if name.startswith("segment_")}
    wal = {name.removeprefix("wal_"): value for name, value in changes.items() if name.startswith("wal_")}
    rest = {name: value for name, value in changes.items() if not name.startswith(("segment_", "wal_"))}
    return TopicSettings(segment=SegmentSettings(**segment), wal=WalSettings(**wal), **rest)


def numbered_batch(number: int, rows: int = 5) -> pa.RecordBatch:
    """A small batch that says which bundle it belongs to."""
    return pa.record_batch(
        {
            "number": pa.array([number] * rows, pa.int64()),
            "text": pa.array([f"{number}-{row}-text" for row in range(rows)]),
        }
    )


def drop_segment(engine: Engine, segment_seq: int, reason: str) -> int:
    """Record a sealed segment as lost for everybody who has not resolved it, as an eviction does. Returns the ticket to wait for."""
    engine._parts.sealed_segments.drop(segment_seq, reason)
    return engine.progress.flush()


_ON_REAL_DISKS: list[EngineDriver] = []


def close_forgotten() -> None:
    """Close the engines and disks of all drivers: tests forget them as a kill does, but the process that had them open goes on. Called at
    the end of each test file."""
    while _ON_REAL_DISKS:
        driver = _ON_REAL_DISKS.pop()
        with contextlib.suppress(QuiverError, SimulatedCrash):
            driver.engine.close()
        if (disk := _real_disk(driver.disk)) is not None:
            disk.close()


def _real_disk(disk: Disk) -> PosixDisk | None:
    while isinstance(disk, InterposedDisk):
        disk = disk.inner
    return disk if isinstance(disk, PosixDisk) else None


class EngineDriver:
    """An engine, its clock, and a producer's side."""

    def __init__(
        self,
        disk: Disk,
        settings: TopicSettings | None = None,
        directory: str = "default/core_0",
        clock: ManualClock | None = None,
        cold_disks: ColdDisks = posix_cold_disk,
    ) -> None:
        self.disk = disk
        self.cold_disks = cold_disks
        self.settings = settings or topic_settings()
        self.directory = directory
        self.clock = clock or ManualClock()
        self.events: list[Event] = []
        self._streams = StreamTable(self.settings.name)
        self.told: list[GapNotice] = []
        self._tag = 0
        self._tokens: dict[tuple[str, int, int], int] = {}
        self.engine = self.reopen()
        if _real_disk(disk) is not None:
            _ON_REAL_DISKS.append(self)

    def reopen(self) -> Engine:
        """Open the directory (again): what was open before is simply forgotten, as after a kill."""
        self.engine = Engine.open(self.disk, self.directory, self.settings, 0, self.clock, cold_disks=self.cold_disks)
        return self.engine

    def layout(
        self, bundles: Sequence[Mapping[int, pa.RecordBatch]], item_count: int | None = None
    ) -> tuple[memoryview, Push, dict[int, StreamSchema]]:
        """Lay bundles out as one Push, as the client does."""
        plans = [plan(sorted(bundle.items()), self._streams, item_count) for bundle in bundles]
        memory = memoryview(bytearray(sum(p.entry_bytes for p in plans)))
        rows = lay_out(plans, memory)
        self._tag += 1
        push = rows.push(self._tag, self.settings.name, 0, len(memory), len(memory))
        return memory, push, rows.schemas()

    def push(self, *bundles: Mapping[int, pa.RecordBatch], item_count: int | None = None) -> list[AckRun]:
        """Stage and write bundles; not yet synced."""
        memory, push, schemas = self.layout(bundles, item_count)
        if not self.engine.intake.can_stage(len(memory)):
            self.run_background()
        runs = self.engine.intake.stage(memory, push, schemas)
        self.events += self.engine.write()
        return runs

    def push_numbered(self, first: int, count: int = 1) -> list[AckRun]:
        return self.push(*({0: numbered_batch(number)} for number in range(first, first + count)))

    def commit(self) -> None:
        """Run group commits until there are none, and what leaves an empty log behind them."""
        while (job := self.engine.next_commit()) is not None:
            job.run()
            self.events += self.engine.finish(job)

    def run_background(self) -> None:
        """Run background jobs until there are none."""
        while (job := self.engine.next_background()) is not None:
            job.run()
            self.events += self.engine.finish(job)

    def settle(self) -> None:
        """Commit and run everything that is due now."""
        while True:
            self.events += self.engine.tick()
            commit = self.engine.next_commit()
            if commit is not None:
                commit.run()
                self.events += self.engine.finish(commit)
            background = self.engine.next_background()
            if background is not None:
                background.run()
                self.events += self.engine.finish(background)
            cold = self.engine.storage.next_cold()
            if cold is not None:
                cold.run()
                self.events += self.engine.finish(cold)
            if commit is None and background is None and cold is None:
                return

    def run_for(self, duration_ns: int) -> None:
        """Let time pass, from one deadline of the engine to the next."""
        end_ns = self.clock.now_ns + duration_ns
        while True:
            self.settle()
            deadline_ns = self.engine.next_deadline_ns()
            if deadline_ns is None or deadline_ns > end_ns:
                break
            self.clock.now_ns = max(deadline_ns, self.clock.now_ns + 1)
        self.clock.now_ns = end_ns

    def seal(self) -> None:
        self.engine.seal_now()
        self.settle()

    def flush_progress(self) -> None:
        self.engine.progress.flush()
        self.settle()

    def drain_and_close(self) -> None:
        self.engine.drain()
        self.settle()
        assert self.engine.is_drained
        self.engine.close()

    def read_claimed(self, segment_seq: int) -> SegmentReader | EntryReader:
        """A segment, or what is shown of a log, through the disk seam."""
        if self.engine.readable_end.shown_count(segment_seq):
            return read_log(self.engine, self.disk, self.directory, segment_seq)
        return self.read(segment_seq)

    def read(self, segment_seq: int) -> SegmentReader:
        """A sealed segment, through the disk seam, wherever it is."""
        path = f"{self.directory}/segments/{segment_seq:016}.qseg"
        if segment_seq not in self.engine._parts.sealed_segments.segments.cold:
            return self._read(self.disk.open_read(path), segment_seq)
        directory = self.engine._parts.cold.directory
        assert directory is not None
        with directory.opened() as cold:
            return self._read(cold.open_read(directory.segment(segment_seq)), segment_seq)

    @staticmethod
    def _read(file: DiskFile, segment_seq: int) -> SegmentReader:
        try:
            return SegmentReader(file.read(file.size(), 0), segment_seq=segment_seq)
        finally:
            file.close()

    def claim_numbers(self, subscriber: str, bundles: int = 1_000_000, owner: object = "owner") -> list[int]:
        """Claim and return the numbers of `numbered_batch`es delivered."""
        found: list[int] = []
        while True:
            grants = self.claim(subscriber, owner, bundles - len(found))
            for grant in grants:
                reader = self.read_claimed(grant.segment_seq)
                found += [reader.bundle(index)[0].column(0)[0].as_py() for index in grant.indexes]
            self.settle()  # notices are told once they are durable
            if not grants and not self.take_gaps(subscriber, owner):
                return found

    def take_gaps(self, subscriber: str, owner: object = "owner") -> list[GapNotice]:
        """The notices that can be told now, oldest first; not acknowledged."""
        found = []
        while (notice := self.engine.claims.take_gap(subscriber, owner)) is not None:
            found.append(notice)
        self.told += found
        return found

    def claim(self, subscriber: str, owner: object, bundles: int, **options: Any) -> list[Grant]:
        """Claim, and remember the tokens for `resolve`."""
        grants = self.engine.claims.claim(subscriber, owner, bundles, **options)
        for grant in grants:
            self._tokens.update(((subscriber, grant.segment_seq, index), grant.token) for index in grant.indexes)
        return grants

    def resolve(
        self, subscriber: str, owner: object, segment_seq: int, outcome: str, indexes: Sequence[int], delay_ns: int = 0
    ) -> list[tuple[str, list[int]]]:
        """Resolve under the tokens that the bundles were claimed with last."""
        refused = []
        for index in indexes:
            token = self._tokens.get((subscriber, segment_seq, index), 0)
            refused += self.engine.claims.resolve(subscriber, owner, segment_seq, token, outcome, [index], delay_ns)
        return refused
