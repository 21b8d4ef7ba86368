"""The journal of progress, byte for byte, and what is left of a damaged one."""

from __future__ import annotations

import struct
from pathlib import Path

import crc32c
import pytest

from quiver_actors.errors import InvalidFormat
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.subscriber.progress_journal import (
    FoundJournal,
    JournalRecord,
    base_of,
    current_content,
    decode_progress_journal,
    encode_frame,
    encode_header,
)

MARKER = bytes(range(240, 248))
FRAMES = [
    [JournalRecord("ann", 1, b"one"), JournalRecord("ben", 2, b"two, and more")],
    [JournalRecord("ann", 1, b"three")],
    [JournalRecord("cat", 3, b""), JournalRecord("ann", 1, b"four" * 9)],
]
LATEST = {"ann": FRAMES[2][1], "ben": FRAMES[0][1], "cat": FRAMES[2][0]}


def journal(frames: list[list[JournalRecord]] = FRAMES) -> bytes:
    return encode_header(MARKER) + b"".join(encode_frame(MARKER, records) for records in frames)


def ends() -> list[int]:
    """Where each frame ends."""
    return [len(journal(FRAMES[:count])) for count in range(len(FRAMES) + 1)]


def test_the_bytes_are_those_of_the_page() -> None:
    header = encode_header(MARKER)
    assert header[:20] == b"QUIVPRJ\0" + struct.pack("<HH", 1, 24) + MARKER
    body = struct.pack("<HII", 3, 7, 2) + b"ann" + b"xy"
    frame = MARKER + struct.pack("<I", len(body)) + body
    assert encode_frame(MARKER, [JournalRecord("ann", 7, b"xy")]) == frame + struct.pack("<I", crc32c.crc32c(frame))


def test_the_last_record_of_each_subscriber_counts() -> None:
    assert decode_progress_journal(journal()) == FoundJournal(LATEST, 3, False)
    assert decode_progress_journal(encode_header(MARKER)) == FoundJournal({}, 0, False)


def test_a_journal_that_is_cut_anywhere_has_the_frames_before_and_is_not_damaged() -> None:
    for end in range(24, len(journal())):
        found = decode_progress_journal(journal()[:end])
        whole = sum(end >= each for each in ends()[1:])
        assert found == FoundJournal(decode_progress_journal(journal(FRAMES[:whole])).latest, whole, False), end
    for end in range(24):
        with pytest.raises(DAMAGE):
            decode_progress_journal(journal()[:end])


def test_a_flipped_bit_costs_its_frame_and_no_other() -> None:
    content = journal()
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        if bit // 8 < 24:
            with pytest.raises(DAMAGE):
                decode_progress_journal(bytes(flipped))
            continue
        hit = sum(bit // 8 >= each for each in ends()[1:])
        rest = [frame for number, frame in enumerate(FRAMES) if number != hit]
        known = decode_progress_journal(journal(rest)).latest
        # Damage to the last frame cannot be told from a torn one.
        assert decode_progress_journal(bytes(flipped)) == FoundJournal(known, 2, hit < 2), bit


def test_zeroes_and_garbage_behind_the_last_frame_mean_nothing() -> None:
    for rest in (
        bytes(5000),
        b"\xff" * 700,
        encode_frame(MARKER, FRAMES[0])[:-1],
        encode_frame(b"another!", FRAMES[0]),
    ):
        assert decode_progress_journal(journal() + rest) == FoundJournal(LATEST, 3, False)


def test_what_a_subscriber_makes_its_progress_say_is_no_frame() -> None:
    forged = encode_frame(b"guessed!", [JournalRecord("ben", 2, b"all is done")])
    content = journal([[JournalRecord("ann", 1, forged)]])
    assert set(decode_progress_journal(content).latest) == {"ann"}
    assert decode_progress_journal(content[:-1]).latest == {}


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<HII", 3, 7, 200) + b"ann",
        struct.pack("<HII", 3, 7, 0)[:-1],
        struct.pack("<HII", 2, 7, 0) + b"\xff\xfe",
    ],
    ids=["content too long", "half a record", "no name"],
)
def test_a_whole_frame_that_makes_no_sense_is_damage(body: bytes) -> None:
    frame = MARKER + struct.pack("<I", len(body)) + body
    with pytest.raises(InvalidFormat):
        decode_progress_journal(encode_header(MARKER) + frame + struct.pack("<I", crc32c.crc32c(frame)))


def test_a_record_counts_only_on_top_of_its_own_file() -> None:
    content = b"progress" + struct.pack("<I", 77)
    record = JournalRecord("ann", 77, b"newer progress")
    assert base_of(content) == 77
    assert current_content(content, record) == b"newer progress"
    assert current_content(content, None) == content
    for other in (b"", b"abc", content + b"x", b"progress" + struct.pack("<I", 78)):
        assert current_content(other, record) == other


def test_the_name_is_one_that_older_programs_reap() -> None:
    from quiver_actors.store.files.paths import TEMPORARY_SUFFIX, EnginePaths

    assert Path(EnginePaths("root").progress_journal).suffix == TEMPORARY_SUFFIX
