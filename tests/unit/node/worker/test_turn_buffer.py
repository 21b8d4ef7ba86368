"""Copies in one turn's memory."""

from __future__ import annotations

import pytest

from quiver_actors.node.worker.turn_buffer import TurnBuffer


def test_spans_of_a_turn_are_separate_copies() -> None:
    buffer = TurnBuffer(100)
    source = bytearray(b"a" * 40)
    first = buffer.copy(memoryview(source))
    source[:] = b"b" * 40
    second = buffer.copy(memoryview(source))
    second[0] = ord("c")
    assert bytes(first) == b"a" * 40
    assert bytes(second) == b"c" + b"b" * 39


def test_full_buffer_must_be_cleared_first() -> None:
    buffer = TurnBuffer(100)
    buffer.copy(memoryview(bytes(60)))
    assert buffer.fits(40)
    assert not buffer.fits(41)
    with pytest.raises(AssertionError):
        buffer.copy(memoryview(bytes(41)))
    buffer.clear()
    assert buffer.fits(100)


def test_big_span_grows_the_buffer_until_it_is_no_longer_needed() -> None:
    buffer = TurnBuffer(100)
    assert buffer.fits(1000)
    assert bytes(buffer.copy(memoryview(b"x" * 1000))) == b"x" * 1000
    buffer.trim()
    assert buffer.capacity_bytes == 1000, "in use"
    buffer.clear()
    buffer.trim()
    assert buffer.capacity_bytes == 1000, "was needed since the last look"
    buffer.copy(memoryview(bytes(10)))
    buffer.clear()
    buffer.trim()
    assert buffer.capacity_bytes == 100
