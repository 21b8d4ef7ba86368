"""The files that a worker has sent to a connection of the tests: segments, and logs of which only what was announced is read."""

from __future__ import annotations

import array
import os

import pyarrow as pa

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.client.segments import map_segment
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal.entry_reader import EntryReader, LogEntries, Place


class ReceivedLog:
    """A log that becomes a segment."""

    def __init__(self, descriptor: int, segment_seq: int) -> None:
        mapping = map_segment(descriptor, os.fstat(descriptor).st_size, segment_seq)
        self._places: dict[int, Place] = {}
        self._reader = EntryReader(LogEntries(mapping.memory), self._places, segment_seq)

    def announced(self, indexes: list[int], places: bytes) -> None:
        self._places.update(zip(indexes, map(Place._make, PLACE.iter_unpack(places)), strict=True))

    def bundle(self, index: int) -> dict[int, pa.RecordBatch]:
        self._reader.check(index)
        return self._reader.decode(index)


class ReceivedFiles(dict[tuple[str, int], "SegmentReader | ReceivedLog"]):
    """The readers by topic and segment; that of a segment takes the place of its log's."""

    def opened(self, opened: m.SegmentOpened, descriptor: int) -> SegmentReader | ReceivedLog:
        reader: SegmentReader | ReceivedLog
        if opened.is_sealed:
            with open(descriptor, "rb") as file:
                reader = SegmentReader(file.read(), segment_seq=opened.segment_seq)
        else:
            reader = ReceivedLog(descriptor, opened.segment_seq)
        self[opened.topic, opened.segment_seq] = reader
        return reader

    def delivered(self, deliver: m.Deliver) -> list[int]:
        """The indexes of a delivery; where its bundles are is noted."""
        indexes = list(array.array("I", deliver.bundle_indexes))
        reader = self[deliver.topic, deliver.segment_seq]
        assert isinstance(reader, ReceivedLog) == bool(deliver.places), (
            "places come with bundles of logs, and with no others"
        )
        if isinstance(reader, ReceivedLog):
            reader.announced(indexes, deliver.places)
        return indexes
