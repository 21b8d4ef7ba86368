"""What a client reads through the archiver: fetched ahead in a range, or before it is asked for; not lost for want of an archiver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.archive.serving import ArchiveReads
from quiver_actors.base.protocol.archive_messages import OpenArchived
from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.client.archive_door import ArchiveDoor
from quiver_actors.client.archived_reads import ArchivedReads, ArchivedStream
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.projection import EVERYTHING
from quiver_actors.client.ranges import SegmentPart
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
