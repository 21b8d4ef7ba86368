"""A segment that is mapped and archived: each bundle is read where it is whole, and no damaged byte is ever shown."""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa
import pytest

from quiver_actors.base.protocol.archive_messages import ArchivedHole
from quiver_actors.base.protocol.messages import SegmentInfo, TopicInfo
from quiver_actors.client.archived_reader import ArchivedReader, ArchivedSegment
from quiver_actors.client.archived_reads import ArchivedStream
from quiver_actors.client.segments import BundleReader, MappedSegment
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.two_copies import TwoCopies, has_lost
from quiver_actors.errors import DataLost, FormatError, NotStored, StorageUnavailable
from quiver_actors.store.segment.ranged import RangedReader
from quiver_actors.store.segment.reader import SegmentReader
from tests.unit.store.segment.logfile import LogFile
from tests.unit.store.segment.test_ranged import Blocks

SLOTS = TopicSlots(TopicInfo("default", {}, "wal", 0))
COUNT = 4


def sealed(lost: tuple[int, ...] = ()) -> bytes:
    log = LogFile(0)
    for number in range(COUNT):
        if number in lost:
            log.builder.append(100 + number, 0, -1, 0, [])
        else:
            log.push({0: pa.record_batch({"id": [number], "name": [f"bundle {number}"]})})
    return log.seal()


def mapped(
    content: bytes, archived: bytes | None, asked: list[BundleReader | None], sent: bytes | None = None
) -> MappedSegment:
    """The segment of a file, what was archived of it (None: nothing), and what the store sends of that now."""
    descriptor = os.memfd_create("segment", os.MFD_CLOEXEC)
    os.write(descriptor, content)

    def second(here: BundleReader | None) -> BundleReader:
        asked.append(here)
        if archived is None:
            raise NotStored("nothing of it is archived")
        reader = archived_reader(archived, sent)
        return reader if here is None else TwoCopies(here, reader)

    segment = MappedSegment.sealed(descriptor, len(content), 0, SLOTS, 0)
    segment.have_second_copy(second)
    return segment


def archived_reader(content: bytes, sent: bytes | None = None) -> ArchivedReader:
    def copy(number: int) -> RangedReader:
        if number:
            raise NotStored("there is one copy")
        return RangedReader(Blocks(content, sent=sent), segment_seq=0)

    return ArchivedReader(ArchivedSegment("segment 0", COUNT, COUNT, True, lambda _: "damaged"), copy)


def read(segment: MappedSegment, index: int) -> tuple[pa.RecordBatch, tuple[int, ...], int | None]:
    segment.check(index)
    return segment.batch(index, 0), segment.slot_ids(index), segment.ingestion_ts_nanos(index)


def damaged(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


def test_a_byte_that_flips_on_the_disk_costs_nothing_and_in_both_copies_it_is_told() -> None:
    content = sealed()
    whole = [read(mapped(content, None, []), index) for index in range(COUNT)]
    was_told = 0
    for at in range(0, len(content), 29):
        asked: list[BundleReader | None] = []
        one = mapped(damaged(content, at), content, asked)
        assert [read(one, index) for index in range(COUNT)] == whole
        assert len(asked) <= 1
        both = mapped(damaged(content, at), content, [], sent=damaged(content, at))
        for index in range(COUNT):
            try:
                assert read(both, index) == whole[index]
            except FormatError:
                was_told += 1
    assert was_told > COUNT


def test_a_lost_bundle_is_read_in_the_archive_or_is_lost() -> None:
    here, content = sealed(lost=(1, 2)), sealed()
    asked: list[BundleReader | None] = []
    segment = mapped(here, content, asked)
    assert read(segment, 0) == read(mapped(content, None, []), 0)
    assert asked == [], "nobody is asked for what is here"
    assert read(segment, 2)[0].column(0).to_pylist() == [2]
    assert len(asked) == 1
    for archived in (None, here):
        segment = mapped(here, archived, [])
        for _ in range(2):
            with pytest.raises(DataLost):
                segment.check(1)
        assert read(segment, 3)[0].column(0).to_pylist() == [3]


def test_an_archive_that_is_away_is_asked_again() -> None:
    asked: list[BundleReader | None] = []
    segment = mapped(sealed(lost=(1,)), sealed(), asked)
    there: list[Callable[[BundleReader | None], BundleReader]] = []

    def away(here: BundleReader | None) -> BundleReader:
        if not there:
            raise StorageUnavailable("the store is away")
        return there[0](here)

    segment.have_second_copy(away)
    with pytest.raises(StorageUnavailable):
        segment.check(1)
    there.append(lambda here: TwoCopies(here or SegmentReader(sealed()), archived_reader(sealed())))
    assert read(segment, 1)[0].column(0).to_pylist() == [1]


def test_whoever_reads_both_copies_at_once_sees_one_segment() -> None:
    content, here = sealed(), SegmentReader(sealed(lost=(0,)))
    assert has_lost(here, 0, 1)
    assert not has_lost(here, 1, COUNT)
    whole, both = SegmentReader(content), TwoCopies(here, archived_reader(content))
    assert [both.is_lost(index) for index in range(COUNT)] == [False] * COUNT
    assert [both.bundle(index) for index in range(COUNT)] == [whole.bundle(index) for index in range(COUNT)]
    assert [both.decode_batch(index, 0) for index in range(COUNT)] == [whole.decode_batch(i, 0) for i in range(COUNT)]
    assert [both.byte_count(index) for index in range(COUNT)] == [whole.byte_count(index) for index in range(COUNT)]
    assert [both.item_count(index) for index in range(COUNT)] == [whole.item_count(index) for index in range(COUNT)]
    assert (both.bundle_count, both.streams, both.runs([0])) == (COUNT, whole.streams, [])
    assert both.schema(whole.streams[0].stream_id).equals(whole.schema(whole.streams[0].stream_id))


@pytest.mark.parametrize(
    ("archived", "holes", "has_more"),
    [
        (SegmentInfo(1, 4, 4, 100, 1, 1), [], True),
        (SegmentInfo(1, 4, 4, 100, 1, 1), [(1, 0, 1)], True),
        (SegmentInfo(1, 4, 4, 100, 1, 1), [(1, 0, 2)], False),
        (SegmentInfo(1, 4, 4, 100, 1, 1), [(2, 0, 2)], True),
        (SegmentInfo(1, 4, 4, 100, 1, 1), [(1, 3, 0)], False),
        (SegmentInfo(1, 3, 3, 100, 1, 1), [], False),
        (SegmentInfo(1, 4, 0, 0, 0, 0), [], False),
        (SegmentInfo(2, 4, 4, 100, 1, 1), [], False),
    ],
)
def test_the_archive_is_read_where_less_is_lost(
    archived: SegmentInfo, holes: list[tuple[int, int, int]], *, has_more: bool
) -> None:
    stream = ArchivedStream(
        "t", 0, "i", {archived.segment_seq: archived}, [ArchivedHole(*hole, "damaged") for hole in holes]
    )
    assert stream.has_more_of(SegmentInfo(1, 4, 2, 90, 1, 1, lost_count=2)) is has_more
