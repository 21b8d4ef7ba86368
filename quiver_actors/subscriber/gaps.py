"""Gap notices: what one subscriber will never get, kept until a consumer has been told. Ledger and codec of `quiver.gaps.<id>`.

    header, 32 bytes                            record, 48 bytes, repeated            footer
     0  8  magic "QUIVGAPS"                      0  8  u64 notice                     u32 CRC-32C of all before it
     8  2  u16 version = 1                       8  8  u64 segment_seq
    10  2  u16 header_size = 32                 16  4  u32 first bundle index
    12  4  u32 record_count                     20  4  u32 bundle_count, 0 = unknown
    16  8  u64 next_notice                      24  8  i64 row_count, -1 = unknown
    24  8  zero                                 32  1  u8 reason (REASONS)
                                                33  1  u8 flags: bit 0 = told
                                                34 14  zero

A record is durable before the progress that counts its bundles as resolved, and before the file that held them is unlinked or moved
aside. It stays, as told, until that progress is durable too: so a crash anywhere neither delivers what was announced as lost, nor
announces it twice, nor forgets it.

Owner: the engine of its worker, on the loop thread. Pure.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import crc32c

from quiver_actors.errors import ChecksumMismatch, InvalidFormat, Truncated, UnsupportedVersion, UsageError
from quiver_actors.model import check_id

VERSION = 1
FILE_PREFIX = "quiver.gaps."
REASONS = ("damaged", "evicted", "expired", "dropped")

_MAGIC = b"QUIVGAPS"
_HEADER = struct.Struct("<8sHHIQ8x")
_RECORD = struct.Struct("<QQIIqBB14x")
_CHECKSUM = struct.Struct("<I")
_TOLD = 1 << 0


def _nobody() -> None:
    """Nobody keeps account of changes."""


@dataclass(slots=True)
class GapNotice:
    """Consecutive bundles of one segment."""

    notice: int
    segment_seq: int
    bundle_index_first: int
    bundle_count: int
    """0: nobody knows how many, from the first on."""
    row_count: int
    reason: str
    version: int = 0
    """The version of the ledger that it came with: nobody is told before that is durable."""
    progress_version: int = 0
    """The version of the subscriber's progress that counts the bundles as resolved."""
    is_told: bool = False
    owner: object | None = None
    """Whom it was sent to and who has not acknowledged it."""
    retry_ns: int = 0
    """When it is sent to somebody else; 0 = only when the owner goes."""

    @property
    def position(self) -> tuple[int, int]:
        return self.segment_seq, self.bundle_index_first


class GapLedger:
    """The notices of one subscriber on one engine."""

    def __init__(self, version: int = 0) -> None:
        self.next_notice = 1
        self.on_change: Callable[[], object] = _nobody
        """Called with every change that must become durable."""
        self._version = self.flushed_version = version
        self._notices: dict[int, GapNotice] = {}
        self._withdrawn: dict[int, tuple[int, GapNotice]] = {}
        """With the version of the ledger that no longer has them."""
        self._told_count = 0
        self._free: list[tuple[tuple[int, int], int]] = []
        """Heap of (position, notice) of those that are untold and with nobody, and of some that are not any more."""
        self._given: dict[int, GapNotice] = {}
        """Those that are with an owner and not acknowledged."""
        self._retries: list[tuple[int, int]] = []
        """Heap of (when, notice) of those, and of some that are not any more."""

    def __iter__(self) -> Iterator[GapNotice]:
        return iter(self._notices.values())

    def __len__(self) -> int:
        return len(self._notices)

    @property
    def version(self) -> int:
        """Rises with every change that must become durable."""
        return self._version

    def _change(self) -> None:
        self._version += 1
        self.on_change()

    @property
    def is_dirty(self) -> bool:
        return self._version > self.flushed_version

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
        self._change()
        notice = GapNotice(
            self.next_notice, segment_seq, first, bundle_count, row_count, reason, self.version, progress_version
        )
        self.next_notice += 1
        self._hold(notice)
        return notice

    def _hold(self, notice: GapNotice) -> None:
        self._notices[notice.notice] = notice
        if not notice.is_told:
            heapq.heappush(self._free, (notice.position, notice.notice))

    def covers(self, segment_seq: int) -> bool:
        """Whether some notice names bundles of that segment."""
        return any(notice.segment_seq == segment_seq for notice in self)

    def has_open_end(self, segment_seq: int) -> bool:
        """Whether a notice says that nobody knows how many bundles of that segment are lost."""
        return any(notice.segment_seq == segment_seq and not notice.bundle_count for notice in self)

    def next_untold(self) -> GapNotice | None:
        """The notice of the oldest bundles that is with nobody."""
        while self._free:
            notice = self._notices.get(self._free[0][1])
            if notice is not None and not notice.is_told and notice.owner is None:
                return notice
            heapq.heappop(self._free)
        return None

    def is_durable(self, notice: GapNotice) -> bool:
        """Whether a crash cannot take it back: before that its bundles could be delivered again."""
        return notice.version <= self.flushed_version

    def give(self, notice: GapNotice, owner: object, retry_ns: int) -> None:
        """It is being sent to that owner."""
        notice.owner = owner
        notice.retry_ns = retry_ns
        self._given[notice.notice] = notice
        if retry_ns:
            heapq.heappush(self._retries, (retry_ns, notice.notice))

    def release(self, owner: object) -> bool:
        """An owner is gone; returns whether a notice came back by it."""
        returned = [notice for notice in self._given.values() if notice.owner is owner]
        for notice in returned:
            self._take_back(notice)
        return bool(returned)

    def _take_back(self, notice: GapNotice) -> None:
        del self._given[notice.notice]
        notice.owner = None
        heapq.heappush(self._free, (notice.position, notice.notice))

    def due(self, now_ns: int) -> bool:
        """Take notices back from owners that have been silent for too long; returns whether there were any."""
        has_returned = False
        while (due_ns := self.next_due_ns()) is not None and due_ns <= now_ns:
            self._take_back(self._given[self._retries[0][1]])
            has_returned = True
        return has_returned

    def next_due_ns(self) -> int | None:
        """When `due` should be called next."""
        while self._retries:
            retry_ns, number = self._retries[0]
            notice = self._given.get(number)
            if notice is not None and notice.retry_ns == retry_ns:
                return retry_ns
            heapq.heappop(self._retries)
        return None

    def ack(self, number: int) -> None:
        """A consumer has been told. Again, or of one that is not known any more: no change."""
        notice = self._notices.get(number)
        if notice is not None and not notice.is_told:
            notice.is_told = True
            self._given.pop(number, None)
            self._told_count += 1
            self._change()

    def withdraw(self, number: int) -> None:
        """Its bundles can be had again: forget it. The file keeps it until the progress that says so is durable."""
        notice = self._notices.pop(number)
        self._given.pop(number, None)
        self._told_count -= notice.is_told
        self._change()
        self._withdrawn[number] = (self.version, notice)

    @property
    def has_withdrawn(self) -> bool:
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
        body = _HEADER.pack(_MAGIC, VERSION, _HEADER.size, len(kept), self.next_notice)
        body += b"".join(
            _RECORD.pack(
                n.notice,
                n.segment_seq,
                n.bundle_index_first,
                n.bundle_count,
                n.row_count,
                REASONS.index(n.reason),
                _TOLD if n.is_told else 0,
            )
            for n in kept
        )
        return body + _CHECKSUM.pack(crc32c.crc32c(body))

    def mark_flushed(self, version: int) -> None:
        self.flushed_version = max(self.flushed_version, version)
        self._withdrawn = {number: each for number, each in self._withdrawn.items() if each[0] > version}


def decode_gaps(data: bytes) -> GapLedger:
    """Read a file.

    Raises:
        Truncated, InvalidFormat, ChecksumMismatch, UnsupportedVersion: it is not one, or damaged, or of a newer version.
    """
    if len(data) < _HEADER.size + _CHECKSUM.size:
        raise Truncated(f"gap file of {len(data)} bytes: expected at least {_HEADER.size + _CHECKSUM.size}")
    magic, version, header_size, count, next_notice = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise InvalidFormat(f"gap file starts with {magic!r}: expected {_MAGIC!r}")
    body = memoryview(data)[: -_CHECKSUM.size]
    stored, found = _CHECKSUM.unpack_from(data, len(body))[0], crc32c.crc32c(body)
    if stored != found:
        raise ChecksumMismatch(f"gap file: stored checksum {stored:#010x}, CRC-32C of its contents {found:#010x}")
    if version != VERSION:
        raise UnsupportedVersion(f"gap file version {version}: this Quiver reads version {VERSION}")
    if header_size < _HEADER.size or header_size + count * _RECORD.size > len(body):
        raise InvalidFormat(f"gap file of {len(data)} bytes: {count} records do not fit")
    ledger = GapLedger()
    ledger.next_notice = next_notice
    for offset in range(header_size, header_size + count * _RECORD.size, _RECORD.size):
        ledger._hold(_decode_record(body, offset))
    ledger._told_count = sum(notice.is_told for notice in ledger)
    return ledger


def _decode_record(body: memoryview, offset: int) -> GapNotice:
    number, segment_seq, first, count, rows, reason, flags = _RECORD.unpack_from(body, offset)
    if reason >= len(REASONS):
        raise InvalidFormat(f"gap file: notice {number} has reason {reason}, expected 0..{len(REASONS) - 1}")
    return GapNotice(number, segment_seq, first, count, rows, REASONS[reason], is_told=bool(flags & _TOLD))


def gaps_file_name(subscriber: str) -> str:
    """The name of a subscriber's gap file.

    Raises:
        InvalidId: the id may not be used.
    """
    return FILE_PREFIX + check_id("subscriber", subscriber)
