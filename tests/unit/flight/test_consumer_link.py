"""The line of a remote consumer, with a scripted server at its other end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pyarrow.flight as fl
import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.client.subscribe_request import NotDelivered
from quiver_actors.errors import ClosedError, WorkerUnavailable
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FlightConnection
from quiver_actors.flight.consumer_link import ConsumerLink
from quiver_actors.flight.contract import ERROR_PREFIX, Done
from quiver_actors.flight.received_parcel import ReceivedParcel

WAIT_SECONDS = 30.0
LEFT_OUT = NotDelivered("travel", 3, BundleId("travel", 3, 4, 5), 6, 7)


class ScriptedServer(fl.FlightServerBase):
    """Attaches consumers, forgets them when told to, and answers flushes once as many are under way as the test wants."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.flushes_together = 1
        self._flushing = 0
        self._arrived = threading.Condition()
        self._attached = 0
        self.known = ""
        """Id of the consumer that is attached; empty: it was forgotten."""

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        if action.type == "Subscribe":
            self._attached += 1
            self.known = f"consumer {self._attached}"
            left_out = [LEFT_OUT] if self._attached == 1 else []
            answer = rc.Subscribed(self.known, TopicInfo("travel", {}, "wal", 0), 60.0, left_out)
            return iter([msgspec.json.encode(answer)])
        request = msgspec.json.decode(action.body.to_pybytes(), type=rc.Consume)
        if request.subscription != self.known:
            raise fl.FlightServerError(f"{ERROR_PREFIX}{ClosedError.code}:it is not open")
        return iter([msgspec.json.encode(self._answer(request.act))])

    def _answer(self, act: rc.Act) -> Any:
        if isinstance(act, rc.Flush):
            with self._arrived:
                self._flushing += 1
                self._arrived.notify_all()
                self._arrived.wait_for(lambda: self._flushing >= self.flushes_together, WAIT_SECONDS)
            return rc.Refusals([])
        return rc.Resolved(0) if isinstance(act, rc.Resolve) else Done()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as made:
        yield made


@pytest.fixture
def link(server: ScriptedServer) -> Iterator[ConsumerLink]:
    connection = FlightConnection("node", f"grpc://127.0.0.1:{server.port}", token=None, tls_roots=None)
    made = ConsumerLink(connection, rc.Subscribe(rc.REMOTE_VERSION, "travel", "exporter", {}), WAIT_SECONDS)
    yield made
    made.close()
    connection.close()


def resolve(link: ConsumerLink, count: int) -> None:
    for number in range(count):
        link.ack(ReceivedParcel(cast(Any, None), cast(Any, None), number, link.generation), 0)


def test_threads_that_flush_at_once_hide_no_later_loss(server: ScriptedServer, link: ConsumerLink) -> None:
    server.flushes_together = 2
    resolve(link, 3)
    threads = [threading.Thread(target=link.flush, args=(WAIT_SECONDS,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    resolve(link, 3)
    server.known = ""
    with pytest.raises(WorkerUnavailable, match="before 3 resolutions were known to be durable"):
        link.flush(WAIT_SECONDS)
    assert link.flush(WAIT_SECONDS).refusals == []


def test_a_ticket_of_a_consumer_that_was_lost_is_not_sent_for_the_next_one(link: ConsumerLink) -> None:
    generation = link.generation
    link.renew(generation)
    with pytest.raises(ClosedError):
        link.read(rc.TakeTicket("", 5, 1, 0), 0.0, generation)


def test_what_a_new_subscriber_does_not_get_stays_known_when_it_is_attached_again(link: ConsumerLink) -> None:
    assert link.not_delivered == (LEFT_OUT,)
    link.renew(link.generation)
    assert link.generation == 2
    assert link.not_delivered == (LEFT_OUT,)
