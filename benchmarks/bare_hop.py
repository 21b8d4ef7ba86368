"""The floor of a durable push to another process: the same waking as in a node, and none of the work.

A producer sends a few bytes over a Unix socket and waits in `epoll`. The other process, on one core, writes the bundle's bytes to a
preallocated new file, wakes a thread that syncs it, is woken by that, and answers. So there are the five hand-overs that a lone push
has, and two Python programs that do nothing else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator

_REQUEST_BYTES = 64
_CONTEXT = multiprocessing.get_context("spawn")


def serve(connection: socket.socket, path: str, bundle_bytes: int, bundles: int) -> None:
    """Until the other end is closed."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    content = os.urandom(bundle_bytes)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.posix_fallocate(descriptor, 0, bundle_bytes * bundles)
    os.fsync(descriptor)
    work, done = os.eventfd(0), os.eventfd(0)
    threading.Thread(target=_sync, args=(descriptor, work, done), daemon=True).start()
    poll = select.epoll()
    poll.register(connection.fileno(), select.EPOLLIN)
    poll.register(done, select.EPOLLIN)
    connection.send(b"ready")
    end = 0
    while True:
        for ready, _ in poll.poll():
            if ready == done:
                os.eventfd_read(done)
                connection.send(b"x")
            elif not connection.recv(_REQUEST_BYTES):
                return
            else:
                os.pwrite(descriptor, content, end)
                end += bundle_bytes
                os.eventfd_write(work, 1)


def _sync(descriptor: int, work: int, done: int) -> None:
    while True:
        os.eventfd_read(work)
        os.fdatasync(descriptor)
        os.eventfd_write(done, 1)


@contextlib.contextmanager
def bare_hop(directory: str, bundle_bytes: int, bundles: int) -> Iterator[Callable[[], None]]:
    """Start the other process; gives what pushes one bundle and returns when it is durable."""
    mine, its = socket.socketpair()
    path = os.path.join(directory, "bare-hop")
    process = _CONTEXT.Process(target=serve, args=(its, path, bundle_bytes, bundles))
    process.start()
    its.close()
    poll = select.epoll()
    poll.register(mine.fileno(), select.EPOLLIN)
    request = bytes(_REQUEST_BYTES)

    def push() -> None:
        mine.send(request)
        poll.poll()
        mine.recv(1)

    try:
        mine.recv(_REQUEST_BYTES)
        yield push
    finally:
        poll.close()
        mine.close()
        process.join()
        os.unlink(path)
