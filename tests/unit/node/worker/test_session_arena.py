"""The arena of one connection: spans stay inside it, and ring credit goes back in the order of the pushes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.errors import ProtocolError
from quiver_actors.node.worker.session_arena import SessionArena
from quiver_actors.shm.arena import ArenaOwner, ArenaProducer


@dataclass
class Ends:
    arena: SessionArena
    producer: ArenaProducer

    def push(self, size_bytes: int = 1000) -> m.Push:
        offset = self.producer.reserve(size_bytes)
        assert offset is not None
        return m.Push(1, "t", offset, size_bytes, self.producer.commit(size_bytes), b"", b"", b"")


@pytest.fixture
def ends() -> Iterator[Ends]:
    memory = ArenaOwner.create(1 << 16)
    producer = ArenaProducer.attach(memory.fd, memory.size_bytes)
    arena = SessionArena(guest=None)
    arena.expect(1 << 20)
    arena.attach(memory)
    yield Ends(arena, producer)
    arena.close()
    producer.close()


def test_credit_returns_at_once_when_nothing_waits(ends: Ends) -> None:
    push = ends.push()
    assert ends.arena.span(push).nbytes == push.length
    ends.arena.release(push)
    assert ends.producer.in_flight_bytes() == 0


def test_credit_behind_a_waiting_push_returns_with_it(ends: Ends) -> None:
    first, second, third = ends.push(), ends.push(), ends.push()
    held_first = ends.arena.hold(first)
    held_second = ends.arena.hold(second)
    ends.arena.release(third)
    before = ends.producer.in_flight_bytes()
    ends.arena.release_held(held_second)
    assert ends.producer.in_flight_bytes() == before
    ends.arena.release_held(held_first)
    assert ends.producer.in_flight_bytes() == 0


def test_span_outside_the_arena_is_a_protocol_error(ends: Ends) -> None:
    with pytest.raises(ProtocolError, match="not inside the arena"):
        ends.arena.span(m.Push(7, "t", (1 << 16) - 10, 11, 0, b"", b"", b""))


def test_release_of_a_position_out_of_reach_is_a_protocol_error(ends: Ends) -> None:
    with pytest.raises(ProtocolError, match="cannot follow"):
        ends.arena.release(m.Push(7, "t", 0, 0, 1 << 40, b"", b"", b""))


def test_push_before_the_arena_is_a_protocol_error(ends: Ends) -> None:
    ends.arena.expect(1 << 20)
    with pytest.raises(ProtocolError, match="before ArenaAttached"):
        ends.arena.span(ends.push())


def test_arena_is_not_replaced_while_pushes_wait(ends: Ends) -> None:
    held = ends.arena.hold(ends.push())
    with pytest.raises(ProtocolError, match="while pushes"):
        ends.arena.expect(1 << 20)
    ends.arena.release_held(held)
    ends.arena.expect(1 << 20)
    with pytest.raises(ProtocolError, match="another AttachArena"):
        ends.arena.expect(1 << 20)


def test_a_span_released_after_the_end_gives_no_credit_back(ends: Ends) -> None:
    held = ends.arena.hold(ends.push())
    before = ends.producer.in_flight_bytes()
    ends.arena.close()
    ends.arena.release_held(held)
    assert ends.producer.in_flight_bytes() == before > 0


def test_a_refused_push_with_a_position_out_of_reach_costs_its_producer_only(ends: Ends) -> None:
    held = ends.arena.hold(m.Push(7, "t", 0, 0, 1 << 40, b"", b"", b""))
    ends.arena.release_refused(held)
    push = ends.push()
    assert ends.arena.span(push).nbytes == push.length
