"""Another user reads what is archived of its topics through the archiver: without rights in the archive, and nothing of other topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, connect
from quiver_actors.client.archive_door import ArchiveDoor
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.errors import NotAllowed, QuiverError
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node
from tests.security.guest import AS_ROOT, GUEST_UID, STRANGER_UID, as_user

pytestmark = AS_ROOT

CONFIG = """
[segment]
target_size = "64KiB"
[archive]
url = "file://{archive}"
enabled = true
keep_local_size = "1KiB"
[access]
group = "nogroup"
[topics.open]
allowed_uids = [{guest}]
[topics.closed]
"""
BUNDLES = 12


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archive") / "archive"


@pytest.fixture(scope="module")
def node(archive: Path) -> Iterator[ClientNode]:
    with client_node(config=CONFIG.format(archive=archive, guest=GUEST_UID), cores=1) as running:
        running.directories.base.chmod(0o711)
        with running.connect() as client:
            for topic in ("open", "closed"):
                for number in range(BUNDLES):
                    client.push(pa.record_batch({"n": pa.array([number] * 3000, pa.int64())}), topic=topic)
                client.flush(topic)
                wait_until(lambda topic=topic: not client.segments(topic)[0], "all has left the disk", 60)  # type: ignore[misc]
        yield running


@contextlib.contextmanager
def client_of(node: ClientNode, uid: int) -> Iterator[Client]:
    with as_user(uid, 65534), connect(node.directories.run, timeout=60) as client:
        yield client


def test_a_guest_reads_its_topic_and_has_no_rights_in_the_archive(node: ClientNode, archive: Path) -> None:
    (segment,) = archive.glob("*/open/*/core_0/00000000000000000000.0.qseg")
    with client_of(node, GUEST_UID) as client:
        found = [each.batch.column(0)[0].as_py() for each in client.read("open", 0, BundleId("open", 0, 0, 0))]
        assert found == list(range(BUNDLES))
        with pytest.raises(PermissionError):
            segment.read_bytes()


def test_a_guest_gets_nothing_of_other_topics(node: ClientNode) -> None:
    with client_of(node, GUEST_UID) as client, pytest.raises(QuiverError):
        list(client.read("closed", 0, BundleId("closed", 0, 0, 0)))
    with as_user(GUEST_UID, 65534):
        door = ArchiveDoor(NodeDirectory(str(node.directories.run)))
        with pytest.raises(NotAllowed):
            door.listed("closed", 0, "", 0)
        door.close()


def test_who_is_named_by_no_topic_gets_nothing(node: ClientNode) -> None:
    with as_user(STRANGER_UID, 65534):
        door = ArchiveDoor(NodeDirectory(str(node.directories.run)))
        for topic in ("open", "closed"):
            with pytest.raises(NotAllowed):
                door.listed(topic, 0, "", 0)
        door.close()


def test_a_guest_subscribes_from_the_archive_on(node: ClientNode) -> None:
    with client_of(node, GUEST_UID) as client:
        with client.subscribe("late", topic="open", start=0) as deliveries:
            found = []
            for _ in range(BUNDLES):
                delivery = deliveries.get(30)
                assert delivery is not None
                with delivery:
                    found.append(delivery.batch.column(0)[0].as_py())
            assert deliveries.flush() == []
            assert found == list(range(BUNDLES))
        client.unsubscribe("late", topic="open")
    with client_of(node, GUEST_UID) as client, pytest.raises(QuiverError):
        client.subscribe("late", topic="closed", start=0)
