"""A real node with a bundle that no consumer can decode, although its file has the right checksum: it ends, and everybody is told."""

from __future__ import annotations

import os

from quiver_actors.client import GapNotice
from quiver_actors.errors import FormatError
from quiver_actors.store.engine.read_failures import TRIES_MAX
from tests.integration.client_node import ClientNode, client_node, first_id, numbers
from tests.support.undecodable import with_undecodable_bundle

COUNT = 4
SPOILED = 2
SUBSCRIBERS = ("ann", "ben")


def spoil(node: ClientNode) -> None:
    path = node.directories.data / "default/core_0/segments/0000000000000000.qseg"
    content = with_undecodable_bundle(path.read_bytes(), SPOILED)
    os.chmod(path, 0o600)
    path.write_bytes(content)


def test_a_bundle_that_nobody_can_decode_ends_as_a_notice_to_everybody() -> None:
    with client_node(config="") as node:
        with node.connect() as client:
            client.push_many([numbers(number) for number in range(COUNT)])
            client.flush()
            for subscriber in SUBSCRIBERS:
                client.subscribe(subscriber, start="earliest").close()
        node.kill_supervisor()
        spoil(node)
        node.restart()
        with node.connect() as client:
            for subscriber in SUBSCRIBERS:
                read, failures = [], 0
                with client.subscribe(subscriber, gaps="deliver") as events:
                    notice = None
                    while notice is None or len(read) < COUNT - 1:
                        item = events.get(timeout=60)
                        assert item is not None
                        if isinstance(item, GapNotice):
                            notice = item
                            continue
                        try:
                            read.append(first_id(item))
                        except FormatError:
                            failures += 1
                        else:
                            item.ack()
                    events.flush()
                    assert events.all_drained()
                position = (notice.segment_seq, notice.bundle_index_first, notice.bundle_count, notice.reason)
                assert position == (0, SPOILED, 1, "damaged")
                assert sorted(read) == [0, 1, 3]
                assert failures <= TRIES_MAX
        kept = list((node.directories.data / "default/core_0/quarantine").iterdir())
        assert len(kept) == 1
