"""Gap notices: the bundles that one subscriber will never get, kept until a consumer has been told. Ledger and codec of `quiver.gaps.<id>`.

Source: docs/formats.md section 8, "Gap notices: `quiver.gaps.<id>`".

The file is a header, records, and the CRC-32C of both.

A record is durable before the progress that counts its bundles as resolved, and before the file that held them is unlinked or moved
aside. It stays, as told, until that progress is durable too: so a crash anywhere neither delivers what was announced as lost, nor
announces it twice, nor forgets it.

Owner: the engine of its worker, on the loop thread. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import crc32c

from quiver_actors.base.model import check_id
from quiver_actors.errors import InvalidFormat, UsageError
from quiver_actors.store.format.fields import Field, FieldTable, at_least, at_most
from quiver_actors.store.format.framing import Framing, Place
from quiver_actors.store.subscriber.changes import Changes
from quiver_actors.store.subscriber.progress import subscriber_of

FILE_PREFIX = "quiver.gaps."
REASONS = ("damaged", "evicted", "expired", "dropped")

GAPS_TABLE = FieldTable(
    "gap file",
    Field("magic", "8s", constant=b"QUIVGAPS"),
    Field("version", "H", constant=1),
    Field("header_size", "H", constant=32, check=at_least(32)),
    Field("record_count", "I"),
    Field("next_notice", "Q", "number of the next notice; none is used twice"),
    Field("zeroes", "8x"),
)
RECORD_TABLE = FieldTable(
    "record of a gap file",
    Field("notice", "Q", "number of the notice"),
    Field("segment_seq", "Q"),
    Field("bundle_index_first", "I"),
    Field("bundle_count", "I", "0: unknown, the whole segment"),
    Field("row_count", "q", "-1: unknown"),
    Field("reason", "B", "0: damaged, 1: evicted, 2: expired, 3: dropped", check=at_most(len(REASONS) - 1)),
    Field("flags", "B", "bit 0: a consumer has acknowledged it"),
    Field("zeroes", "14x"),
)
GAPS = Framing("gap file", GAPS_TABLE, Place.FILE, (crc32c.crc32c,))
FLAG_TOLD = 1 << 0


@dataclass(slots=True)
class GapNotice:
    """A notice of a loss: consecutive bundles of one segment."""

    notice: int
    segment_seq: int
    bundle_index_first: int
    bundle_count: int
    """How many bundles from the first on are lost; 0: nobody knows how many."""
    row_count: int
    reason: str
    version: int = 0
    """The version of the ledger that the notice came with: nobody is told before that version is durable."""
    progress_version: int = 0
    """The version of the subscriber's progress that counts the bundles as resolved."""
    is_told: bool = False
    owner: object | None = None
    """The owner that the notice was sent to and that has not acknowledged it."""
    retry_ns: int = 0
    """Monotonic time at which the notice is sent to somebody else; 0 = only when the owner goes."""

    @property
    def position(self) -> tuple[int, int]:
        """Segment number and index of the first lost bundle; notices are told in this order."""
        return self.segment_seq, self.bundle_index_first


class GapLedger:
    """The notices of one subscriber on one engine.

    Attributes:
        next_notice: the number of the next notice.
        changes: what a flush must make durable of them.
        free: heap of (position, notice) of the untold notices that no owner has, and of some that are no longer that.
    """

    def __init__(self, version: int = 0, next_notice: int = 1, notices: Iterable[GapNotice] = ()) -> None:
        """
        Args:
            next_notice: the number of the next notice.
            notices: what the ledger starts with.
        """
        self.next_notice = next_notice
        self.changes = Changes(version)
        self._notices: dict[int, GapNotice] = {}
        self._withdrawn: dict[int, tuple[int, GapNotice]] = {}
        """Withdrawn notices, with the version of the ledger that no longer has them."""
        self._told_count = 0
        self.free: list[tuple[tuple[int, int], int]] = []
        self._given: dict[int, GapNotice] = {}
        """The notices that an owner has and has not acknowledged."""
        self._retries: list[tuple[int, int]] = []
        """Heap of (monotonic time, notice) of the given notices that go to somebody else then, and of some that no longer do."""
        for notice in notices:
            self._hold(notice)
            self._told_count += notice.is_told

    def __iter__(self) -> Iterator[GapNotice]:
        return iter(self._notices.values())

    def __len__(self) -> int:
        return len(self._notices)

    @property
    def untold_count(self) -> int:
        """Notices that no consumer has acknowledged."""
        return len(self._notices) - self._told_count

    def add(
        self, segment_seq: int, first: int, bundle_count: int, row_count: int, reason: str, progress_version: int
    ) -> GapNotice:
        """Note a loss.

        Raises:
            UsageError: no such reason.
        """
        if reason not in REASONS:
            raise UsageError(f"gap reason {reason!r} is unknown: expected one of {', '.join(REASONS)}")
        self.changes.note()
        notice = GapNotice(
            self.next_notice,
            segment_seq,
            first,
            bundle_count,
            row_count,
            reason,
            self.changes.version,
            progress_version,
        )
        self.next_notice += 1
        self._hold(notice)
        return notice

    def _hold(self, notice: GapNotice) -> None:
        self._notices[notice.notice] = notice
        if not notice.is_told:
            heapq.heappush(self.free, (notice.position, notice.notice))

    def covers(self, segment_seq: int) -> bool:
        """Whether some notice names bundles of that segment."""
        return any(notice.segment_seq == segment_seq for notice in self)

    def has_open_end(self, segment_seq: int) -> bool:
        """Whether a notice says that nobody knows how many bundles of that segment are lost."""
        return any(notice.segment_seq == segment_seq and not notice.bundle_count for notice in self)

    def next_untold(self) -> GapNotice | None:
        """The notice of the oldest bundles among those that are with no owner."""
        while self.free:
            notice = self._notices.get(self.free[0][1])
            if notice is not None and not notice.is_told and notice.owner is None:
                return notice
            heapq.heappop(self.free)
        return None

    def is_durable(self, notice: GapNotice) -> bool:
        """Whether the notice survives every crash; until then a crash may lose it, and its bundles may be delivered again."""
        return notice.version <= self.changes.flushed_version

    def give(self, notice: GapNotice, owner: object, retry_ns: int) -> None:
        """Note that the notice is being sent to that owner."""
        notice.owner = owner
        notice.retry_ns = retry_ns
        self._given[notice.notice] = notice
        if retry_ns:
            heapq.heappush(self._retries, (retry_ns, notice.notice))

    def is_given(self, number: int, owner: object) -> bool:
        """Whether that notice is with that owner; also of one that was acknowledged, or is none any more: saying so again is no error."""
        notice = self._notices.get(number)
        return notice is None or notice.is_told or notice.owner is owner

    def release(self, owner: object) -> bool:
        """Take back the notices of an owner that is gone; returns whether there were any."""
        returned = [notice for notice in self._given.values() if notice.owner is owner]
        for notice in returned:
            self._take_back(notice)
        return bool(returned)

    def _take_back(self, notice: GapNotice) -> None:
        del self._given[notice.notice]
        notice.owner = None
        heapq.heappush(self.free, (notice.position, notice.notice))

    def due(self, now_ns: int) -> bool:
        """Take notices back from owners that have been silent for too long; returns whether there were any."""
        has_returned = False
        while (due_ns := self.next_due_ns()) is not None and due_ns <= now_ns:
            self._take_back(self._given[self._retries[0][1]])
            has_returned = True
        return has_returned

    def next_due_ns(self) -> int | None:
        """The monotonic time at which `due` should be called next; None: never."""
        while self._retries:
            retry_ns, number = self._retries[0]
            notice = self._given.get(number)
            if notice is not None and notice.retry_ns == retry_ns:
                return retry_ns
            heapq.heappop(self._retries)
        return None

    def ack(self, number: int) -> None:
        """Note that a consumer has been told. For a notice that was told before, or is not known any more, nothing changes."""
        notice = self._notices.get(number)
        if notice is not None and not notice.is_told:
            notice.is_told = True
            self._given.pop(number, None)
            self._told_count += 1
            self.changes.note()

    def withdraw(self, number: int) -> None:
        """Forget a notice whose bundles can be had again. The file keeps the notice until the progress that says so is durable."""
        notice = self._notices.pop(number)
        self._given.pop(number, None)
        self._told_count -= notice.is_told
        self.changes.note()
        self._withdrawn[number] = (self.changes.version, notice)

    @property
    def has_withdrawn(self) -> bool:
        """Whether a withdrawn notice is still in the file on the disk."""
        return bool(self._withdrawn)

    def encode(self, flushed_progress: int, *, with_withdrawn: bool = True) -> bytes:
        """What the file must say now; drops what was told and is covered by durable progress.

        Args:
            flushed_progress: the version of the subscriber's progress that is durable.
            with_withdrawn: also what was withdrawn since the last flush; without, once the progress that goes with it is durable.
        """
        gone = [n.notice for n in self if n.is_told and n.progress_version <= flushed_progress]
        for number in gone:
            del self._notices[number]
        self._told_count -= len(gone)
        kept = [*self, *(notice for _, notice in self._withdrawn.values())] if with_withdrawn else list(self)
        header = GAPS_TABLE.pack(record_count=len(kept), next_notice=self.next_notice)
        records = (
            RECORD_TABLE.struct.pack(
                n.notice, *n.position, n.bundle_count, n.row_count, REASONS.index(n.reason), FLAG_TOLD * n.is_told
            )
            for n in kept
        )
        return GAPS.seal(b"".join([header, *records]))

    def mark_flushed(self, version: int) -> None:
        """Note that a version of the ledger is durable."""
        self.changes.mark_flushed(version)
        self._withdrawn = {number: each for number, each in self._withdrawn.items() if each[0] > version}


def decode_gaps(data: bytes) -> GapLedger:
    """Read a file. Raises as `Framing.open`."""
    body = GAPS.open(data)
    header = GAPS_TABLE.unpack(data)
    count, start = header["record_count"], header["header_size"]
    if start + count * RECORD_TABLE.size > len(body):
        raise InvalidFormat(f"gap file of {len(data)} bytes: {count} records do not fit")
    notices = [_notice_of(*row) for row in RECORD_TABLE.rows(body, start, count)]
    return GapLedger(next_notice=header["next_notice"], notices=notices)


def _notice_of(number: int, segment_seq: int, first: int, count: int, rows: int, reason: int, flags: int) -> GapNotice:
    if reason >= len(REASONS):
        raise InvalidFormat(f"gap file: notice {number} has reason {reason}, expected 0..{len(REASONS) - 1}")
    return GapNotice(number, segment_seq, first, count, rows, REASONS[reason], is_told=bool(flags & FLAG_TOLD))


def gaps_file_name(subscriber: str) -> str:
    """The name of a subscriber's gap file.

    Raises:
        InvalidId: the id may not be used.
    """
    return FILE_PREFIX + check_id("subscriber", subscriber)


def gaps_subscriber_of(file_name: str) -> str | None:
    """The subscriber whose gap file has that name; None for every other file, `*.tmp` and invalid ids included."""
    return subscriber_of(file_name, FILE_PREFIX)
