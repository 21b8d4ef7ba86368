"""Live words and sequence locks, within one process."""

from __future__ import annotations

import mmap

import pytest

from quiver_actors.shm import words as words_module
from quiver_actors.shm.errors import ShmError, WriterStuck
from quiver_actors.shm.words import (
    WORD_MAX,
    SequenceLock,
    Words,
    fence,
    read_stable,
)


def memory(size_bytes: int = 4096) -> memoryview:
    return memoryview(mmap.mmap(-1, size_bytes))


def test_words_store_lands_little_endian_at_its_offset() -> None:
    page = memory()
    Words(page, 64, 2).store(1, 0x0102030405060708)
    assert page[72:80].tobytes() == bytes([8, 7, 6, 5, 4, 3, 2, 1])


def test_words_add_and_load_many_return_what_was_stored() -> None:
    words = Words(memory(), 0, 4)
    words.store(0, WORD_MAX)
    words.add(2, 5)
    words.add(2, -2)
    assert words.load_many(0, 4) == [WORD_MAX, 0, 3, 0]
    assert words.load(2) == 3


@pytest.mark.parametrize(("offset_bytes", "count"), [(4, 1), (-8, 1), (4096, 1), (4088, 2), (0, 0), (0, 513)])
def test_words_outside_or_unaligned_are_refused(offset_bytes: int, count: int) -> None:
    with pytest.raises(ShmError, match="not aligned inside 4096 bytes"):
        Words(memory(), offset_bytes, count)


@pytest.mark.parametrize("value", [-1, WORD_MAX + 1, 1.5, "1"])
def test_words_store_of_no_u64_is_refused_and_keeps_the_word(value: int) -> None:
    words = Words(memory(), 0, 1)
    words.store(0, 7)
    with pytest.raises(ShmError, match="word 0"):
        words.store(0, value)
    assert words.load(0) == 7


def test_words_add_below_zero_is_refused_and_keeps_the_word() -> None:
    words = Words(memory(), 0, 1)
    words.store(0, 7)
    with pytest.raises(ShmError):
        words.add(0, -8)
    assert words.load(0) == 7


def test_words_index_outside_is_refused() -> None:
    words = Words(memory(), 0, 2)
    with pytest.raises(ShmError):
        words.load(2)
    with pytest.raises(ShmError):
        words.store(2, 0)
    with pytest.raises(ShmError):
        words.add(2, 1)


def test_words_released_refuse_every_use() -> None:
    words = Words(memory(), 0, 2)
    words.release()
    words.release()
    for use in (
        lambda: words.load(0),
        lambda: words.store(0, 1),
        lambda: words.add(0, 1),
        lambda: words.load_many(0, 1),
    ):
        with pytest.raises(ShmError, match="released"):
            use()


@pytest.mark.parametrize("weakly_ordered", [False, True])
def test_record_changed_under_its_lock_is_read_back_whole(
    monkeypatch: pytest.MonkeyPatch, weakly_ordered: bool
) -> None:
    monkeypatch.setattr(words_module, "WEAKLY_ORDERED", weakly_ordered)
    page = memory()
    words, record = Words(page, 128, 1), page[136:149]
    assert read_stable(words, 0, record.tobytes) == bytes(13)
    with SequenceLock(words, 0):
        record[:] = b"thirteen byte"
    assert read_stable(words, 0, record.tobytes) == b"thirteen byte"


def test_record_whose_writer_died_inside_is_reported_and_repaired_by_the_next_change() -> None:
    page = memory()
    words, record = Words(page, 0, 1), page[8:16]
    SequenceLock(words, 0).__enter__()
    with pytest.raises(WriterStuck, match="died or stopped"):
        read_stable(words, 0, record.tobytes)
    with SequenceLock(words, 0):
        record[:] = b"repaired"
    assert read_stable(words, 0, record.tobytes) == b"repaired"
    assert words.load(0) % 2 == 0


def test_read_stable_repeats_a_reading_that_a_change_fell_into() -> None:
    words = Words(memory(), 0, 2)
    lock = SequenceLock(words, 0)
    changes = iter([1, 2])

    def read() -> int:
        found = words.load(1)
        for value in changes:
            with lock:
                words.store(1, value)
            break
        return found

    assert read_stable(words, 0, read) == 2


def test_read_stable_of_a_record_that_never_rests_gives_up() -> None:
    words = Words(memory(), 0, 2)
    lock = SequenceLock(words, 0)

    def read() -> None:
        with lock:
            words.add(1, 1)

    with pytest.raises(WriterStuck):
        read_stable(words, 0, read)


def test_fence_returns() -> None:
    fence()
