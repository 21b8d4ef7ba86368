"""One stage: what one attempt of one partition has pushed into one engine, in log files of its own.

Owner: the engine's loop thread; a job has the files alone while it is out. A part is a log file that becomes one segment, so a large
stage has several. All of it is invisible until it is published.
"""

from __future__ import annotations

from quiver_actors.base.checksum import crc32, crc32_combine
from quiver_actors.base.units import MIB
from quiver_actors.store.staged.records import PartRecord, PreparedRecord, StageOrder
from quiver_actors.store.staged.states import STAGE_TRANSITIONS, StageState
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, encode_header
from quiver_actors.store.wal.log import Log

FIRST_CAPACITY_BYTES = 1 * MIB
"""Size in bytes of a new part; it grows fourfold up to what a segment may have, so that many small stages do not reserve the disk."""
_GROWTH = 4


class Stage:
    """One stage: its state, its parts, and what a push or a publish of it waits for.

    Attributes:
        owner: the connection that pushes into it; None once it does not depend on one.
        parts: its files, the last one may take more.
        is_allocating: a job makes or enlarges the last part.
        wanted_bytes: size of a part that a push waits for, 0 if none does.
        cfg_hash: `segment_cfg_hash` of the topic when it was begun.
        reason: why it was dropped, or waits.
        unread: the record of parts that the disk did not give back at open, and that are read again before the publish; else None.
        wants_reading: somebody waits for these parts to be read.
        is_awaited: somebody waits until the archive has what is prepared.
    """

    def __init__(
        self, number: int, order: StageOrder, owner: object | None, cfg_hash: bytes, begun_unix_ns: int
    ) -> None:
        self.number = number
        self.order = order
        self.owner = owner
        self.cfg_hash = cfg_hash
        self.begun_unix_ns = begun_unix_ns
        self.state = StageState.OPEN
        self.parts: list[Log] = []
        self.is_allocating = False
        self.wanted_bytes = 0
        self.was_prepared = False
        self.expires_unix_ns = 0
        self.ask_again_ns = 0
        """Monotonic time before which the decision log is not asked again."""
        self.reason = ""
        self.unread: PreparedRecord | None = None
        self.wants_reading = False
        self.is_awaited = False

    def move(self, state: StageState) -> None:
        """Change the state; only the changes of `STAGE_TRANSITIONS` are possible."""
        assert state in STAGE_TRANSITIONS[self.state], f"stage {self.number}: {self.state} to {state}"
        self.state = state

    def drop(self, reason: str) -> None:
        """Begin the drop of the stage; `reason` is told to its producer."""
        self.reason = reason
        self.move(StageState.DROPPING)

    # --- taking bundles --------------------------------------------------------------------------------------------------------

    def part_for(self, span_bytes: int, target_bytes: int) -> Log | None:
        """The part that a push of that size goes into; None if it has to wait, and what is missing is asked for."""
        part = self.parts[-1] if self.parts else None
        if self.is_allocating:
            return None
        fits_below_target = part is not None and _has_place(part, span_bytes, target_bytes)
        needed = layout.HEADER_BYTES + span_bytes + layout.END_MARK_BYTES
        if part is not None and fits_below_target:
            needed = max(part.end, layout.HEADER_BYTES) + span_bytes + layout.END_MARK_BYTES
            if needed <= part.capacity_bytes:
                return part
        elif part is not None:
            part.closed = True
        self.wanted_bytes = max(self.wanted_bytes, needed)
        return None

    def next_capacity_bytes(self, target_bytes: int) -> int:
        """Size in bytes of the part that is made or enlarged next."""
        growing = self.growing
        usual = _GROWTH * growing.capacity_bytes if growing else FIRST_CAPACITY_BYTES
        return max(self.wanted_bytes, min(usual, layout.HEADER_BYTES + target_bytes + MIB))

    @property
    def growing(self) -> Log | None:
        """The part that is enlarged for the next push; None: it goes into a new one."""
        return self.parts[-1] if self.parts and not self.parts[-1].closed else None

    def take_empty_part(self) -> Log | None:
        """Take back a part that was made for a push that never came: only parts with bundles can be prepared."""
        return self.parts.pop() if self.parts and self.parts[-1].is_empty else None

    # --- figures ---------------------------------------------------------------------------------------------------------------

    @property
    def part_count(self) -> int:
        """Number of the stage's files."""
        return len(self.unread.parts) if self.unread else len(self.parts)

    @property
    def bundle_count(self) -> int:
        """Number of staged bundles."""
        if self.unread:
            return sum(part.bundles for part in self.unread.parts)
        return sum(part.builder.bundle_count for part in self.parts)

    @property
    def row_count(self) -> int:
        """Rows of the staged bundles, over all slots."""
        return (
            sum(part.rows for part in self.unread.parts)
            if self.unread
            else sum(p.builder.row_count for p in self.parts)
        )

    @property
    def disk_bytes(self) -> int:
        """Bytes that the parts take on disk, as preallocated."""
        return self.size_bytes if self.unread else sum(part.capacity_bytes for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Bytes of the parts up to the end of their last entries."""
        return (
            sum(part.size_bytes for part in self.unread.parts) if self.unread else sum(part.end for part in self.parts)
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing was staged."""
        return self.bundle_count == 0

    # --- on disk ---------------------------------------------------------------------------------------------------------------

    def record(self, incarnation: bytes, now_unix_ns: int) -> PreparedRecord:
        """The record that makes the stage durable, prepared now."""
        return PreparedRecord(
            self.number,
            self.order,
            incarnation,
            self.cfg_hash,
            [_record_of(part) for part in self.parts],
            now_unix_ns,
            now_unix_ns + self.order.ttl_ns,
            self.is_awaited,
        )

    def close_files(self) -> None:
        """Close the files of all parts; they stay on disk."""
        for part in self.parts:
            part.file.close()


def _has_place(part: Log, span_bytes: int, target_bytes: int) -> bool:
    """Whether a push fits in this part, as a push stays in one: the part stays below its target with it, or is empty."""
    if part.closed:
        return False
    if part.is_empty:
        return True
    return part.entry_bytes + span_bytes <= target_bytes and part.holds_another_push


def _record_of(part: Log) -> PartRecord:
    builder = part.builder
    counts = builder.bundle_summaries().item_count
    known = counts.astype("<i8").tobytes() if (counts >= 0).any() else b""
    return PartRecord(builder.bundle_count, builder.row_count, part.end, crc_of_entries(part), known)


def begin_part(part: Log, cfg_hash: bytes, incarnation: bytes) -> None:
    """Lay the header of a part that takes its first push."""
    part.entry_type = layout.ENTRY_TYPE_STAGED
    part.activate(cfg_hash, 0, Identity(0, 0, incarnation))


def crc_of_entries(part: Log) -> int:
    """CRC-32 of everything behind its header: CRCs are linear, nothing is read."""
    return part.crc ^ crc32_combine(crc32(part.header), 0, part.entry_bytes)


def number_part(part: Log, cfg_hash: bytes, position_start: int, identity: Identity) -> None:
    """Make a complete part the log of a segment. Its file gets `part.header` when it is sealed."""
    entries_crc = crc_of_entries(part)
    part.header = encode_header(cfg_hash, position_start, identity)
    part.crc = crc32_combine(crc32(part.header), entries_crc, part.entry_bytes)
    part.position_start = position_start
    part.identity = identity
    part.builder.number(identity.segment_seq, identity.first_sequence)
