"""A reader of one segment file that shows no value before it has proven it.

Guarantee: what it returns is what was written, or it raises. A bundle is proven whole, whichever of its slots are asked for, and at each
call anew, so that damage is found that came to the file since the last one. Damage that comes between the proof of a bundle and the use of
its batches is not found: batches point into the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from quiver_actors.errors import ChecksumMismatch, FormatError
from quiver_actors.store.segment.codec import StreamInfo
from quiver_actors.store.segment.contents import Contents, Freeze
from quiver_actors.store.segment.integrity import Integrity, frozen_start, integrity_of
from quiver_actors.store.segment.mapping import SegmentMapping
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.runs import Run, RunReader

TellDamage = Callable[[str], None]
"""Is called with what is wrong with a file, before that is raised. Must not raise."""


def tell_nobody(reason: str) -> None:
    """Do nothing: the caller of such a reader reports damage itself."""


def open_reader(
    mapping: SegmentMapping,
    segment_seq: int,
    *,
    verifies_checksums: bool = True,
    tell_damage: TellDamage = tell_nobody,
) -> SegmentReader:
    """A reader of a mapped file. Raises what the readers raise."""
    try:
        if verifies_checksums:
            return CheckedReader(
                mapping.memory, segment_seq=segment_seq, freeze=mapping.freeze, tell_damage=tell_damage
            )
        return SegmentReader(mapping.memory, segment_seq=segment_seq)
    except FormatError as error:
        tell_damage(str(error))
        raise


def keep_nothing(start: int, end: int) -> None:
    """The `freeze` of memory that nobody else can change."""


class CheckedReader(SegmentReader):
    """A `SegmentReader` that proves each bundle before it returns any of it.

    Args:
        freeze: keeps a range of the memory as it is (`SegmentMapping.freeze`); `keep_nothing` for memory that nobody else can change.
        tell_damage: told when a method finds damage. What this constructor finds, its caller hears.

    Raises:
        ChecksumMismatch: the end of the file is damaged, or a file with one CRC for all is damaged anywhere.
        FormatError: as `SegmentReader`.
    """

    def __init__(
        self,
        memory: bytes | memoryview,
        *,
        segment_seq: int | None = None,
        freeze: Freeze = keep_nothing,
        tell_damage: TellDamage = tell_nobody,
    ) -> None:
        self._freeze = freeze
        self._tell_damage = tell_damage
        super().__init__(memory, segment_seq=segment_seq)
        with self._explained():
            self._integrity: Integrity = self._prove_once()

    def check(self, index: int) -> None:
        """Check one bundle against its checksum.

        Raises:
            ChecksumMismatch: the bundle is damaged; the reader's owner was told.
        """
        # No context manager: one would cost as much as the check of a small bundle.
        try:
            self._integrity.check(index)
        except FormatError as error:
            raise self._told(error) from error

    def schema(self, stream_id: int) -> pa.Schema:
        """Schema of a stream, after the parts of the file that describe it were checked once."""
        self._check_file()
        return super().schema(stream_id)

    def runs(
        self,
        indexes: Sequence[int],
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> list[Run]:
        """Read runs; a damaged bundle is in none, and nobody is told: whoever reads it by itself is."""
        if self._run_reader is None:
            self._run_reader = RunReader(self._view, self._streams, self.manifest, self._integrity.check)
        return super().runs(indexes, slots, columns)

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """Streams of the segment, after the parts of the file that describe them were checked once."""
        self._check_file()
        return super().streams

    @property
    def row_count(self) -> int:
        """Rows of the segment, after the parts of the file that hold the number were checked once."""
        self._check_file()
        return super().row_count

    @property
    def incarnation(self) -> bytes | None:
        """Incarnation of the directory that wrote the segment, 16 bytes; None in a file of another writer."""
        self._check_file()
        return super().incarnation

    def _check_file(self) -> None:
        try:
            self._integrity.check_file()
        except FormatError as error:
            raise self._told(error) from error

    def _told(self, error: FormatError) -> FormatError:
        named = self._named(error)
        self._tell_damage(str(named))
        return named

    def _load(self) -> None:
        # The first look says what to freeze; the second one is at what will stay.
        footer = self._read_footer()
        self._freeze(frozen_start(footer, self._view), self._view.nbytes)
        super()._load()

    def _prove_once(self) -> Integrity:
        footer, counts = self.footer, (len(self._streams), self.manifest.bundle_count)
        if footer.extension is not None and counts != (footer.stream_count, footer.bundle_count):
            raise ChecksumMismatch(
                f"the end of the file is damaged: it lists {counts[0]} streams and {counts[1]} bundles, its footer says "
                f"{footer.stream_count} and {footer.bundle_count}"
            )
        return integrity_of(Contents(self._view, self._freeze, footer, self._streams, self.manifest))
