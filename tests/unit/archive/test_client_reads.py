"""What a client reads through the archiver: fetched ahead in a range, or before it is asked for; not lost for want of an archiver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.archive.serving import ArchiveReads
from quiver_actors.base.protocol.archive_messages import OpenArchived
from quiver_actors.base.protocol.messages import SegmentInfo, TopicInfo
from quiver_actors.client.archive_door import ArchiveDoor
from quiver_actors.client.archived_reads import ArchivedReads, ArchivedStream
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.projection import EVERYTHING
from quiver_actors.client.ranges import SegmentPart, parts_of
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import DataLost, StorageUnavailable
from tests.integration.capped_node import wait_until
from tests.support.archived import INCARNATION
from tests.unit.archive.test_serving import Served

STREAM = ArchivedStream("default", 0, INCARNATION)
SLOTS = TopicSlots(TopicInfo("default", {}, "wal", 0))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.server.close()


@pytest.fixture
def reads(served: Served) -> Iterator[ArchivedReads]:
    reads = ArchivedReads(ArchiveDoor(served, timeout_seconds=30.0))  # type: ignore[arg-type]
    yield reads
    reads.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments that the archiver was asked for."""
    found: list[int] = []
    plain = ArchiveReads.opened

    def noted(self: ArchiveReads, request: OpenArchived) -> object:
        found.append(request.segment_seq)
        return plain(self, request)

    monkeypatch.setattr(ArchiveReads, "opened", noted)
    return found


def test_the_next_segments_of_a_range_are_fetched_while_one_is_read(reads: ArchivedReads, asked: list[int]) -> None:
    stream = reads.since(STREAM, 0, [])
    parts = [SegmentPart(seq, 0, 3) for seq in range(2)]
    segments = reads.segments(stream, parts, SLOTS, EVERYTHING)
    first = next(segments)
    assert StoredBundle(first, 0).batch.column(0)[0].as_py() == 0
    assert asked == [0]
    assert StoredBundle(first, 1).batch.column(0)[0].as_py() == 1
    wait_until(lambda: asked == [0, 1], "the next segment is asked for")
    second = next(segments)
    assert [StoredBundle(second, index).batch.column(0)[0].as_py() for index in range(3)] == [10, 11, 12]
    assert list(segments) == []
    assert asked == [0, 1]


def test_what_was_fetched_before_needs_no_archiver_and_what_failed_says_so(
    reads: ArchivedReads, served: Served
) -> None:
    kept, lost = (reads.later(STREAM, seq, SLOTS, EVERYTHING) for seq in (0, 2))
    kept.fetch([0, 1])
    lost.fetch([0, 7])
    served.server.close()
    assert StoredBundle(kept, 1).batch.column(0)[0].as_py() == 1
    assert kept.runs([0, 1]) == []
    for index in (0, 7):
        with pytest.raises(DataLost):
            StoredBundle(lost, index).batch  # noqa: B018
    gone = reads.later(STREAM, 9, SLOTS, EVERYTHING)
    served.server = served.started()
    gone.fetch([0])
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="does not know it"):
            gone.check(0)


def test_a_bundle_is_not_lost_because_there_is_no_archiver(reads: ArchivedReads, served: Served) -> None:
    later = reads.later(STREAM, 0, SLOTS, EVERYTHING)
    served.server.close()
    with pytest.raises(StorageUnavailable, match="the node has no archiver"):
        later.check(0)
    served.server = served.started()
    later.check(0)


def info(segment_seq: int, start: int, end: int, bundle_count: int = 3, lost_count: int = 0) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundle_count, 3, 100, 1, 1, True, start, end, lost_count)


def next_log(segment_seq: int, position: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, 0, -1, 0, 0, 0, position_start=position, position_end=position)


@pytest.mark.parametrize(
    ("on_disk", "gone", "parts"),
    [
        pytest.param([info(0, 0, 20), next_log(2, 40)], {1}, [(0, 3), (1, 3)], id="archived"),
        pytest.param([info(0, 0, 20), next_log(3, 60)], {1, 2}, [(0, 3), (1, 3), (2, 4)], id="lost everywhere"),
        pytest.param([info(0, 0, 20), next_log(1, 20)], set(), [(0, 3)], id="nothing is missing"),
        pytest.param([info(0, 0, 20), next_log(1024, 20)], set(), [(0, 3)], id="numbers jump"),
        pytest.param([info(0, 0, 20, 3, 1), next_log(1, 20)], {0}, [(0, 3)], id="archived since"),
        pytest.param([info(0, 0, 10, 1), next_log(1, 20)], {0}, [(0, 3)], id="rescued without its end"),
        pytest.param([info(0, 0, 10, 1), info(1, 20, 30)], {0}, [(0, 3), (1, 3)], id="and something behind it"),
    ],
)
def test_what_is_missing_at_the_end_of_the_disk_is_read_in_the_archive(
    reads: ArchivedReads, on_disk: list[SegmentInfo], gone: set[int], parts: list[tuple[int, int]]
) -> None:
    stream = reads.before("default", 0, None, on_disk, INCARNATION)
    assert stream.gone == gone
    found = parts_of(stream.and_disk(on_disk), None, None, "default", 0, stream.through)
    assert found == [SegmentPart(seq, 0, end) for seq, end in parts]


def test_a_range_does_not_go_on_behind_bundles_that_it_leaves_out(reads: ArchivedReads) -> None:
    """The archive has more of the open segment by now, and a segment behind it."""
    on_disk = [info(0, 0, 20, 3, 1), SegmentInfo(1, 2, -1, 40, 1, 1, position_start=20, position_end=30)]
    stream = reads.before("default", 0, None, on_disk, INCARNATION)
    found = parts_of(stream.and_disk(on_disk), None, None, "default", 0, stream.through)
    assert found == [SegmentPart(0, 0, 3), SegmentPart(1, 0, 2)]
