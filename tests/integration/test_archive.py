"""The archiver of a real node: what is pushed comes into the object store once, whatever is killed, and may go from the disk then."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiver_actors import aio
from quiver_actors.archive.blocks import decode_sums
from quiver_actors.archive.keys import crc_key
from quiver_actors.archive.manifest import Part, key_of
from quiver_actors.archive.manifest_store import read_head, read_parts
from quiver_actors.base.archive_status import ArchiveStatus, read_archive_status
from quiver_actors.base.checksum import crc32
from quiver_actors.base.config import TopicSettings
from quiver_actors.cli.main import main
from quiver_actors.client import Client, NotArchived
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from quiver_actors.store.segment.checked import CheckedReader
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, numbers, take

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
                    next(iter(reader.bundle(at).values())).column(0)[0].as_py() for at in range(segment.bundle_count)
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


def test_what_nobody_seals_is_archived_after_the_longest_delay(store: ObjectStore) -> None:
    with archiving_node(store.url, 'max_delay = "200ms"\n') as node, node.connect() as client:
        client.push(numbers(0))
        wait_until(lambda: archived_ids(store) == [0], "the bundle is archived without a flush")
        client.push(numbers(1))
        wait_until(lambda: archived_ids(store) == [0, 1], "the next one, too")
    assert TopicSettings().archive.max_delay_ns == TopicSettings().segment.max_unsynced_duration_ns, (
        "an archive is as far behind"
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


def test_a_topic_whose_manifest_is_damaged_stops_no_other(store: ObjectStore, tmp_path: Path) -> None:
    others = ("aspen", "birch", "cedar", "dogwood")
    with archiving_node(store.url) as node, node.connect() as client:
        for topic in others:
            client.create_topic(topic)
        push(client, range(3))
        wait_until(lambda: archived_ids(store) == [0, 1, 2], "the first segment is archived")
        head = read_head(store, "anode")
        assert head is not None
        (part,) = (ref for stream in head.streams if stream.topic == "default" for ref in stream.parts)
        path = tmp_path / "archive" / part.key
        sound = path.read_bytes()
        path.write_bytes(sound.replace(b"0", b"1", 1))
        kill_archiver(node)  # the next one reads the manifest again
        push(client, range(3, 6))
        for number, topic in enumerate(others):
            push(client, range(10 * number, 10 * number + 1), topic)
        for topic in others:
            client.flush(topic, until="archived", timeout=60)
        wait_until(lambda: (found := status_of(node)) is not None and "checksum" in found.error, "the status says it")
        path.write_bytes(sound)
        client.flush("default", until="archived", timeout=60)
        wait_until(lambda: (found := status_of(node)) is not None and found.state == "archiving", "all is well again")


def head_streams(store: ObjectStore):  # type: ignore[no-untyped-def]
    head = read_head(store, "anode")
    assert head is not None
    return head.streams


def test_clients_wait_until_their_bundles_are_archived(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        receipts = client.push_many([numbers(n) for n in range(5)])
        with pytest.raises(NotArchived, match="durable here, not archived"):
            client.wait_archived(receipts, timeout=0.2)
        client.flush(until="archived", timeout=60)
        client.wait_archived(receipts, timeout=0)
        assert archived_ids(store) == list(range(5))

        async def push_and_wait() -> None:
            async with aio.connect(node.directories.run) as other:
                receipt = await other.push(numbers(5))
                await other.flush(until="archived", timeout=60)
                await other.wait_archived([receipt], timeout=0)

        asyncio.run(push_and_wait())
        assert archived_ids(store) == list(range(6))
        client.create_topic("aside", {"archive.enabled": False})
        aside = client.push(numbers(1), topic="aside")
        with pytest.raises(NotArchived, match=r"archive\.enabled"):
            client.wait_archived([aside], timeout=0)


def test_what_was_consumed_before_the_archiver_came_is_not_said_to_be_archived(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        client.create_topic("late", {"archive.enabled": False})
        with client.subscribe("reader", topic="late") as deliveries:
            receipt = client.push(numbers(1), topic="late")
            client.flush("late")
            for delivery in take(deliveries, 1):
                delivery.ack()
        wait_until(lambda: not client.segments("late")[0], "the segment is deleted")
        client.set_topic("late", {"archive.enabled": True})
        client.push(numbers(2), topic="late")
        client.flush("late", until="archived", timeout=60)
        with pytest.raises(NotArchived, match="gone before"):
            client.wait_archived([receipt], timeout=0)


def test_nothing_that_is_not_archived_goes_and_what_is_archived_may(store: ObjectStore) -> None:
    more = "require = true\nkeep_local_size = '1'\n[retention]\nmax_age = '1s'\n"
    with archiving_node("s3://no-such-bucket-anywhere/x", more) as node, node.connect() as client:
        client.push_many([numbers(n) for n in range(5)])
        client.flush()
        wait_until(lambda: (found := status_of(node)) is not None and found.error_count > 1, "the archiver has failed")
        assert sum(info.bundle_count for infos in client.segments().values() for info in infos) == 5
    with archiving_node(store.url, more.replace("max_age = '1s'", "max_age = '0ms'")) as node, node.connect() as client:
        client.push_many([numbers(n) for n in range(5)])
        client.flush(until="archived", timeout=60)
        wait_until(lambda: not any(client.segments().values()), "archived segments go, as nobody else needs them")
        assert archived_ids(store) == list(range(5))


def test_a_copy_of_a_data_directory_is_fenced_until_it_takes_over(store: ObjectStore, tmp_path: Path) -> None:
    with archiving_node(store.url) as node:
        with node.connect() as client:
            client.push(numbers(0))
            client.flush(until="archived", timeout=60)
        copy = tmp_path / "copy"
        shutil.copytree(node.directories.data, copy)
        with node.connect() as client:
            kill_archiver(node)
            client.push(numbers(1))
            client.flush(until="archived", timeout=60)

        def lay_out(data: Path) -> None:
            shutil.copytree(copy, data, dirs_exist_ok=True)

        with client_node(config=CONFIG.format(url=store.url), prepare=lay_out) as clone:
            wait_until(
                lambda: (found := status_of(clone)) is not None and found.state == "fenced", "the copy is fenced"
            )
            with clone.connect() as client:
                client.push(numbers(100))
                client.flush()
                with pytest.raises(NotArchived, match="take-over"):
                    client.wait_archived([client.push(numbers(101))], timeout=0)
            assert archived_ids(store) == [0, 1]
        assert (
            main(["archive", "take-over", "--archive", store.url, "--node", "anode", "--data-dir", str(copy), "--yes"])
            == 0
        )
        with client_node(config=CONFIG.format(url=store.url), prepare=lay_out):
            wait_until(lambda: owner_of(store) > 2, "the copy has taken over")
        with node.connect() as client:
            client.push(numbers(2))
            client.flush()
            wait_until(
                lambda: (found := status_of(node)) is not None and found.state == "fenced", "the first is fenced"
            )
        assert archived_ids(store) == [0, 1]


def owner_of(store: ObjectStore) -> int:
    """The epoch of the archive's owner."""
    head = read_head(store, "anode")
    return 0 if head is None else head.owner.epoch


def test_status_and_commands_show_the_archive(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        client.push_many([numbers(n) for n in range(5)])
        client.flush(until="archived", timeout=60)
        run = ["--run-dir", str(node.directories.run)]
        wait_until(lambda: (found := status_of(node)) is not None and not found.lag_segments, "no lag")
        assert main(["status", "--json", *run]) == 0
        shown = json.loads(capsys.readouterr().out)
        (view,), (stream,) = shown["archives"], shown["archive_streams"]
        assert (view["state"], view["uploaded_segments"], stream["lag_segments"]) == ("archiving", 1, 0)
        assert main(["status", *run]) == 0
        assert "ARCHIVE  archiving" in capsys.readouterr().out
        assert main(["metrics", "--once", *run]) == 0
        assert "quiver_archive_uploaded_segments_total" in capsys.readouterr().out
    place = ["--archive", store.url, "--node", "anode"]
    assert main(["archive", "ls", "--json", *place]) == 0
    (row,) = json.loads(capsys.readouterr().out)["streams"]
    assert (row["topic"], row["segments"], row["bundles"]) == ("default", 1, 5)
    assert main(["archive", "ls", "--topic", "default", *place]) == 0
    assert "segment " in capsys.readouterr().out
    assert main(["archive", "verify", *place]) == 0
    assert main(["archive", "get", str(tmp_path / "out"), *place]) == 0
    (taken,) = (tmp_path / "out").rglob("*.qseg")
    assert CheckedReader(taken.read_bytes()).bundle_count == 5
    assert main(["archive", "get", str(tmp_path / "out"), *place]) == 2
    (key,) = [info.key for info in store.objects("anode/default") if info.key.endswith(".qseg")]
    damaged = bytearray(taken.read_bytes())
    damaged[100] ^= 1
    store.put(key, [bytes(damaged)], len(damaged))
    capsys.readouterr()
    assert main(["archive", "verify", *place]) == 1
    assert key in capsys.readouterr().err
    assert main(["archive", "ls", "--archive", store.url, "--node", "other"]) == 2
    assert "anode" in capsys.readouterr().err
