"""The job that computes the statistics of one segment's columns, a slice of a few milliseconds at a time.

It works on a private copy of the file, which has to match its checksum: a disk that fails must not end the process, and bounds of damaged
values would hide the damage from whoever prunes by them. What cannot be decoded has no statistics, and costs nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
from collections.abc import Collection, Generator, Iterator
from typing import Any

import pyarrow as pa

from quiver_actors.base.units import MIB
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.summaries import StoredSchema, StoredSchemas
from quiver_actors.store.jobs.upkeep import SlicedJob
from quiver_actors.store.segment.arrow_file import BLOCK, read_file_footer
from quiver_actors.store.segment.bodies import has_compressed_body
from quiver_actors.store.segment.check import STEP_BYTES, verify_steps
from quiver_actors.store.segment.codec import StreamInfo
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.statistics import ColumnSums, encode_statistics
from quiver_actors.store.segment.stored_schemas import read_schemas
from quiver_actors.supervisor.log import log_event

SEGMENT_BYTES_MAX = 128 * MIB
"""A larger segment has no statistics: the job would take as much memory."""
_BATCHES_AT_ONCE = 64
_UNREADABLE = (DiskError, FormatError, pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError)


class StatisticsJob(SlicedJob):
    """Compute the statistics of a segment. `statistics` is empty where there are none to be had; `streams` are the schemas they are of."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        segment_seq: int,
        identity: bytes,
        bounded: Collection[str] | None = None,
    ) -> None:
        """
        Args:
            identity: of the segment as the engine knows it.
            bounded: the columns that get bounds; None: the first ones of each schema.
        """
        self._bounded = bounded
        self.identity = identity
        self.streams: StoredSchemas = ()
        self.statistics = b""
        super().__init__(disk, paths, segment_seq)

    def steps(self) -> Generator[int, None, None]:
        """Copy the file, prove it, and go through its batches, some at a step."""
        path = self._paths.segment(self.segment_seq)
        try:
            memory = yield from self._copied(path)
            if memory is None:
                return
            with contextlib.closing(_Computation(memoryview(memory), self._bounded)) as computation:
                yield from computation.verified()
                yield from computation.steps()
                self.streams, self.statistics = computation.streams, computation.encoded()
        except _UNREADABLE as error:
            log_event("statistics.none", {"path": path, "reason": str(error)}, logging.DEBUG)

    def _copied(self, path: str) -> Generator[int, None, mmap.mmap | None]:
        """The bytes of the file; None if they are too many. It is open during a step only: a deletion must find no reader."""
        memory: mmap.mmap | None = None
        while memory is None or memory.tell() < len(memory):
            file = self._disk.open_read(path)
            try:
                if memory is None:
                    if not 0 < file.size() <= SEGMENT_BYTES_MAX:
                        return None
                    memory = mmap.mmap(-1, file.size())
                data = file.read(min(STEP_BYTES, len(memory) - memory.tell()), memory.tell())
            finally:
                file.close()
            if not data:
                return None
            memory.write(data)
            yield len(data)
        return memory


def compute_statistics(view: memoryview, bounded: Collection[str] | None = None) -> tuple[StoredSchemas, bytes]:
    """The schemas of a segment, and the statistics of its columns; empty where there are none to be had.

    Args:
        view: the whole file, which was found to have its checksum.
        bounded: as of `StatisticsJob`.
    """
    try:
        with contextlib.closing(_Computation(view[:], bounded)) as computation:
            if view.nbytes > SEGMENT_BYTES_MAX:
                return computation.streams, b""
            for _ in computation.steps():
                continue
            return computation.streams, computation.encoded()
    except _UNREADABLE as error:
        log_event("statistics.none", {"reason": str(error)}, logging.DEBUG)
        return (), b""


class _Computation:
    """The statistics of a segment in memory, schema by schema."""

    def __init__(self, view: memoryview, bounded: Collection[str] | None) -> None:
        self._bounded = bounded
        self._view = view
        self.streams = read_schemas(self._piece, view.nbytes)
        self._sums: dict[StoredSchema, ColumnSums | None] = {}

    def _piece(self, length: int, offset: int) -> bytes:
        return bytes(self._view[offset : offset + length])

    def verified(self) -> Iterator[int]:
        yield from verify_steps(self._piece, self._view.nbytes)

    def steps(self) -> Iterator[int]:
        for stream in SegmentReader(self._view).streams:
            start, end = stream.byte_offset, stream.byte_offset + stream.byte_length
            footer = read_file_footer(self._piece, start, end)
            schema = StoredSchema(stream.slot_id, footer.schema_message or b"")
            for number, message in enumerate(self._messages(start, footer.batch_blocks + footer.dictionary_blocks)):
                if has_compressed_body(message):
                    self._sums[schema] = None  # nothing bounds what it becomes
                if number % _BATCHES_AT_ONCE == 0:
                    yield 0
            yield from self._add(stream, schema)

    def _messages(self, start: int, blocks: bytes) -> Iterator[bytes]:
        for offset, metadata_bytes, _, _ in BLOCK.iter_unpack(blocks):
            yield self._piece(metadata_bytes, start + offset)

    def _add(self, stream: StreamInfo, schema: StoredSchema) -> Iterator[int]:
        buffer = pa.py_buffer(self._view[stream.byte_offset : stream.byte_offset + stream.byte_length])
        batches = pa.ipc.open_file(buffer)
        sums = self._sums.setdefault(schema, ColumnSums(batches.schema, self._bounded))
        for first in range(0, batches.num_record_batches if sums is not None else 0, _BATCHES_AT_ONCE):
            some = range(first, min(first + _BATCHES_AT_ONCE, batches.num_record_batches))
            found = [batches.get_batch(number) for number in some]
            for batch in found:
                batch.validate()
            assert sums is not None
            sums.add(found)
            yield len(found)

    def encoded(self) -> bytes:
        packed: list[list[list[Any]] | None] = []
        for schema, _ in self.streams:
            sums = self._sums.get(schema)
            packed.append(None if sums is None else sums.packed())
        return encode_statistics(packed)

    def close(self) -> None:
        """Let go of the memory, into which batches may still point."""
        with contextlib.suppress(BufferError):
            self._view.release()
