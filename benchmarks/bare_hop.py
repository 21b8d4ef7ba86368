"""The floor of a durable push to another process: the same waking as in a node, and none of the work.

A producer sends a few bytes over a Unix socket and waits in `epoll`. The other process, on one core, writes the message's bytes, which it
has at hand, to a preallocated new file, wakes a thread that syncs it, is woken by that, and answers; what has come meanwhile shares the
next sync. So there are the five hand-overs that a lone push has, and Python programs that do nothing else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

_REQUEST_BYTES = 64
_CONTEXT = multiprocessing.get_context("spawn")


def serve(connections: Sequence[socket.socket], path: str, message_bytes: int, messages: int) -> None:
    """Serve until the other ends are closed."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    content = os.urandom(message_bytes)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.posix_fallocate(descriptor, 0, message_bytes * messages)
    os.fsync(descriptor)
    work, done = os.eventfd(0), os.eventfd(0)
    threading.Thread(target=_sync, args=(descriptor, work, done), daemon=True).start()
    peers = {connection.fileno(): connection for connection in connections}
    poll = select.epoll()
    for number in (*peers, done):
        poll.register(number, select.EPOLLIN)
    for connection in connections:
        connection.send(b"ready")
    end, written, syncing = 0, list[socket.socket](), list[socket.socket]()
    while peers:
        for ready, _ in poll.poll():
            if ready == done:
                os.eventfd_read(done)
                for connection in syncing:
                    connection.send(b"x")
                syncing = []
            elif not peers[ready].recv(_REQUEST_BYTES):
                poll.unregister(ready)
                del peers[ready]
            else:
                os.pwrite(descriptor, content, end)
                end += message_bytes
                written.append(peers[ready])
        if written and not syncing:
            syncing, written = written, []
            os.eventfd_write(work, 1)


def _sync(descriptor: int, work: int, done: int) -> None:
    while True:
        os.eventfd_read(work)
        os.fdatasync(descriptor)
        os.eventfd_write(done, 1)


@contextlib.contextmanager
def _serving(directory: str, message_bytes: int, messages: int, producers: int) -> Iterator[list[socket.socket]]:
    """Start the other process; gives the producers' ends."""
    pairs = [socket.socketpair() for _ in range(producers)]
    path = os.path.join(directory, "bare-hop")
    process = _CONTEXT.Process(target=serve, args=([its for _, its in pairs], path, message_bytes, messages))
    process.start()
    for _, its in pairs:
        its.close()
    try:
        yield [mine for mine, _ in pairs]
    finally:
        for mine, _ in pairs:
            mine.close()
        process.join()
        os.unlink(path)


@contextlib.contextmanager
def _pushing(mine: socket.socket) -> Iterator[Callable[[], None]]:
    """Gives what sends one message and returns when it is durable."""
    poll = select.epoll()
    poll.register(mine.fileno(), select.EPOLLIN)
    request = bytes(_REQUEST_BYTES)

    def push() -> None:
        mine.send(request)
        poll.poll()
        mine.recv(1)

    mine.recv(_REQUEST_BYTES)
    yield push
    poll.close()


@contextlib.contextmanager
def bare_hop(directory: str, bundle_bytes: int, bundles: int) -> Iterator[Callable[[], None]]:
    """Start the other process; gives what pushes one bundle and returns when it is durable."""
    with _serving(directory, bundle_bytes, bundles, 1) as (mine,), _pushing(mine) as push:
        yield push


def bare_hops_per_s(directory: str, message_bytes: int, messages: int, producers: int) -> float:
    """Messages a second of so many producers, each of which sends that many, one after the other."""
    barrier, results = _CONTEXT.Barrier(producers), _CONTEXT.SimpleQueue()
    with _serving(directory, message_bytes, messages * producers, producers) as ends:
        processes = [_CONTEXT.Process(target=_produce, args=(end, messages, barrier, results)) for end in ends]
        for process in processes:
            process.start()
        times = [results.get() for _ in processes]
        for process in processes:
            process.join()
    return messages * producers / (max(ended for _, ended in times) - min(started for started, _ in times))


def _produce(mine: socket.socket, messages: int, barrier: Barrier, results: Any) -> None:
    with _pushing(mine) as push:
        barrier.wait()
        started = time.perf_counter()
        for _ in range(messages):
            push()
        results.put((started, time.perf_counter()))
