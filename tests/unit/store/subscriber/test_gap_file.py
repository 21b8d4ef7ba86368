"""Gap notices: who has them, and their file: what was noted comes back, and damage is told from a newer program's file."""

from __future__ import annotations

import struct

import crc32c
import numpy as np
import pytest

from quiver_actors.errors import FormatError, InvalidFormat, UsageError
from quiver_actors.store.subscriber.gaps import REASONS, GapLedger, decode_gaps, gaps_file_name, gaps_subscriber_of

HEADER_BYTES, VERSION_AT, SIZE_AT, COUNT_AT, REASON_AT = 32, 8, 10, 12, 32


def ledger() -> GapLedger:
    found = GapLedger()
    for number, reason in enumerate(REASONS):
        found.add(number, 3, 2, 17, reason, 1)
    return found


CONTENT = ledger().encode(0)


def changed(offset: int, form: str, value: int) -> bytes:
    """Return the file with another value, and a checksum that fits."""
    body = bytearray(CONTENT[:-4])
    struct.pack_into(form, body, offset, value)
    return bytes(body) + crc32c.crc32c(bytes(body)).to_bytes(4, "little")


def test_what_was_noted_comes_back() -> None:
    found = decode_gaps(CONTENT)
    assert [(n.segment_seq, n.bundle_index_first, n.bundle_count, n.row_count, n.reason) for n in found] == [
        (number, 3, 2, 17, reason) for number, reason in enumerate(REASONS)
    ]
    assert found.untold_count == len(REASONS)
    assert found.encode(0) == CONTENT


def test_however_many_notices_were_noted_they_come_back() -> None:
    """A subscriber may stay away for months. Above a million its file was written, and refused at the next start."""
    count = 1_000_001
    one = GapLedger()
    one.add(7, 3, 2, 17, "expired", 1)
    content = one.encode(0)
    body = bytearray(content[:HEADER_BYTES] + content[HEADER_BYTES:-4] * count)
    struct.pack_into("<I", body, COUNT_AT, count)
    numbers = np.frombuffer(body, "<u8", offset=HEADER_BYTES).reshape(count, -1)
    numbers[:, 0] = np.arange(1, count + 1)
    found = decode_gaps(bytes(body) + crc32c.crc32c(bytes(body)).to_bytes(4, "little"))
    assert found.untold_count == count


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (changed(SIZE_AT, "<H", HEADER_BYTES - 1), InvalidFormat),
        (changed(COUNT_AT, "<I", len(REASONS) + 1), InvalidFormat),
        (changed(HEADER_BYTES + REASON_AT, "<B", len(REASONS)), InvalidFormat),
    ],
    ids=["header size", "count", "reason"],
)
def test_what_is_wrong_is_named(content: bytes, kind: type[FormatError]) -> None:
    with pytest.raises(kind):
        decode_gaps(content)


def test_a_reason_that_no_file_can_hold_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="because"):
        ledger().add(9, 0, 1, 1, "because", 1)


@pytest.mark.parametrize(
    "name",
    [
        "quiver.sub.a",
        "quiver.gaps.",
        "quiver.gaps.a.tmp",
        "quiver.gaps.a/b",
        "Quiver.gaps.a",
        "quiver.gaps",
        "a.quiver.gaps.b",
    ],
)
def test_other_files_are_the_gap_file_of_nobody(name: str) -> None:
    """A rescue, and the reader of a whole directory, go by the names."""
    assert gaps_subscriber_of(name) is None
    assert gaps_subscriber_of(gaps_file_name("a-B_1")) == "a-B_1"


# --- who has them ------------------------------------------------------------------------------------------------------------


def test_a_notice_is_with_one_owner_until_that_is_silent_for_too_long_or_goes() -> None:
    found = ledger()
    first = found.next_untold()
    assert first is not None
    found.give(first, "ann", 100)
    second = found.next_untold()
    assert second is not None
    assert (first.segment_seq, second.segment_seq) == (0, 1)
    found.give(second, "bob", 0)
    assert found.next_due_ns() == 100
    assert not found.due(99)
    assert found.due(100)
    assert found.next_untold() is first
    assert (found.next_due_ns(), found.due(1 << 60)) == (None, False), "the other one is bob's as long as he lives"
    assert not found.release("ann")
    assert found.release("bob")
    found.give(first, "ann", 0)
    assert found.next_untold() is second


def test_an_acknowledgement_is_right_from_who_has_the_notice_and_of_what_is_done_with_from_anybody() -> None:
    found = ledger()
    first = found.next_untold()
    assert first is not None
    assert not found.is_given(first.notice, "ann"), "nobody has it yet"
    found.give(first, "ann", 0)
    assert [found.is_given(first.notice, owner) for owner in ("ann", "bob")] == [True, False]
    found.ack(first.notice)
    assert found.is_given(first.notice, "bob"), "told before: saying so again is no error"
    found.withdraw(2)
    assert found.is_given(2, "bob"), "there is none any more"


def test_the_time_of_a_former_owner_does_not_count_for_the_next() -> None:
    found = ledger()
    notice = found.next_untold()
    assert notice is not None
    found.give(notice, "ann", 100)
    assert found.release("ann")
    found.give(notice, "bob", 200)
    assert found.next_due_ns() == 200
    assert not found.due(199)
    found.ack(notice.notice)
    assert (found.next_due_ns(), found.due(200)) == (None, False)


def test_what_was_told_stays_in_the_file_until_the_progress_that_counts_it_is_durable() -> None:
    found = ledger()
    version = found.changes.version
    found.ack(1)
    assert found.changes.version > version
    version = found.changes.version
    found.ack(1)
    found.ack(99)
    assert found.changes.version == version, "said before, and never noted: nothing to write"
    again = decode_gaps(found.encode(0))
    assert [(notice.notice, notice.is_told) for notice in again] == [(1, True), (2, False), (3, False), (4, False)]
    assert again.untold_count == 3
    following = again.next_untold()
    assert following is not None
    assert following.notice == 2
    assert [notice.notice for notice in decode_gaps(found.encode(1))] == [2, 3, 4]
