"""The numbers of one engine that were used, as far as anything on disk tells: the engine continues behind all of them.

Owner: one `Recovery`.
"""

from __future__ import annotations

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import FormatError
from quiver_actors.store.disk.salvage import SalvageReader
from quiver_actors.store.files.core_file import SEGMENT_SEQ_BLOCK, SEQUENCE_BLOCK, CoreFile
from quiver_actors.store.segment.codec import FooterExtension
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, decode_header
from quiver_actors.store.wal.decisions import Behind
from quiver_actors.store.wal.log import Log
from quiver_actors.store.wal.recovery import FoundLog

_SEQUENCES_PER_SEGMENT_MAX = SEQUENCE_BLOCK + SEGMENT_BUNDLES_MAX
"""A start that was no clean one skips at most a block of sequences, and at least one segment number."""


class NumbersUsed:
    """The numbers that one engine goes on with, raised by everything that is found on disk.

    Attributes:
        next_segment_seq, next_sequence: each is above all that were used.
        position: log position behind everything that was logged.
        incarnation: the 16 bytes that identify the directory; empty until `reserve`.
    """

    def __init__(self) -> None:
        self.next_segment_seq = 0
        self.next_sequence = 0
        self.position = 0
        self.incarnation = b""
        self.next_rotation = 1

    def note_segment_seq(self, segment_seq: int) -> None:
        """Note that there was a segment of that number."""
        self.next_segment_seq = max(self.next_segment_seq, segment_seq + 1)

    def note_sequence(self, sequence: int) -> None:
        """Note that a bundle had that sequence."""
        self.next_sequence = max(self.next_sequence, sequence + 1)

    def note_position(self, position: int) -> None:
        """Note that something was logged up to that position."""
        self.position = max(self.position, position)

    def note_footer(self, extension: FooterExtension) -> None:
        """Count the last sequence and log position that a segment's footer names as used."""
        self.note_sequence(extension.last_sequence)
        self.note_position(extension.wal_position_end)

    def note_sealed(self, log: Log) -> None:
        """Count the numbers of a log that was sealed as used."""
        self.note_segment_seq(log.segment_seq)
        self.note_sequence(log.builder.last_sequence)
        self.note_position(log.position_end)

    def note_damaged(self, source: SalvageReader) -> None:
        """Use no number that a damaged segment may have used."""
        try:
            header = decode_header(source.read(layout.HEADER_BYTES, 0))
        except FormatError:
            return
        self.note_position(header.position_start + source.size_bytes)
        if header.identity is not None:
            self.note_sequence(header.identity.first_sequence + SEGMENT_BUNDLES_MAX - 1)

    def note_log(self, log: FoundLog) -> None:
        """Count the numbers of a log that was found as used; an empty log has not used its segment number."""
        self.next_rotation = max(self.next_rotation, (layout.rotation_number(log.name) or 0) + 1)
        self.note_position(log.position_end)
        identity = log.identity
        if identity is not None:
            # An empty one gave its number to no bundle; after a clean stop it is exactly the next.
            used = 1 if log.has_entries or log.behind is Behind.TAIL else 0
            self.next_segment_seq = max(self.next_segment_seq, identity.segment_seq + used)
            self.next_sequence = max(self.next_sequence, identity.first_sequence)
        if log.has_entries:
            self.next_sequence = max(self.next_sequence, log.sequence_end)

    def reserve(self, former: CoreFile | None, core_id: int, new_incarnation: bytes) -> CoreFile:
        """What `quiver.core` must say before the first of the next numbers is used."""
        if former is not None:
            self.next_segment_seq = max(self.next_segment_seq, former.next_segment_seq_reserved)
            self.next_sequence = max(self.next_sequence, former.next_sequence_reserved)
        else:
            # Lost, and with it what is known of bundles that were deleted: but for their segments' numbers, which progress bears.
            self.next_sequence = max(self.next_sequence, self.next_segment_seq * _SEQUENCES_PER_SEGMENT_MAX)
        self.incarnation = former.incarnation if former else new_incarnation
        return CoreFile(
            self.incarnation,
            core_id,
            self.next_segment_seq + SEGMENT_SEQ_BLOCK,
            self.next_sequence + SEQUENCE_BLOCK,
            clean_shutdown=False,
        )

    # --- use ---------------------------------------------------------------------------------------------------------------

    def take_rotation(self) -> int:
        """A number for the name of a log file."""
        self.next_rotation += 1
        return self.next_rotation - 1

    def take_segment_seq(self) -> int:
        """A number that no segment has had."""
        self.next_segment_seq += 1
        return self.next_segment_seq - 1

    def take_sequence(self) -> int:
        """A sequence that no bundle has had."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def take_identity(self, first_sequence: int) -> Identity:
        """The numbers of a new log whose first bundle has that sequence."""
        return Identity(self.take_segment_seq(), first_sequence, self.incarnation)
