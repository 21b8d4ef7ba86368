"""The arena: a shared-memory ring that one producer process writes spans into and one owner process copies them out of.

Owner: the worker makes it (`ArenaOwner`), sends the descriptor to the producer (`ArenaProducer`), and publishes up to where it is
done. There is no name; the memory is freed with the last descriptor and mapping.

Layout, little-endian:

    0      8  magic `QVARENA1`
    8      8  u64 version = 1
    16     8  u64 ring size in bytes
    64     8  u64 head: position behind the last committed span; written by the producer only
    128    8  u64 released: position up to which the producer may write again; written by the owner only
    4096      the ring

Invariants:
- Every page is allocated before anybody maps it, and the size is sealed: neither side can meet SIGBUS.
- Positions are the ones of `ring.py`. The owner bounds whatever the producer tells it and never reads back its own word.
- A producer that dies at any point leaves at most unpublished bytes: the owner goes on or closes.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import warnings

from .errors import NoRoom, ShmError
from .ring import RingAllocator, align_up
from .room import available_bytes
from .words import CACHE_LINE_BYTES, WEAKLY_ORDERED, Words, fence

MAGIC = b"QVARENA1"
VERSION = 1
HEADER_BYTES = 4096
PAGE_BYTES = max(mmap.PAGESIZE, 4096)

_HEADER = struct.Struct("<8sQQ")
_HEAD_OFFSET_BYTES = CACHE_LINE_BYTES
_RELEASED_OFFSET_BYTES = 2 * CACHE_LINE_BYTES
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class ArenaOwner:
    """The worker's end of one arena. Not thread-safe.

    `fd` is the descriptor to send to the producer, owned by this object. `size_bytes` is the size of the ring.
    """

    __slots__ = ("_head", "_mapping", "_released", "_released_position", "_ring", "fd", "size_bytes")

    def __init__(self, fd: int, mapping: mmap.mmap, size_bytes: int) -> None:
        """Take over a new arena's descriptor and mapping: use `create`."""
        memory = memoryview(mapping)
        self.fd = fd
        self.size_bytes = size_bytes
        self._mapping: mmap.mmap | None = mapping
        self._head = Words(memory, _HEAD_OFFSET_BYTES, 1)
        self._released = Words(memory, _RELEASED_OFFSET_BYTES, 1)
        self._released_position = 0
        self._ring = memory[HEADER_BYTES:].toreadonly()

    @classmethod
    def create(cls, size_bytes: int) -> ArenaOwner:
        """Make an arena with a ring of at least `size_bytes`, rounded up to whole pages.

        Cost: about 0.4 ms a MiB, all but a tenth of it with the interpreter lock released.

        Raises:
            NoRoom: the machine or the memory group cannot hold it.
            ShmError: the size is not positive, or the kernel refuses.
        """
        if size_bytes < 1:
            raise ShmError(f"an arena of {size_bytes} bytes: expected at least 1")
        ring_bytes = align_up(size_bytes, PAGE_BYTES)
        _check_room(HEADER_BYTES + ring_bytes)
        try:
            fd = os.memfd_create("quiver-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise ShmError(f"arena of {ring_bytes} bytes: memfd_create failed: {error.strerror}") from error
        try:
            return cls(fd, _allocate(fd, ring_bytes), ring_bytes)
        except OSError as error:
            os.close(fd)
            raise NoRoom(f"arena of {ring_bytes} bytes cannot be allocated: {error.strerror}") from error

    def span(self, offset: int, length: int) -> memoryview:
        """A read-only view of `length` bytes of the ring, borrowed until the span's position is released.

        The producer can write it at any time: copy it out before any check.

        Raises:
            ShmError: not inside the ring, or closed.
        """
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise ShmError(f"span of {length} bytes at {offset} is not inside the arena's ring of {self.size_bytes}")
        try:
            return self._ring[offset : offset + length]
        except ValueError:
            raise ShmError("the arena is closed") from None

    def next_span(self, offset: int, length: int, end_position: int) -> memoryview | None:
        """`span`, whose end is to be released next at that position; None: `span` or `publish_released` would raise."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes or self._mapping is None:
            return None
        if not 0 <= end_position - self._released_position <= self.size_bytes:
            return None
        return self._ring[offset : offset + length]

    def publish_released(self, position: int) -> None:
        """Let the producer write again everything before `position`.

        Raises:
            ShmError: the position goes back or further than a full ring, so the producer that named it is broken; or closed.
        """
        if not 0 <= position - self._released_position <= self.size_bytes:
            raise ShmError(
                f"position {position} cannot follow {self._released_position} in a ring of {self.size_bytes} bytes"
            )
        if self._mapping is None:
            raise ShmError("the arena is closed")
        if WEAKLY_ORDERED:
            fence()
        self._released.words[0] = position  # SYNC: credit. Stored after the last read of the bytes before it.
        self._released_position = position

    def used_bytes(self) -> int:
        """Bytes committed and not released yet. For figures: the producer could say anything within the ring's size."""
        return min(max(self._head.load(0) - self._released_position, 0), self.size_bytes)

    def discard(self) -> None:
        """Close, and give the memory back at once: a producer that keeps its mapping finds zeroes in it. No span is borrowed any more."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_REMOVE)
            self.close()

    def close(self) -> None:
        """Close the descriptor and the mapping; the memory stays while spans are borrowed. Idempotent."""
        if self._mapping is None:
            return
        os.close(self.fd)
        self.fd = -1
        self._head.release()
        self._released.release()
        _unmap(self._ring, self._mapping)
        self._mapping = None

    def __del__(self) -> None:
        if getattr(self, "_mapping", None) is not None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        state = "closed" if self._mapping is None else f"released={self._released_position}"
        return f"<ArenaOwner fd={self.fd} size_bytes={self.size_bytes} {state}>"


class ArenaProducer:
    """The producer's end of an arena. Not thread-safe.

    `ring` is the writable memory of the ring; `size_bytes` its size. Write only inside the open reservation.
    """

    __slots__ = ("_allocator", "_head", "_mapping", "_released", "ring", "size_bytes")

    def __init__(self, mapping: mmap.mmap, size_bytes: int) -> None:
        """Take over a mapping of a checked arena: use `attach`."""
        memory = memoryview(mapping)
        self.size_bytes = size_bytes
        self.ring = memory[HEADER_BYTES:]
        self._mapping: mmap.mmap | None = mapping
        self._head = Words(memory, _HEAD_OFFSET_BYTES, 1)
        self._released = Words(memory, _RELEASED_OFFSET_BYTES, 1)
        self._allocator = RingAllocator(size_bytes, head=self._head.load(0))

    @classmethod
    def attach(cls, fd: int, size_bytes: int) -> ArenaProducer:
        """Map the arena behind `fd`, whose ring must have `size_bytes`. The descriptor stays the caller's and may be closed then.

        Cost: about 0.05 ms a MiB: every page is mapped now rather than at its first use.

        Raises:
            ShmError: not an arena of that size, its size is not sealed, another producer has spans in it, or it cannot be mapped.
        """
        try:
            _check_sealed_size(fd, HEADER_BYTES + size_bytes)
            mapping = _map(fd, HEADER_BYTES + size_bytes)
        except OSError as error:
            raise ShmError(f"arena of {size_bytes} bytes cannot be attached: {error.strerror}") from error
        found = _HEADER.unpack_from(mapping)
        if found != (MAGIC, VERSION, size_bytes):
            raise ShmError(f"not an arena of {size_bytes} bytes, version {VERSION}: its header says {found}")
        producer = cls(mapping, size_bytes)
        if producer.in_flight_bytes():
            raise ShmError("the arena has spans of another producer in it: attach a new one")
        return producer

    def reserve(self, size_bytes: int) -> int | None:
        """Open a reservation of up to `size_bytes` and return its offset in `ring`: contiguous, 64-byte aligned.

        Returns:
            None when credit is missing now: wait for the owner to release.

        Raises:
            ShmError: larger than the ring, another reservation is open, or closed.
        """
        offset = self._allocator.reserve(size_bytes, self._released.load(0))  # SYNC: credit
        if WEAKLY_ORDERED:
            fence()
        return offset

    def commit(self, used_bytes: int) -> int:
        """End the reservation: its first `used_bytes` are a span now, the rest goes back to the ring.

        Returns:
            The position behind the span. Whoever gets the span publishes it as released.

        Raises:
            ShmError: no reservation is open, it is smaller, nothing is used (that is `cancel`), or closed.
        """
        position = self._allocator.commit(used_bytes)
        if WEAKLY_ORDERED:
            fence()
        self._head.store(0, position)
        return position

    def put(self, content: bytearray) -> tuple[int, int] | None:
        """Reserve a span for these bytes, write and commit it.

        Returns:
            Its offset and the position behind it; None as `reserve`.

        Raises:
            ShmError: larger than the ring, a reservation is open, or closed.
        """
        size_bytes, allocator = len(content), self._allocator
        if self._mapping is None:
            raise ShmError("the arena is closed")
        offset = allocator.reserve(size_bytes, self._released.words[0])  # SYNC: credit
        if offset is None:
            return None
        if WEAKLY_ORDERED:
            fence()
        self.ring[offset : offset + size_bytes] = content
        position = allocator.commit(size_bytes)
        if WEAKLY_ORDERED:
            fence()
        self._head.words[0] = position
        return offset, position

    def cancel(self) -> None:
        """Forget the open reservation, if there is one."""
        self._allocator.cancel()

    def free_bytes(self) -> int:
        """Bytes not in use. A span of that size need not fit in one piece before the rest is released."""
        return self.size_bytes - self.in_flight_bytes()

    def in_flight_bytes(self) -> int:
        """Bytes committed and not released by the owner yet."""
        return self._allocator.head - self._released.load(0)

    def close(self) -> None:
        """Close the mapping; the memory stays while views of `ring` are borrowed. Idempotent."""
        if self._mapping is None:
            return
        self._head.release()
        self._released.release()
        _unmap(self.ring, self._mapping)
        self._mapping = None

    def __repr__(self) -> str:
        state = "closed" if self._mapping is None else f"in_flight_bytes={self.in_flight_bytes()}"
        return f"<ArenaProducer size_bytes={self.size_bytes} {state}>"


def _check_room(size_bytes: int) -> None:
    room = available_bytes()
    if room is not None and size_bytes > room:
        raise NoRoom(f"arena of {size_bytes} bytes: only {room} bytes of memory are available")


def _allocate(fd: int, ring_bytes: int) -> mmap.mmap:
    """Allocate, map and seal a new arena. Every page exists before the first access."""
    size_bytes = HEADER_BYTES + ring_bytes
    os.posix_fallocate(fd, 0, size_bytes)
    mapping = _map(fd, size_bytes)
    # Nobody else has the arena yet, so its header needs no care about concurrent readers.
    mapping[: _HEADER.size] = _HEADER.pack(MAGIC, VERSION, ring_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_SEAL)
    return mapping


def _map(fd: int, size_bytes: int) -> mmap.mmap:
    return mmap.mmap(fd, size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE)


def _check_sealed_size(fd: int, size_bytes: int) -> None:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except (OSError, ValueError):
        raise ShmError(f"descriptor {fd} is not sealable memory") from None
    if seals & _SIZE_SEALS != _SIZE_SEALS:
        raise ShmError(f"the arena behind descriptor {fd} is not sealed against a change of its size")
    found_bytes = os.fstat(fd).st_size
    if found_bytes != size_bytes:
        raise ShmError(
            f"the arena behind descriptor {fd} has {found_bytes} bytes with its header: expected {size_bytes}"
        )


def _unmap(ring: memoryview, mapping: mmap.mmap) -> None:
    """Unmap, unless somebody still borrows the memory: the mapping then goes with the last borrowed view."""
    with contextlib.suppress(BufferError):
        ring.release()
        mapping.close()
