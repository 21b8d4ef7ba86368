"""What others change in an archive while its node runs: an operator who expires segments, another directory that takes over."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from quiver_actors.archive.archiver import connect_as_archiver
from quiver_actors.archive.expiry import expire_stream
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import Owner
from quiver_actors.archive.manifest_store import Addition, ManifestWriter
from quiver_actors.archive.ownership import become_owner, take_over
from quiver_actors.archive.state_keeper import StateKeeper
from quiver_actors.archive.topic_archive import TopicArchive
from quiver_actors.archive.uploads import Throttle
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.model import ARCHIVE_SUBSCRIBER
from quiver_actors.cli.main import main
from quiver_actors.client import Client, NotArchived
from quiver_actors.errors import UsageError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.objects.errors import ArchiveRefused
from quiver_actors.store.objects.object_store import ObjectStore
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, numbers
from tests.integration.test_archive import (
    archived_ids,
    archived_parts,
    archiving_node,
    kill_archiver,
    push,
    status_of,
    store,
)
from tests.unit.archive.test_manifest_store import a_segment

__all__ = ["store"]


def test_what_has_expired_stays_in_the_store_over_a_restart_of_the_archiver(
    store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        push(client, range(3))
        wait_until(lambda: archived_ids(store) == [0, 1, 2], "the first segment is archived")
        for call in (lambda: client.subscribe(ARCHIVE_SUBSCRIBER), lambda: client.seek(ARCHIVE_SUBSCRIBER, "latest")):
            with pytest.raises(UsageError, match="what it has resolved counts as archived"):
                call()
        objects = {info.key for info in store.objects("anode/default")}
        assert (
            main(["archive", "expire", "--archive", store.url, "--node", "anode", "--older-than", "0s", "--yes"]) == 0
        )
        assert archived_ids(store) == []
        client.create_topic("left", {"archive.enabled": False})
        with connect_as_archiver(client.run_dir, 10) as archiver:
            hold = archiver.hold(ARCHIVE_SUBSCRIBER, topic="left", start="earliest")
            hold.look()
            hold.close()
        kill_archiver(node)
        for number in (3, 4):  # with the second one, the next archiver has looked after the store once
            push(client, range(number, number + 1))
            wait_until(lambda last=number: archived_ids(store)[-1:] == [last], "the archiver goes on")  # type: ignore[misc]
        assert objects < {info.key for info in store.objects("anode/default")}, "readers have an hour"
        named = [each.subscriber for found in client.subscribers("left").values() for each in found]
        assert named == [], "what the killed one had there is dropped"


class Step:
    """The archiving of a topic of a running node, one step at a time, by this process."""

    def __init__(self, node: ClientNode, client: Client, store: ObjectStore, topic: str = "default") -> None:
        self.store = store
        self.hold = client.hold("archiver", topic=topic, start="earliest")
        self.stream = StreamKey(topic, self.hold.look()[0].incarnation, 0)
        owner = Owner(epoch=1, directory="here", start="first", since_unix_ns=1)
        self.writer = ManifestWriter.own(store, "anode", owner, None)
        states = StateKeeper(PosixDisk(str(node.directories.data)), store, 0)
        throttle = Throttle(0, time.sleep)
        self.archive = TopicArchive("anode", topic, {}, self.hold, throttle, lambda _: None, lambda: False, states)

    def __call__(self) -> None:
        self.archive.step(self.store, self.writer, TopicSettings())


def test_a_segment_that_expired_in_the_archive_before_it_was_acknowledged_stops_nothing(store: ObjectStore) -> None:
    with client_node() as node, node.connect() as client:
        push(client, range(3))
        (info,) = client.segments()[0]
        step = Step(node, client, store)
        archived = a_segment(info.segment_seq)
        writer = step.writer
        writer.commit({step.stream: Addition([archived], [], info.segment_seq)})  # and its acknowledgement was lost
        expire_stream(store, writer, writer.head.streams[0], archived.last_ingestion_unix_ns + 1)
        for start in (3, 6):
            push(client, range(start, start + 3))
            step()
        assert archived_ids(store) == [3, 4, 5, 6, 7, 8]
        assert step.hold.look()[0].oldest is None
        step.archive.close()


def test_a_directory_that_was_put_back_calls_nothing_new_archived(store: ObjectStore) -> None:
    """The archive has segments of numbers that this directory has still to give: what it stores next is not archived by that."""
    with client_node() as node, node.connect() as client:
        push(client, range(3))
        step = Step(node, client, store)
        step.writer.commit({step.stream: Addition([], [], -1)})
        step()
        later = [a_segment(number) for number in range(1, 8)]
        step.writer.commit({step.stream: Addition(later, [], 7)})
        step.archive.begin_again()
        with pytest.raises(ArchiveRefused, match="restored from an older copy"):
            step()
        assert not any(stream.is_archived(1) for stream in step.archive.shown())
        step.archive.close()


def test_a_take_over_under_a_running_node_takes_no_segment_of_another_directory_for_its_own(
    store: ObjectStore, tmp_path: Path
) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        push(client, range(3))
        client.flush(until="archived", timeout=60)
        copy = PosixDisk(str(tmp_path))
        take_over(copy, store, "anode")
        writer = become_owner(copy, store, "anode")
        (stream,) = writer.head.streams
        others = a_segment(stream.archived_through + 1)
        writer.commit({stream.key: Addition([others], [], others.segment_seq)})
        receipt = client.push(numbers(3))
        client.flush()
        wait_until(lambda: (found := status_of(node)) is not None and found.state == "fenced", "the node is fenced")
        where = ["--archive", store.url, "--node", "anode", "--data-dir", str(node.directories.data)]
        assert main(["archive", "take-over", *where, "--yes"]) == 0
        wait_until(lambda: (found := status_of(node)) is not None and found.state == "refused", "it is told", 60)
        with pytest.raises(NotArchived, match="is not the one that was archived under this number"):
            client.wait_archived([receipt], timeout=1)
        assert [each for part in archived_parts(store) for each in part.segments][-1] == others
        copy.close()
