"""What a batch read asks of an archive, where a core ends, and which losses a plan tells."""

from __future__ import annotations

import pytest

from quiver_actors.base.protocol.archive_messages import ArchivedHole
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import DataLost
from quiver_actors.flight.archived_contents import NOT_STORED, ArchivedPart, ArchiveTerms, Loss
from quiver_actors.flight.contract import CoreContents
from quiver_actors.spark.offsets import Place, position
from quiver_actors.spark.options import SourceOptions
from quiver_actors.spark.reader import end_of_stored, losses_of, tell_loss, wanted_of_archive

END = (1 << 47, 0)


def segment(segment_seq: int, bundles: int = 2, row_count: int = 2) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundles, row_count, 8, 0, 0)


def test_the_archive_of_a_node_is_asked_from_its_own_offsets_on() -> None:
    starts = {Place("a", 0): position(3, 1), Place("a", 1): position(2, 0), Place("b", 0): position(9, 9)}
    assert wanted_of_archive(SourceOptions(starting_offsets=starts), "a") == ArchiveTerms({0: (3, 1), 1: (2, 0)})
    assert wanted_of_archive(SourceOptions(starting_offsets="earliest"), "a") == ArchiveTerms()
    assert wanted_of_archive(SourceOptions(starting_unix_ns=7), "a") == ArchiveTerms(since_unix_ns=7)


def test_the_end_of_what_was_stored_is_behind_what_has_left_the_disk() -> None:
    assert end_of_stored(CoreContents(0, [], comes_next=5)) == position(5, 0)
    assert end_of_stored(CoreContents(0, [segment(2)], comes_next=5)) == position(5, 0)
    assert end_of_stored(CoreContents(0, [segment(2)])) == position(3, 0)
    unsealed = CoreContents(0, [segment(2)], unsealed=[segment(3, 4, -1)], comes_next=3)
    assert end_of_stored(unsealed) == position(3, 4)
    assert end_of_stored(CoreContents(0, [])) == 0


def test_losses_are_told_from_where_the_reader_stands() -> None:
    hole = ArchivedHole(4, 0, 2, "evicted")
    core = CoreContents(0, [segment(6)], comes_next=7, archived=ArchivedPart([segment(3), segment(5)], [hole], 5))
    assert list(losses_of(core, (0, 0), END)) == [Loss(4, 0, 2, "evicted")]
    assert list(losses_of(core, (5, 0), END)) == []
    assert list(losses_of(core, (1, 1), (3, 0))) == [Loss(1, 1, 0, NOT_STORED)]
    assert list(losses_of(core, (1, 1), (3, 0), tells_first=False)) == []
    without = CoreContents(0, [segment(6)], comes_next=7)
    assert list(losses_of(without, (1, 1), END)) == []


def test_a_loss_ends_the_read_or_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    what = f"a/0 of topic 't' lost {Loss(4, 0, 2, 'evicted')}"
    with pytest.raises(DataLost, match=r"2 bundles of segment 4 from bundle 0: evicted. .*failOnDataLoss=false"):
        tell_loss(SourceOptions(), what)
    tell_loss(SourceOptions(fail_on_data_loss=False), what)
    assert what in caplog.text
