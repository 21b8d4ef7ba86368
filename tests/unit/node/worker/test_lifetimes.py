"""What lives per segment, connection, subscription, topic or transaction goes when it is dropped, on both sides: no garbage collection is
needed for it. Each is opened, used and dropped many times with the collector off; then the objects of our own types are counted. A
thousand times each: `QUIVER_TEST_LIFETIMES=1000`.

A worker puts full collections off for minutes, so what waits for one is memory that grows with every segment, connection, ...
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors import aio
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.topics import Catalogue, Topic
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client import Client, connect
from quiver_actors.errors import WorkerUnavailable
from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.node.topics.catalogue import write_catalogue
from quiver_actors.store.disk.posix import PosixDisk
from tests.unit.node.worker.harness import WorkerThread, settings, table, topic, until

TIMES = int(os.environ.get("QUIVER_TEST_LIFETIMES", "150"))
LEFT_MAX = 20
"""Objects of one type that may be left: those of the last round, and of the steady state."""
AT_ONCE = 50
STEADY = ("default", "seldom")


@dataclass
class Node:
    """A worker in this process, and how many topics were made on it."""

    worker: WorkerThread
    version: int = 0

    @property
    def run_dir(self) -> Path:
        return self.worker.run_dir

    def connect(self) -> Client:
        return connect(self.run_dir, timeout=60.0)

    def tell_topics(self, *names: str) -> None:
        """Make them the only ones beside the steady ones, and wait until that is so."""
        self.version += 1
        wanted = {
            name: Topic(settings=quick(name), incarnation=f"{name}-{self.version if name in names else 0}")
            for name in (*STEADY, *names)
        }
        write_catalogue(PosixDisk(str(self.worker.data_dir)), Catalogue(version=self.version, topics=wanted))
        topics = self.worker.worker.loop._adoption
        until(lambda: topics.applied_version == self.version, "the topics")


def quick(name: str) -> TopicSettings:
    small = {"segment__target_size_bytes": 1 << 16, "segment__compaction": "off"}
    return topic(name, progress_flush_interval_ns=MILLISECOND_NS, **small)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is such a place: nothing here is about disks, and each of a thousand syncs a few times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="quiver-test-") as found:
        yield Path(found)


@pytest.fixture
def node(directory: Path) -> Iterator[Node]:
    worker = WorkerThread(directory, settings(*(quick(name) for name in STEADY), arena_bytes=1 << 18))
    document = {
        "version": 1,
        "pid": os.getpid(),
        "data_dir": str(worker.data_dir),
        "counters": "/none",
        "started_unix_ns": 1,
        "cores": [{"core": 0, "socket": "core_0.sock", "adopted": False}],
        "topics": [],
    }
    (worker.run_dir / "node.json").write_text(json.dumps(document))
    try:
        yield Node(worker)
    finally:
        worker.close()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def ours() -> Counter[str]:
    """Objects of our own types, by type."""
    kinds = Counter(type(found) for found in gc.get_objects())
    named = {f"{kind.__module__}.{kind.__qualname__}": count for kind, count in kinds.items()}
    return Counter({name: count for name, count in named.items() if name.startswith("quiver_actors.")})


def dictionary_batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"word": pa.array([f"w{number}"]).dictionary_encode()})


def segments(node: Node, times: int) -> None:
    with node.connect() as client:
        for number in range(times):
            client.push(table(number) if number % 2 else dictionary_batch(number), topic="seldom")
            client.flush("seldom")


def connections(node: Node, times: int) -> None:
    for number in range(times):
        with node.connect() as client:
            client.push(table(number), key=b"k" if number % 2 else None)


def refused_connections(node: Node, times: int) -> None:
    """Their worker is not there: each is dropped with the error that it met."""
    socket = node.worker.socket_path
    os.rename(socket, socket + ".away")
    for _ in range(times):
        with connect(node.run_dir, timeout=0) as client, contextlib.suppress(WorkerUnavailable):
            client.flush()
    os.rename(socket + ".away", socket)


def subscriptions(node: Node, times: int) -> None:
    with node.connect() as client:
        for number in range(times):
            with client.subscribe(f"s{number}", start="latest", gaps="deliver" if number % 2 else "log") as found:
                client.push(table(number))
                client.flush()
                delivery = found.get(60)
                assert delivery is not None
                delivery.ack()  # type: ignore[union-attr]
                found.flush()
            client.unsubscribe(f"s{number}")


def async_subscriptions(node: Node, times: int) -> None:
    async def go() -> None:
        for number in range(times):
            async with aio.connect(str(node.run_dir)) as client:
                async with await client.subscribe(f"a{number}", start="latest") as found:
                    await client.push(table(number))
                    await client.flush()
                    delivery = await found.get(60)
                    assert delivery is not None
                    delivery.ack()
                    await found.flush()
                await client.unsubscribe(f"a{number}")

    asyncio.run(go())


def holds(node: Node, times: int) -> None:
    with node.connect() as client:
        for _ in range(times):
            hold = client.hold("spark", ttl=600.0)
            hold.look()
            hold.close()
        client.unsubscribe("spark")


def transactions(node: Node, times: int) -> None:
    with node.connect() as client:
        for number in range(times):
            with client.transaction(f"txn-{node.version}-{times}-{number}") as transaction:
                transaction.push(table(number))


def topics(node: Node, times: int) -> None:
    """Make and drop fifty topics at a time; one of each fifty is written to, over one connection that stays and one that does not."""
    for first in range(0, times, AT_ONCE):
        names = [f"t{first + number}" for number in range(min(AT_ONCE, times))]
        node.tell_topics(*names)
        with node.connect() as client:
            client.push(table(1), topic=names[0])
            client.subscribe("s", topic=names[0]).close()
        node.tell_topics()
        for name in names:  # as the supervisor does once its workers have given it up
            OpenedDirectories(str(node.run_dir)).forget(name)
            shutil.rmtree(node.worker.data_dir / name)


KINDS: dict[str, Callable[[Node, int], None]] = {
    found.__name__: found
    for found in (
        segments,
        connections,
        refused_connections,
        subscriptions,
        async_subscriptions,
        holds,
        transactions,
        topics,
    )
}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_it_waits_for_the_collector(node: Node, kind: str) -> None:
    open_use_drop = KINDS[kind]
    open_use_drop(node, 3)
    with without_collector():
        before = ours()
        open_use_drop(node, TIMES)

        def left() -> Counter[str]:
            return Counter({name: n - before[name] for name, n in ours().items() if n - before[name] > LEFT_MAX})

        # The worker still works off what was asked of it last.
        with contextlib.suppress(AssertionError):
            until(lambda: not left(), "what was dropped to go")
        assert left() == {}, f"after {TIMES} {kind}"


def test_a_deletion_is_remembered_as_long_as_a_connection_is_older(node: Node) -> None:
    own = node.worker.worker.loop._adoption._own
    with node.connect() as client:
        client.push(table(1), topic=STEADY[0])
        topics(node, 2)
        assert set(own._deleted_at) == {"t0", "t1"}
    until(lambda: not own._deleted_at, "the deletions to be forgotten")
