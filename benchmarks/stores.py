"""What a user of one node could store bundles in instead: each behind the same four calls, each set so that a group is on the disk before
`append` returns, and in the form that is fastest at that.

An in-process store has one writer and commits a group at a time. A server is a process of its own, started on the store's directory and
ended with it; its client is this process. Settings are the store's own defaults except where durability asks for another, and
compression is off. One that is not installed says so in `missing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pyarrow as pa

_DEADLINE_SECONDS = 20


class Store:
    """Opened on an empty directory. Bundles are the bytes of an Arrow stream of one batch."""

    name: ClassVar[str]
    how: ClassVar[str]
    """What makes a group durable."""
    modules: ClassVar[tuple[str, ...]] = ()
    program: ClassVar[str] = ""
    install: ClassVar[str] = "make bench-peers"

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.count = 0
        self.server: subprocess.Popen[bytes] | None = None
        self.open()

    @classmethod
    def missing(cls) -> str:
        """Return what is not installed, and how to install it; empty if nothing is missing."""
        found = [f"Python module {module}" for module in cls.modules if importlib.util.find_spec(module) is None]
        if cls.program and program(cls.program) is None:
            found.append(f"program {cls.program}")
        return f"no {', no '.join(found)}: {cls.install}" if found else ""

    def open(self) -> None:
        raise NotImplementedError

    def append(self, group: Sequence[bytes]) -> None:
        """Store the group; on the disk when this returns."""
        raise NotImplementedError

    def read(self) -> Iterator[Any]:
        """Every stored bundle in order, as memory that pyarrow can open, or as a batch."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what `open` took, and end the server."""
        if self.server is not None:
            self.server.terminate()
            self.server.wait()

    @property
    def processes(self) -> list[psutil.Process]:
        """The server's, if there is one."""
        return [psutil.Process(self.server.pid)] if self.server else []

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def numbered(self, group: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Each with the next number as its key."""
        first, self.count = self.count, self.count + len(group)
        return [(number.to_bytes(8, "big"), bundle) for number, bundle in enumerate(group, first)]

    def start(self, command: Sequence[str], connect: Callable[[], Any]) -> Any:
        """Start the server; what `connect` returns as soon as it no longer fails."""
        with open(self.path("server.log"), "wb") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            try:
                return connect()
            except (OSError, LookupError, ValueError) as error:
                if time.monotonic() > deadline or self.server.poll() is not None:
                    told = Path(self.path("server.log")).read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{self.name} did not start: {error}\n{told}") from error
                time.sleep(0.02)


def program(name: str) -> str | None:
    """Return where a program is: beside this Python, or on the path."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    return beside if os.access(beside, os.X_OK) else shutil.which(name)


class Lmdb(Store):
    name, how = "LMDB", "one transaction a group, sync and metasync on, keys appended in order"
    modules = ("lmdb",)

    def open(self) -> None:
        import lmdb

        self.environment = lmdb.open(self.path("lmdb"), map_size=16 << 30)

    def append(self, group: Sequence[bytes]) -> None:
        with self.environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(self.numbered(group), append=True)

    def read(self) -> Iterator[Any]:
        with self.environment.begin(buffers=True) as transaction:
            yield from transaction.cursor().iternext(keys=False, values=True)

    def close(self) -> None:
        self.environment.close()


class Sqlite(Store):
    name, how = "SQLite", "one transaction a group, journal_mode=WAL, synchronous=FULL"

    def open(self) -> None:
        self.connection = sqlite3.connect(self.path("sqlite.db"), isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        self.connection.execute("CREATE TABLE bundles (id INTEGER PRIMARY KEY, content BLOB)")

    def append(self, group: Sequence[bytes]) -> None:
        self.connection.execute("BEGIN")
        self.connection.executemany("INSERT INTO bundles (content) VALUES (?)", [(bundle,) for bundle in group])
        self.connection.execute("COMMIT")

    def read(self) -> Iterator[Any]:
        yield from (row[0] for row in self.connection.execute("SELECT content FROM bundles ORDER BY id"))

    def close(self) -> None:
        self.connection.close()


class RocksDb(Store):
    name, how = "RocksDB", "one WriteBatch a group, WriteOptions.sync"
    modules = ("rocksdict",)

    def open(self) -> None:
        from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(DBCompressionType.none())
        self.database, self.new_batch = Rdict(self.path("rocksdb"), options), WriteBatch
        self.synced = WriteOptions()
        self.synced.sync = True

    def append(self, group: Sequence[bytes]) -> None:
        batch = self.new_batch(raw_mode=True)
        for key, bundle in self.numbered(group):
            batch.put(key, bundle)
        self.database.write(batch, self.synced)

    def read(self) -> Iterator[Any]:
        yield from self.database.values()

    def close(self) -> None:
        self.database.close()


class PersistQueue(Store):
    name, how = "persist-queue", "SQLiteQueue (its WAL, synchronous FULL), auto_commit off, committed after each group"
    modules = ("persistqueue",)

    def open(self) -> None:
        import persistqueue

        self.queue = persistqueue.SQLiteQueue(self.path("queue"), auto_commit=False)

    def append(self, group: Sequence[bytes]) -> None:
        for bundle in group:
            self.queue.put(bundle)
        self.queue.task_done()
        self.count += len(group)

    def read(self) -> Iterator[Any]:
        yield from (self.queue.get(block=False) for _ in range(self.count))
        self.queue.task_done()

    def close(self) -> None:
        self.queue.close()


class PlainFile(Store):
    name, how = (
        "pyarrow stream",
        "RecordBatchStreamWriter on an unbuffered file, fsync after each group; no index, no second writer",
    )

    def open(self) -> None:
        self.file = open(self.path("plain.arrows"), "wb", buffering=0)  # noqa: SIM115
        self.writer: Any = None

    def append(self, group: Sequence[Any]) -> None:
        """Takes batches: encoding is what this store does."""
        if self.writer is None:
            self.writer = pa.ipc.new_stream(pa.PythonFile(self.file, "w"), group[0].schema)
        for batch in group:
            self.writer.write_batch(batch)
        os.fsync(self.file.fileno())

    def read(self) -> Iterator[Any]:
        self.writer.close()
        with pa.memory_map(self.path("plain.arrows")) as source:
            yield from pa.ipc.open_stream(source)

    def close(self) -> None:
        self.file.close()


class RedisStream(Store):
    name, how = "Redis Streams", "XADD in one pipeline a group over a Unix socket, appendonly, appendfsync always"
    modules, program = ("redis",), "redis-server"
    page_bytes: ClassVar[int] = 1 << 20

    def open(self) -> None:
        import redis

        socket = self.path("redis.sock")
        self.client = redis.Redis(unix_socket_path=socket)
        command = [program("redis-server") or "", "--port", "0", "--unixsocket", socket, "--dir", self.directory]
        command += [
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
            "--auto-aof-rewrite-percentage",
            "0",
        ]
        self.start(command, self._ping)

    def _ping(self) -> None:
        import redis

        try:
            self.client.ping()
        except redis.ConnectionError as error:
            raise OSError(str(error)) from error

    def append(self, group: Sequence[bytes]) -> None:
        pipeline = self.client.pipeline(transaction=False)
        for bundle in group:
            pipeline.execute_command("XADD", "bundles", "*", "b", bundle)
        pipeline.execute()

    def read(self) -> Iterator[Any]:
        page_of: Any = self.client.xrange  # its types know of no request for bytes
        after, count = "-", 16
        while entries := page_of("bundles", min=after, count=count):
            for _, fields in entries:
                yield fields[b"b"]
            after = f"({entries[-1][0].decode()}"
            count = max(1, min(1024, self.page_bytes // len(fields[b"b"])))

    def close(self) -> None:
        self.client.close()
        super().close()


class JetStream(Store):
    name = "NATS JetStream"
    how = "atomic batches of up to 1,000 messages (single publish where the group is one), sync_interval always, file storage"
    modules, program = ("nats",), "nats-server"
    batch_messages: ClassVar[int] = 1000

    def open(self) -> None:
        settings = Path(self.path("nats.conf"))
        settings.write_text(
            f'host: 127.0.0.1\nport: -1\nports_file_dir: "{self.directory}"\nmax_payload: 8MB\n'
            f'jetstream {{ store_dir: "{self.path("jetstream")}", sync_interval: always, max_file: 64GB }}\n'
        )
        self.loop = asyncio.new_event_loop()
        self.batches = 0
        self.start([program("nats-server") or "", "-c", str(settings)], self._connect)

    def _connect(self) -> None:
        import nats

        (ports,) = Path(self.directory).glob("*.ports")
        (url, *_) = json.loads(ports.read_text())["nats"]
        self.client = self.loop.run_until_complete(nats.connect(url, allow_reconnect=False, pending_size=256 << 20))
        self.stream = self.client.jetstream()
        self.loop.run_until_complete(
            self.stream.add_stream(name="bundles", subjects=["b"], storage="file", allow_atomic=True)
        )

    def append(self, group: Sequence[bytes]) -> None:
        self.loop.run_until_complete(self._publish(group))

    async def _publish(self, group: Sequence[bytes]) -> None:
        if len(group) == 1:
            await self.stream.publish("b", group[0], timeout=_DEADLINE_SECONDS)
            return
        for first in range(0, len(group), self.batch_messages):
            await self._publish_batch(group[first : first + self.batch_messages])

    async def _publish_batch(self, group: Sequence[bytes]) -> None:
        self.batches += 1
        for number, bundle in enumerate(group, 1):
            headers = {"Nats-Batch-Id": str(self.batches), "Nats-Batch-Sequence": str(number)}
            if number < len(group):
                await self.client.publish("b", bundle, headers=headers)
        headers["Nats-Batch-Commit"] = "1"
        answer = await self.client.request("b", group[-1], headers=headers, timeout=_DEADLINE_SECONDS)
        if "error" in json.loads(answer.data):
            raise RuntimeError(f"JetStream refused a batch: {answer.data!r}")

    def read(self) -> Iterator[Any]:
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        wait = self.loop.run_until_complete
        left = wait(self.stream.stream_info("bundles")).state.messages
        pulled = wait(self.stream.pull_subscribe("b", durable="reader", config=config))
        while left > 0:
            messages = wait(pulled.fetch(min(256, left), timeout=_DEADLINE_SECONDS))
            left -= len(messages)
            yield from (message.data for message in messages)

    def close(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            self.loop.run_until_complete(self.client.close())
        self.loop.close()
        super().close()


PEERS: tuple[type[Store], ...] = (Lmdb, Sqlite, RocksDb, PlainFile, PersistQueue, RedisStream, JetStream)
