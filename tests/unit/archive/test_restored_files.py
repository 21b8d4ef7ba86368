"""The small files of a restored directory: no key outlives its bundle, and nobody is told of what he has."""

from __future__ import annotations

import pytest

from quiver_actors.archive.restoring.plan import Loss
from quiver_actors.archive.restoring.small_files import archived_windows, with_notices
from quiver_actors.errors import SequenceGap
from quiver_actors.store.staged.keys import KeyRun, Windows
from quiver_actors.store.subscriber.gaps import decode_gaps, gaps_file_name
from quiver_actors.store.subscriber.progress import SegmentProgress, SubscriberProgress, encode_progress


def progress(oldest: int, entries: dict[int, tuple[int, int]] | None = None) -> bytes:
    """A progress file: entries as (bundles, bits of the resolved ones)."""
    found = {seq: SegmentProgress(count, bits.to_bytes(8, "little")) for seq, (count, bits) in (entries or {}).items()}
    return encode_progress(SubscriberProgress(oldest_incomplete_seg=oldest, entries=found, trusted_watermark=True))


def notices(files: dict[str, bytes], subscriber: str = "s") -> list[tuple[int, int, int]]:
    content = files.get(gaps_file_name(subscriber))
    if content is None:
        return []
    return [(each.segment_seq, each.bundle_index_first, each.bundle_count) for each in decode_gaps(content)]


LOSSES = [Loss(3, 4, is_sealed=True), Loss(4, 2, is_sealed=False), Loss(5, 0, is_sealed=False)]


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (progress(0), [(3, 0, 4), (4, 0, 2), (5, 0, 0)]),
        (progress(3, {3: (4, 0b0011)}), [(3, 2, 2), (4, 0, 2), (5, 0, 0)]),
        (progress(3, {3: (4, 0b0101)}), [(3, 1, 1), (3, 3, 1), (4, 0, 2), (5, 0, 0)]),
        (progress(4), [(4, 0, 2), (5, 0, 0)]),
        (progress(2, {3: (4, 0b1111)}), [(4, 0, 2), (5, 0, 0)]),
    ],
    ids=["nothing done", "begun", "holes", "done", "done above the watermark"],
)
def test_a_subscriber_is_told_of_what_it_had_not_done_with(file: bytes, told: list[tuple[int, int, int]]) -> None:
    files = with_notices({"quiver.sub.s": file, "other": b"x"}, LOSSES)
    assert notices(files) == told
    assert files["quiver.sub.s"] == file
    assert notices(with_notices(files, LOSSES)) == told, "again it is the same"


def test_a_damaged_file_stays_as_it_is_and_the_others_are_told() -> None:
    files = {"quiver.sub.s": b"damaged", "quiver.sub.t": progress(0)}
    found = with_notices(files, LOSSES)
    assert found["quiver.sub.s"] == b"damaged"
    assert notices(found) == []
    assert len(notices(found, "t")) == 3


def test_a_bundle_that_is_not_archived_is_stored_again_and_an_archived_one_is_not() -> None:
    windows = Windows()
    windows.recovered_in, windows.settled_in = 7, 8
    windows.add("p", KeyRun(10, 5, 2, 0, 100))
    windows.add("p", KeyRun(15, 5, 3, 0, 105))
    windows.add("q", KeyRun(1, 5, 9, 0, 0, core=1))
    windows.add("q", KeyRun(6, 5, 3, 5, 0))
    windows.add("r", KeyRun(1, 5, 0, 0, 0, core=2))
    kept = archived_windows(windows, 0, {0: 2, 1: 9})
    assert kept.stored("p", 10, 10) == [KeyRun(10, 5, 2, 0, 100)]
    assert kept.stored("q", 1, 10) == [KeyRun(1, 5, 9, 0, 0, core=1)]
    assert kept.stored("r", 1, 5) == []
    assert (kept.recovered_in, kept.settled_in) == (7, 8)
    # The producer may have got receipts up to any number: it goes on where it wants to.
    assert kept.stored("p", 40, 5) == []
    with pytest.raises(SequenceGap):
        windows.stored("p", 40, 5)
