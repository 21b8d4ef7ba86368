"""New subscribers that begin in the archive: archive, disk and open log as one stream, with progress that survives whatever is killed."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors import aio
from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, Delivery, GapNotice
from quiver_actors.errors import ChecksumMismatch, UsageError
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode
from tests.integration.test_archive import archiver_pids, archiving_node
from tests.integration.test_archive_one_read import MORE, PUSHED, beginning, bundle, first_on_disk, push

LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientNode]:
    directory = tmp_path_factory.mktemp("subscribed")
    with archiving_node(f"file://{directory}/archive", MORE) as node, node.connect() as client:
        push(client, PUSHED)
        wait_until(lambda: first_on_disk(client) > 5, "archived segments have left the disk", 60)
        yield node


def number_of(delivery: Delivery) -> int:
    found: int = delivery["view"].column(0)[0].as_py()
    return found


def take(client: Client, name: str, count: int, **options: object) -> list[int]:
    """The next bundles of a subscriber, each acknowledged for good."""
    found = []
    with client.subscribe(name, topic="wide", **options) as deliveries:  # type: ignore[arg-type]
        while len(found) < count and (delivery := deliveries.get(20)) is not None:
            with delivery:
                found.append(number_of(delivery))
        assert deliveries.flush() == []
    return found


def test_a_subscriber_gets_archive_disk_and_open_log_in_order(node: ClientNode) -> None:
    with node.connect() as client:
        whole = [(each.bundle_id, each.ingestion_unix_ns) for each in client.read("wide", 0, beginning())]
        for start, first in ((beginning(), 0), (LONG_AGO, 0), (whole[7][0], 7), (whole[8][1], 8)):
            name = f"from-{first}-{type(start).__name__}"
            with client.subscribe(name, topic="wide", start=start, gaps="deliver") as deliveries:  # type: ignore[arg-type]
                assert deliveries.pending_count() == PUSHED - first
                found = []
                for number in range(first, PUSHED):
                    delivery = deliveries.get(20)
                    assert isinstance(delivery, Delivery)
                    with delivery:
                        assert dict(delivery.slots) == {0: bundle(number)["page"], 1: bundle(number)["view"]}
                        found.append((delivery.bundle_id, delivery.ingestion_unix_ns))
                assert found == whole[first:]
                deliveries.flush()
                assert deliveries.all_drained()
            client.unsubscribe(name, topic="wide")
