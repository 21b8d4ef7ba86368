"""The file of gap notices: what was noted comes back, and damage is told from a newer program's file."""

from __future__ import annotations

import struct

import crc32c
import pytest

from quiver_actors.errors import ChecksumMismatch, FormatError, InvalidFormat, Truncated, UnsupportedVersion, UsageError
from quiver_actors.subscriber.gaps import REASONS, GapLedger, decode_gaps, gaps_file_name, gaps_subscriber_of

HEADER_BYTES, VERSION_AT, SIZE_AT, COUNT_AT, REASON_AT = 32, 8, 10, 12, 32


def ledger() -> GapLedger:
    found = GapLedger()
    for number, reason in enumerate(REASONS):
        found.add(number, 3, 2, 17, reason, 1)
    return found


CONTENT = ledger().encode(0)


def changed(offset: int, form: str, value: int) -> bytes:
    """With a checksum that fits."""
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


@pytest.mark.parametrize("length", range(0, len(CONTENT), 7))
def test_a_file_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(FormatError):
        decode_gaps(CONTENT[:length])


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", Truncated),
        (changed(0, "<B", 0), InvalidFormat),
        (CONTENT[:40] + bytes([CONTENT[40] ^ 1]) + CONTENT[41:], ChecksumMismatch),
        (changed(VERSION_AT, "<H", 2), UnsupportedVersion),
        (changed(SIZE_AT, "<H", HEADER_BYTES - 1), InvalidFormat),
        (changed(COUNT_AT, "<I", len(REASONS) + 1), InvalidFormat),
        (changed(HEADER_BYTES + REASON_AT, "<B", len(REASONS)), InvalidFormat),
    ],
    ids=["empty", "magic", "bit", "version", "header size", "count", "reason"],
)
def test_what_is_wrong_is_named(content: bytes, kind: type[FormatError]) -> None:
    with pytest.raises(kind):
        decode_gaps(content)


def test_a_reason_that_no_file_can_hold_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="because"):
        ledger().add(9, 0, 1, 1, "because", 1)


def test_only_files_of_subscribers_are_theirs() -> None:
    assert gaps_subscriber_of(gaps_file_name("ann")) == "ann"
    assert gaps_subscriber_of("quiver.sub.ann") is None
    assert gaps_subscriber_of("quiver.gaps.ann.tmp") is None
