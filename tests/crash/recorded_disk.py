"""A block device that remembers which of its writes were flushed, so that the power can be cut at any write.

A loop device lies on a file of a FUSE file system that a process of ours serves. Each write that the kernel sends to the device arrives
there, and so does each flush. A crash image is what a disk with a volatile cache may hold when the power goes: everything written before
the last flush, and of what came after it any part, in pages of 4 KiB, in any order. The image is taken between two requests, while the
file system above and the node on it go on; it is not a copy of a file that changes meanwhile.

The protocol is the kernel's `fuse.h`, version 7.31, as far as one file needs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import os
import select
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from quiver_actors.supervisor.spawn import die_with
from tests.crash.mounts import unmount

NAME = "disk"
PAGE_BYTES = 4096
_WRITE_BYTES_MAX = 1 << 20
_REQUEST = struct.Struct("<IIQQIIIHH")
_REPLY = struct.Struct("<IiQ")
_INIT = struct.Struct("<IIIIHHIIHH8I")
_ATTRIBUTES = struct.Struct("<6Q10I")
_READ_WRITE = struct.Struct("<QQI")
_WRITE_HEADER_BYTES = 40
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_ROOT_NODE, _FILE_NODE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


class Operation(enum.IntEnum):
    """What the kernel asks for, of what one file needs."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_WITHOUT_REPLY = (Operation.FORGET, Operation.BATCH_FORGET, Operation.INTERRUPT)


class Platter:
    """Content of the disk: the present one, and the one at the last flush."""

    def __init__(self, image: Path) -> None:
        self.size_bytes = image.stat().st_size
        self._current, self._durable = os.memfd_create("current"), os.memfd_create("durable")
        source = os.open(image, os.O_RDONLY)
        for target in (self._current, self._durable):
            copy_sparsely(source, target, self.size_bytes)
        os.close(source)
        self._unflushed: list[tuple[int, bytes]] = []
        self.writes = 0
        self.flushes = 0

    def close(self) -> None:
        os.close(self._current)
        os.close(self._durable)

    def read(self, size_bytes: int, offset: int) -> bytes:
        return os.pread(self._current, size_bytes, offset)

    def write(self, content: bytes, offset: int) -> None:
        self.writes += 1
        os.pwrite(self._current, content, offset)
        self._unflushed.append((offset, content))

    def flush(self) -> None:
        self.flushes += 1
        for offset, content in self._unflushed:
            os.pwrite(self._durable, content, offset)
        self._unflushed.clear()

    def crash(self, image: str, random: Random) -> int:
        """Write an image as a power cut may leave it. Returns how many pages of unflushed writes were lost."""
        target = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        copy_sparsely(self._durable, target, self.size_bytes)
        share, lost = random.choice((0.0, 0.5, 0.9, 1.0)), 0
        for offset, content in self._unflushed:
            for at in range(0, len(content), PAGE_BYTES):
                if random.random() < share:
                    os.pwrite(target, content[at : at + PAGE_BYTES], offset + at)
                else:
                    lost += 1
        os.close(target)
        return lost


def copy_sparsely(source: int, target: int, size_bytes: int) -> None:
    os.ftruncate(target, size_bytes)
    at = 0
    with contextlib.suppress(OSError):  # ENXIO: no data behind `at`
        while at < size_bytes:
            at = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, at, os.SEEK_HOLE)
            while at < end:
                at += os.pwrite(target, os.pread(source, min(end - at, 1 << 22), at), at)


class Server:
    """Answers the kernel, and takes images for whoever holds the other end of the control socket. One process, one thread."""

    def __init__(self, fuse: int, control: socket.socket, platter: Platter) -> None:
        self._fuse = fuse
        self._control = control
        self._platter = platter
        self._wanted: tuple[int, str, int] | None = None
        """At which write an image is to be taken, where to, and its seed."""

    def serve(self) -> None:
        """Serve until the file system is unmounted, or the campaign is gone."""
        poll = select.poll()
        for descriptor in (self._fuse, self._control.fileno()):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._control.fileno():
                    self._hear()
                elif not self._answer():
                    return

    def _hear(self) -> None:
        received = self._control.recv(4096)
        if not received:
            os._exit(0)
        in_writes, seed, path = received.decode().split(" ", 2)
        self._wanted = (self._platter.writes + int(in_writes), path, int(seed))
        self._take_image_if_due()

    def _take_image_if_due(self) -> None:
        if self._wanted is not None and self._platter.writes >= self._wanted[0]:
            _, path, seed = self._wanted
            self._wanted = None
            lost = self._platter.crash(path, Random(seed))
            self._control.send(f"{self._platter.writes} {self._platter.flushes} {lost}".encode())

    def _answer(self) -> bool:
        try:
            request = os.read(self._fuse, _WRITE_BYTES_MAX + PAGE_BYTES)
        except OSError as error:
            return error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT)
        _, operation, unique, node, *_ = _REQUEST.unpack_from(request)
        body = memoryview(request)[_REQUEST.size :]
        if operation in _WITHOUT_REPLY:
            return True
        answer = self._do(operation, node, body)
        number, content = (answer, b"") if isinstance(answer, int) else (0, answer)
        os.write(self._fuse, _REPLY.pack(_REPLY.size + len(content), -number, unique) + content)
        self._take_image_if_due()
        return operation != Operation.DESTROY

    def _do(self, operation: int, node: int, body: memoryview) -> bytes | int:
        match operation:
            case Operation.INIT:
                flags = _BIG_WRITES | _MAX_PAGES
                return _INIT.pack(7, 31, _WRITE_BYTES_MAX, flags, 16, 12, _WRITE_BYTES_MAX, 1, 256, 0, *[0] * 8)
            case Operation.READ:
                _, offset, size_bytes = _READ_WRITE.unpack_from(body)
                return self._platter.read(size_bytes, offset)
            case Operation.WRITE:
                _, offset, size_bytes = _READ_WRITE.unpack_from(body)
                self._platter.write(bytes(body[_WRITE_HEADER_BYTES : _WRITE_HEADER_BYTES + size_bytes]), offset)
                return struct.pack("<II", size_bytes, 0)
            case Operation.FSYNC:
                self._platter.flush()
                return b""
            case Operation.LOOKUP:
                if bytes(body).rstrip(b"\0") != NAME.encode():
                    return errno.ENOENT
                return struct.pack("<4Q2I", _FILE_NODE, 0, 3600, 3600, 0, 0) + self._attributes(_FILE_NODE)
            case Operation.GETATTR | Operation.SETATTR:
                return struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
            case Operation.OPEN:
                return struct.pack("<QIi", 0, 0, 0)
            case Operation.STATFS:
                return struct.pack("<5Q4I6I", 0, 0, 0, 0, 0, PAGE_BYTES, 255, PAGE_BYTES, 0, *[0] * 6)
            case Operation.RELEASE | Operation.FLUSH | Operation.DESTROY:
                return b""
            case _:
                return errno.ENOSYS

    def _attributes(self, node: int) -> bytes:
        if node == _ROOT_NODE:
            size_bytes, mode = 0, stat.S_IFDIR | 0o700
        else:
            size_bytes, mode = self._platter.size_bytes, stat.S_IFREG | 0o600
        times = (0, 0, 0)
        return _ATTRIBUTES.pack(node, size_bytes, size_bytes // 512, *times, *times, mode, 1, 0, 0, 0, PAGE_BYTES, 0)


class RecordedDisk:
    """The file `path` is the disk. Owned by the campaign."""

    def __init__(self, path: Path, control: socket.socket) -> None:
        self.path = path
        self._control = control
        self.pages_lost = 0
        self.writes = 0
        self.flushes = 0

    def crash_image(self, image: Path, in_writes: int, seed: int) -> None:
        """Write an image of the moment after so many more writes. The seed decides which unflushed pages are in it."""
        self._control.send(f"{in_writes} {seed} {image}".encode())
        self._control.settimeout(60)
        self.writes, self.flushes, lost = map(int, self._control.recv(4096).split())
        self.pages_lost += lost


@contextlib.contextmanager
def recorded_disk(image: Path) -> Iterator[RecordedDisk]:
    """A disk that begins as the image. Raises OSError: FUSE cannot be used here."""
    with tempfile.TemporaryDirectory(prefix="quiver-disk-") as directory:
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
        if _libc.mount(b"quiver", directory.encode(), b"fuse", 0, options):
            number = ctypes.get_errno()
            raise OSError(number, f"FUSE cannot be mounted: {os.strerror(number)}")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        campaign, platter = os.getpid(), Platter(image)
        if (pid := os.fork()) == 0:
            ours.close()
            try:
                die_with(campaign)
                Server(fuse, theirs, platter).serve()
            finally:
                os._exit(0)
        os.close(fuse)
        theirs.close()
        platter.close()
        try:
            yield RecordedDisk(Path(directory) / NAME, ours)
        finally:
            unmount(Path(directory))
            ours.close()
            os.waitpid(pid, 0)
