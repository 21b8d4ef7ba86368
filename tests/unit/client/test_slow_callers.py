"""Callers that make their bundles more slowly than the worker takes them: nobody ever has to wait for room."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.protocol.messages import BeginStage, ClientMessage, Done, ListTopics, Push, TopicInfo, TopicList
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import connect
from tests.unit.client.clock import ClientClock
from tests.unit.client.peer import Peer, PeerSession

BUNDLES = 5
ROWS = 90_000
"""Two bundles are too large for one message."""


@pytest.fixture
def large(run_dir: Path) -> Iterator[Peer]:
    """A worker with room for everything, which acknowledges when it is told to."""
    with Peer(run_dir, arena_bytes=16 << 20) as started:
        started.holds_acks = True
        yield started


def slowly(peer: Peer, clock: ClientClock) -> Iterator[pa.RecordBatch]:
    """Bundles that take a minute each; what was sent of them is acknowledged by then."""

    def take_a_minute(sent: int) -> None:
        peer.wait_for(lambda: len(peer.stored) == sent)
        peer.acknowledge()
        clock.ahead_ns += 60 * SECOND_NS

    for number in range(BUNDLES):
        take_a_minute(max(0, number - 1))
        yield pa.record_batch({"n": np.full(ROWS, number)})
    take_a_minute(BUNDLES - 1)
    peer.holds_acks = False


@pytest.mark.parametrize("key", [{}, {"producer": "p", "sequence": 1}])
def test_the_time_that_a_caller_takes_is_not_the_workers(
    large: Peer, clock: ClientClock, key: dict[str, object]
) -> None:
    """The acknowledgements were there, nobody had read them, and the push said that there were none within its timeout."""
    with connect(large.run_dir) as client:
        receipts = client.push_many(slowly(large, clock), timeout=30, **key)  # type: ignore[arg-type]
    assert len(receipts) == BUNDLES


def test_what_was_acknowledged_is_not_kept(large: Peer, clock: ClientClock) -> None:
    """All bundles of a call stayed in memory until its end."""

    def begin(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, BeginStage)
        session.send(Done(message.tag, 7))
        return True

    def watched() -> Iterator[pa.RecordBatch]:
        for bundle in slowly(large, clock):
            made.append(weakref.ref(bundle))
            kept.append(sum(each() is not None for each in made))
            yield bundle

    made: list[weakref.ref[pa.RecordBatch]] = []
    kept: list[int] = []
    large.handlers[BeginStage] = begin
    with connect(large.run_dir) as client, client.stage("t") as stage:
        assert stage.push_many(watched()) == BUNDLES
    assert max(kept) < BUNDLES


@pytest.mark.parametrize("key", [{}, {"producer": "p", "sequence": 1}])
def test_the_time_that_a_connection_takes_is_a_part_of_the_timeout(
    peer: Peer, clock: ClientClock, key: dict[str, object]
) -> None:
    """A numbered push began its timeout anew once it was connected, and waited for up to twice as long."""

    def answer_late(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, ListTopics)
        clock.ahead_ns += 20 * SECOND_NS
        session.send(TopicList(message.tag, [TopicInfo("newer", {}, "wal", 0)]))
        return True

    clock.stop()
    peer.handlers[ListTopics] = answer_late
    with connect(peer.run_dir) as client:
        client.push_many([pa.record_batch({"n": [1]})], topic="newer", timeout=30, **key)  # type: ignore[arg-type]
    assert [pushed.patience_ms for pushed in peer.of_type(Push)] == [10_000]
