"""What does it cost to get bytes from a producer process to a worker process, without making them durable?

Method: two processes. `ours`: the arena of the product (reserve, copy in, commit, one msgpack Push message per group over a Unix socket,
the worker side copies the span out, checks its CRC, publishes the credit and answers). Limits in the same run, interleaved: `memcpy`
of the same bytes, `bare-ring` (the same shared memory and socket wake-ups, but fixed 24-byte messages and no CRC), `checked-ring` (the bare
ring with the two CRCs of `ours`: what they cost is the difference, what the product adds beside them is the ratio to it), and `socket`, a
Unix stream socket that carries the bytes. At most 8 MiB are under way, or two bundles.

    python -m benchmarks.handoff [--quick] [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import (
    Candidate,
    Measurements,
    Report,
    arguments,
    begun,
    run_interleaved,
)
from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.framing import FrameReader, decode_client_message, encode_frame
from quiver_actors.base.protocol.messages import Push
from quiver_actors.shm.arena import ArenaOwner, ArenaProducer

KIB, MIB = 1 << 10, 1 << 20
ARENA_BYTES = 64 * MIB
IN_FLIGHT_BYTES = 8 * MIB
_GROUP_BYTES = 256 * KIB
_ANSWER = struct.Struct("<Q")
_SPAN = struct.Struct("<QQQ")
"""Offset, length, CRC."""

Loop = Callable[[socket.socket], None]


def _with_child(child: Loop, parent: Callable[[socket.socket], float]) -> float:
    """Run `child` in a forked process on core 1 and `parent` here on core 0; seconds that the parent reports."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    cores = sorted(os.sched_getaffinity(0))
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.sched_setaffinity(0, {cores[-1]})
        child(theirs)
        os._exit(0)
    theirs.close()
    os.sched_setaffinity(0, {cores[0]})
    try:
        return parent(ours)
    finally:
        ours.close()
        os.waitpid(pid, 0)
        os.sched_setaffinity(0, set(cores))


def _drive(sock: socket.socket, total: int, group: int, send: Callable[[int], None], size: int) -> float:
    """Send groups while fewer than IN_FLIGHT_BYTES are unanswered; every answer says how many bundles are done."""
    sent = done = 0
    window = max(2 * group, IN_FLIGHT_BYTES // size)
    started = time.perf_counter()
    while done < total:
        while sent < total and sent - done + group <= window:
            send(min(group, total - sent))
            sent += min(group, total - sent)
        answers = sock.recv(_ANSWER.size * 256)
        (done,) = _ANSWER.unpack_from(answers, len(answers) - _ANSWER.size)
    return time.perf_counter() - started


def ours(size: int, total: int) -> Measurements:
    owner = ArenaOwner.create(ARENA_BYTES)
    payload = np.random.default_rng(1).integers(0, 255, size, dtype=np.uint8).data
    group = max(1, _GROUP_BYTES // size)

    def worker(sock: socket.socket) -> None:
        reader, private, done = FrameReader(), memoryview(bytearray(ARENA_BYTES)), 0
        while True:
            data = sock.recv(MIB)
            if not data:
                return
            reader.feed(data)
            for frame in reader.frames():
                push = decode_client_message(frame)
                assert isinstance(push, Push)
                copy = private[: push.length]
                copy[:] = owner.span(push.offset, push.length)
                owner.publish_released(push.end_position)
                assert crc32(copy) == push.tag
                done += push.length // size
            sock.send(_ANSWER.pack(done))

    def producer(sock: socket.socket) -> float:
        arena = ArenaProducer.attach(owner.fd, owner.size_bytes)

        def send(count: int) -> None:
            offset = arena.reserve(count * size)
            assert offset is not None, "the window is smaller than the arena"
            for number in range(count):
                at = offset + number * size
                arena.ring[at : at + size] = payload
            crc = crc32(arena.ring[offset : offset + count * size])
            end = arena.commit(count * size)
            sock.sendall(encode_frame(Push(crc, "t", offset, count * size, end, b"", b"", b"")))

        return _drive(sock, total, group, send, size)

    took = _with_child(worker, producer)
    owner.close()
    return _rate(total, size, took)


def bare_ring(size: int, total: int, *, is_checked: bool = False) -> Measurements:
    shared = mmap.mmap(-1, ARENA_BYTES, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    view = memoryview(shared)
    payload = np.random.default_rng(1).integers(0, 255, size, dtype=np.uint8).data
    group = max(1, _GROUP_BYTES // size)

    def worker(sock: socket.socket) -> None:
        private, done, rest = memoryview(bytearray(ARENA_BYTES)), 0, b""
        while data := sock.recv(MIB):
            rest += data
            whole = len(rest) - len(rest) % _SPAN.size
            for offset, length, crc in _SPAN.iter_unpack(rest[:whole]):
                private[:length] = view[offset : offset + length]
                assert not is_checked or crc32(private[:length]) == crc
                done += length // size
            rest = rest[whole:]
            sock.send(_ANSWER.pack(done))

    def producer(sock: socket.socket) -> float:
        at = 0

        def send(count: int) -> None:
            nonlocal at
            # Over the first 16 MiB only, as the product's ring does, so that both stay in the shared cache.
            at = 0 if at + count * size > 2 * IN_FLIGHT_BYTES else at
            start = at
            for _ in range(count):
                view[at : at + size] = payload
                at += size
            crc = crc32(view[start:at]) if is_checked else 0
            sock.sendall(_SPAN.pack(start, at - start, crc))

        return _drive(sock, total, group, send, size)

    return _rate(total, size, _with_child(worker, producer))


def over_socket(size: int, total: int) -> Measurements:
    payload = np.random.default_rng(1).integers(0, 255, size, dtype=np.uint8).data
    group = max(1, _GROUP_BYTES // size)

    def worker(sock: socket.socket) -> None:
        private, received, answered = memoryview(bytearray(MIB)), 0, 0
        while count := sock.recv_into(private):
            received += count
            # One answer a group, as the others give: more than the socket holds would block this side while the other one sends.
            if received - answered >= group * size or received == total * size:
                answered = received
                sock.send(_ANSWER.pack(received // size))

    def producer(sock: socket.socket) -> float:
        def send(count: int) -> None:
            for _ in range(count):
                sock.sendall(payload)

        return _drive(sock, total, group, send, size)

    return _rate(total, size, _with_child(worker, producer))


def memcpy(size: int, total: int) -> Measurements:
    source, target = np.ones(size, np.uint8), np.empty(IN_FLIGHT_BYTES + size, np.uint8)
    started = time.perf_counter()
    for number in range(total):
        at = number * size % IN_FLIGHT_BYTES
        target[at : at + size] = source
    return _rate(total, size, time.perf_counter() - started)


def _rate(total: int, size: int, took: float) -> Measurements:
    return {"bundles/s": total / took, "MB/s": total * size / took / 1e6}


def main() -> None:
    options = arguments(__doc__)
    with begun(options) as (report, _):
        for size in (KIB, 64 * KIB, MIB, 8 * MIB):
            compare(report, size, options)


def compare(report: Report, size: int, options: argparse.Namespace) -> None:
    total = max(8, (64 * MIB if options.quick else 2048 * MIB) // max(size, 8 * KIB))
    candidates: dict[str, Candidate] = {
        "ours": lambda: ours(size, total),
        "bare-ring": lambda: bare_ring(size, total),
        "checked-ring": lambda: bare_ring(size, total, is_checked=True),
        "socket": lambda: over_socket(size, total),
        "memcpy": lambda: memcpy(size, total),
    }
    results = run_interleaved(candidates, options.rounds)
    case = f"handoff/{size // MIB}MiB" if size >= MIB else f"handoff/{size // KIB}KiB"
    for against in ("bare-ring", "checked-ring", "memcpy", "socket"):
        report.show_rounds(case, results["ours"], "MB/s", "MB/s", "none", (against, results[against]))
    report.show_rounds(
        f"{case}/checked-ring", results["checked-ring"], "MB/s", "MB/s", "none", ("bare-ring", results["bare-ring"])
    )


if __name__ == "__main__":
    main()
