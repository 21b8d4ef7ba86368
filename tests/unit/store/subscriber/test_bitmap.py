"""Bitmaps of resolved bundles."""

from __future__ import annotations

import pytest

from quiver_actors.store.subscriber import bitmap


@pytest.mark.parametrize(("bundles", "words"), [(0, 0), (1, 1), (64, 1), (65, 2), (65_535, 1024), (65_536, 1024)])
def test_word_count_rounds_up(bundles: int, words: int) -> None:
    assert bitmap.word_count(bundles) == words
    assert len(bitmap.full(bundles)) == words * 8
    assert bitmap.resolved_count(bitmap.full(bundles)) == bundles


def test_bits_are_least_significant_first() -> None:
    assert bitmap.full(3) == b"\x07" + bytes(7)
    assert bitmap.full(65) == b"\xff" * 8 + b"\x01" + bytes(7)


def test_resized_clears_what_is_beyond_and_keeps_the_rest() -> None:
    assert bitmap.resized(bitmap.full(130), 65) == bitmap.full(65)
    assert bitmap.resized(bitmap.full(3), 200) == b"\x07" + bytes(31)
    assert bitmap.resized(b"", 1) == bytes(8)
    assert bitmap.resized(bitmap.full(3), 0) == b""


def test_first_unresolved_is_the_lowest_clear_bit() -> None:
    assert bitmap.first_unresolved(b"\x05" + bytes(7)) == 1
    assert bitmap.first_unresolved(bytes(8)) == 0
    assert bitmap.first_unresolved(bitmap.full(64)) == 64


def test_unresolved_runs_cover_exactly_the_clear_bits() -> None:
    assert bitmap.unresolved_runs(b"\x05" + bytes(7), 3) == [(1, 1)]
    assert bitmap.unresolved_runs(b"\x05" + bytes(7), 10) == [(1, 1), (3, 7)]
    assert bitmap.unresolved_runs(b"", 70) == [(0, 70)]
    assert bitmap.unresolved_runs(bitmap.full(70), 70) == []
    assert bitmap.unresolved_runs(b"", 0) == []


def test_indexes_are_those_of_the_set_bits() -> None:
    wanted = [0, 1, 63, 64, 700]
    assert bitmap.indexes(sum(1 << index for index in wanted)) == wanted
    assert bitmap.indexes(0) == []
