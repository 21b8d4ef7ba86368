"""The archiver of a real node: what is pushed comes into the object store once, whatever is killed, and may go from the disk then."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiver_actors.archive.blocks import decode_sums
from quiver_actors.archive.keys import crc_key
from quiver_actors.archive.manifest import Part, key_of
from quiver_actors.archive.manifest_store import read_head, read_parts
from quiver_actors.archive.object_store import ObjectStore
from quiver_actors.archive.opening import open_store
from quiver_actors.base.archive_status import ArchiveStatus, read_archive_status
from quiver_actors.base.checksum import crc32
from quiver_actors.client import Client
from quiver_actors.store.segment.checked import CheckedReader
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, numbers

CONFIG = """
node = "anode"
[segment]
target_size = "64KiB"
max_open_duration = "1h"
[archive]
url = "{url}"
enabled = true
retry_interval = "500ms"
refused_interval = "500ms"
"""


@contextmanager
def archiving_node(url: str, more: str = "") -> Iterator[ClientNode]:
    with client_node(config=CONFIG.format(url=url) + more) as node:
        yield node


def status_of(node: ClientNode) -> ArchiveStatus | None:
    return read_archive_status(str(node.directories.run))


def archived_parts(store: ObjectStore) -> list[Part]:
    head = read_head(store, "anode")
    return [] if head is None else [part for stream in head.streams for part in read_parts(store, stream)]


def archived_ids(store: ObjectStore) -> list[int]:
    """The first value of each archived bundle, in the order of the manifest; every byte is proven on the way."""
    found: list[int] = []
    head = read_head(store, "anode")
    for stream in () if head is None else head.streams:
        for part in read_parts(store, stream):
            for segment in part.segments:
                key = key_of("anode", stream.key, segment)
                content = store.get(key)
                sums = store.get(crc_key(key))
                assert content is not None
                assert sums is not None
                decode_sums(sums.content).check(0, content.content)
                assert (crc32(content.content), len(content.content)) == (segment.crc32, segment.size_bytes)
                reader = CheckedReader(content.content)
                assert reader.bundle_count == segment.bundle_count
                found += [
                    next(iter(reader.bundle(at).values())).column("id")[0].as_py() for at in range(segment.bundle_count)
                ]
    return found


def push(client: Client, ids: range, topic: str = "default") -> None:
    client.push_many([numbers(n) for n in ids], topic=topic)
    client.flush(topic)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    made = open_store(f"file://{tmp_path}/archive")
    yield made
    made.close()


def test_what_is_pushed_is_archived_once_in_order(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        for start in range(0, 30, 10):
            push(client, range(start, start + 10))
        wait_until(lambda: archived_ids(store) == list(range(30)), "all is archived")
        assert [segment.segment_seq for part in archived_parts(store) for segment in part.segments] == sorted(
            {info.segment_seq for infos in client.segments().values() for info in infos}
        )
        wait_until(
            lambda: (found := status_of(node)) is not None and found.state == "archiving" and not found.lag_segments,
            "no lag",
        )


def test_an_archiver_that_is_killed_goes_on_and_archives_nothing_twice(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        for start in range(0, 60, 3):
            push(client, range(start, start + 3))
            if start % 12 == 0:
                kill_archiver(node)
        wait_until(lambda: archived_ids(store) == list(range(60)), "all is archived", 120)
        objects = [info.key for info in store.objects("anode/default")]
        rows = [segment.segment_seq for part in archived_parts(store) for segment in part.segments]
        assert len(rows) == len(set(rows))
        assert len(objects) == 2 * len(rows)


def kill_archiver(node: ClientNode) -> None:
    for pid in archiver_pids(node):
        node.kill_pid(pid)


def archiver_pids(node: ClientNode) -> list[int]:
    """The processes that archive for this node."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"quiver_actors.archive" in words and str(node.directories.run).encode() in words:
            found.append(int(path.parent.name))
    return found


def test_a_node_that_is_killed_and_its_next_life_archive_everything_once(store: ObjectStore) -> None:
    with archiving_node(store.url) as node:
        for start in range(0, 20, 5):
            with node.connect() as client:
                push(client, range(start, start + 5))
            node.kill_supervisor()
            node.restart()
        wait_until(lambda: archived_ids(store) == list(range(20)), "all is archived", 120)
        assert [stream.topic for stream in head_streams(store)] == ["default"]
        node.process.signal(signal.SIGTERM)


def head_streams(store: ObjectStore):  # type: ignore[no-untyped-def]
    head = read_head(store, "anode")
    assert head is not None
    return head.streams
