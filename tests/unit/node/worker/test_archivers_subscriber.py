"""The subscriber `quiver-archive`: what it has resolved counts as archived, so no client of any kind uses it in the archiver's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.base.config import ArchiveSettings
from quiver_actors.base.model import ARCHIVE_SUBSCRIBER, ARCHIVER_CLIENT, BundleId
from quiver_actors.base.protocol import messages as m
from quiver_actors.errors import UsageError
from tests.unit.node.worker.harness import WireClient, WorkerThread, settings, table, topic

WHO = "kept", ARCHIVE_SUBSCRIBER
REQUESTS: dict[str, m.Message] = {
    "join": m.Register(1, *WHO, "latest"),
    "join and read the archive": m.Register(1, *WHO, "latest", reads_archive=True),
    "drop": m.Unregister(1, *WHO),
    "drop as an orphan": m.Unregister(1, *WHO, only_orphan=True),
    "share": m.ShareSubscriber(1, *WHO, [1]),
    "seek": m.Seek(1, *WHO, "latest"),
    "seek, for show": m.Seek(1, *WHO, "latest", is_dry=True),
    "take bundles": m.Credit(*WHO, 10),
    "take one bundle": m.ClaimRef(1, *WHO, 0, 0),
    "acknowledge a range": m.AckThrough(1, *WHO, 0, 1),
    "confirm a notice": m.GapAck(1, *WHO, 0),
    "flush progress": m.FlushProgress(1, *WHO),
    "tell of damage": m.Unreadable(1, *WHO, 0, 0, b"\0\0\0\0", "rot"),
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerThread]:
    """A worker whose topic has one sealed segment of two bundles, none of which is archived yet."""
    root: Path = tmp_path_factory.mktemp("worker")
    started = WorkerThread(root, settings(topic("kept", archive=ArchiveSettings(enabled=True)), topic("left")))
    try:
        with started.connect(name=ARCHIVER_CLIENT) as archiver:
            archiver.register(ARCHIVE_SUBSCRIBER, topic="kept")
            archiver.register(ARCHIVE_SUBSCRIBER, topic="left")
        with started.producer(topic="kept") as producer:
            producer.push_and_wait(table(1), topic="kept")
            producer.push_and_wait(table(2), topic="kept")
            producer.flush("kept")
        yield started
    finally:
        started.close()


def refusal(client: WireClient, request: m.Message) -> m.Refused:
    client.send(request)
    return client.expect(m.Refused)


def owed(client: WireClient) -> int:
    client.send(m.Pending(2, *WHO))
    found = client.expect(m.PendingInfo)
    assert not found.claimed
    return found.pending


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_a_client_is_refused(worker: WorkerThread, request_of: m.Message) -> None:
    with worker.connect() as client:
        found = refusal(client, request_of)
        assert (found.code, "what it has resolved counts as archived" in found.message) == ("usage", True)
        assert owed(client) == 2


@pytest.mark.parametrize("message", [m.Seek(1, *WHO, "latest"), m.Credit(*WHO, 1), m.ClaimRef(1, *WHO, 0, 0)])
def test_the_archiver_itself_takes_no_bundles_and_does_not_move(worker: WorkerThread, message: m.Message) -> None:
    with worker.connect(name=ARCHIVER_CLIENT) as archiver:
        assert refusal(archiver, message).code == "usage"
        assert owed(archiver) == 2


def test_what_was_not_claimed_is_not_resolved(worker: WorkerThread) -> None:
    with worker.connect() as client:
        client.send(m.Resolve(7, *WHO, 0, 1, "ack", b"\0\0\0\0"))
        assert owed(client) == 2


def test_an_operator_drops_what_is_left_of_it_in_a_topic_that_is_not_archived(worker: WorkerThread) -> None:
    with worker.connect() as client:
        assert refusal(client, m.AckThrough(1, "left", ARCHIVE_SUBSCRIBER, 0, 0)).code == "usage"
        client.send(m.Unregister(3, "left", ARCHIVE_SUBSCRIBER))
        client.done(3)


CALLS: dict[str, Callable[[quiver_actors.Store], object]] = {
    "subscribe": lambda store: store.subscribe(ARCHIVE_SUBSCRIBER, topic="kept"),
    "hold": lambda store: store.hold(ARCHIVE_SUBSCRIBER, topic="kept").look(),
    "unsubscribe": lambda store: store.unsubscribe(ARCHIVE_SUBSCRIBER, topic="kept"),
    "drop_orphan": lambda store: store.drop_orphan(ARCHIVE_SUBSCRIBER, topic="kept"),
    "seek": lambda store: store.seek(ARCHIVE_SUBSCRIBER, "latest", topic="kept"),
    "share_subscriber": lambda store: store.share_subscriber(ARCHIVE_SUBSCRIBER, [1], topic="kept"),
    "ack_through": lambda store: store.ack_through(BundleId("kept", 0, 0, 0), subscriber=ARCHIVE_SUBSCRIBER),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[quiver_actors.Store]:
    root: Path = tmp_path_factory.mktemp("store")
    given = {"archive.url": f"file://{root}/objects", "topics": {"kept": {"archive.enabled": True}}}
    with quiver_actors.open(root / "data", settings=given) as opened:
        opened.push(table(1), topic="kept")
        yield opened


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_on_a_store_without_an_archiver_are_refused_too(
    store: quiver_actors.Store, call: Callable[[quiver_actors.Store], object]
) -> None:
    with pytest.raises(UsageError, match="what it has resolved counts as archived"):
        call(store)
