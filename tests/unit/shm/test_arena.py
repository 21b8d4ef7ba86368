"""The arena: layout, seals, bounds, credit, life time."""

from __future__ import annotations

import fcntl
import os
import resource
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.shm.arena import HEADER_BYTES, ArenaOwner, ArenaProducer
from quiver_actors.shm.errors import NoRoom, ShmError
from tests.unit.shm.children import fork, join

RING_BYTES = 64 * 1024


@pytest.fixture
def owner() -> Iterator[ArenaOwner]:
    arena = ArenaOwner.create(RING_BYTES)
    yield arena
    arena.close()


@pytest.fixture
def producer(owner: ArenaOwner) -> Iterator[ArenaProducer]:
    end = ArenaProducer.attach(owner.fd, owner.size_bytes)
    yield end
    end.close()


def put(producer: ArenaProducer, content: bytes) -> tuple[int, int]:
    """Write one span; returns (offset, position behind)."""
    offset = producer.reserve(len(content))
    assert offset is not None
    producer.ring[offset : offset + len(content)] = content
    return offset, producer.commit(len(content))


def header_words(fd: int) -> tuple[bytes, int, int, int, int]:
    """The header as the layout table says, read through the descriptor."""
    page = os.pread(fd, HEADER_BYTES, 0)
    (head,), (released,) = struct.unpack_from("<Q", page, 64), struct.unpack_from("<Q", page, 128)
    return *struct.unpack_from("<8sQQ", page), head, released


def test_arena_header_is_as_documented(owner: ArenaOwner, producer: ArenaProducer) -> None:
    assert header_words(owner.fd) == (b"QVARENA1", 1, RING_BYTES, 0, 0)
    _, position = put(producer, bytes(100))
    owner.publish_released(64)
    assert header_words(owner.fd) == (b"QVARENA1", 1, RING_BYTES, position, 64)


@pytest.mark.parametrize(("asked", "given"), [(1, 4096), (4096, 4096), (4097, 8192), (1_000_000, 1_003_520)])
def test_arena_size_is_rounded_up_to_pages(asked: int, given: int) -> None:
    arena = ArenaOwner.create(asked)
    assert arena.size_bytes == given
    assert os.fstat(arena.fd).st_size == HEADER_BYTES + given
    arena.close()


def test_arena_pages_are_allocated_up_front(owner: ArenaOwner) -> None:
    assert os.fstat(owner.fd).st_blocks * 512 >= HEADER_BYTES + RING_BYTES


def test_arena_size_is_sealed(owner: ArenaOwner) -> None:
    for size_bytes in (0, 2 * RING_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(owner.fd, size_bytes)
    with pytest.raises(PermissionError):
        fcntl.fcntl(owner.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_arena_descriptor_does_not_leak_into_programs(owner: ArenaOwner) -> None:
    assert not os.get_inheritable(owner.fd)


def test_arena_span_shows_what_the_producer_wrote(owner: ArenaOwner, producer: ArenaProducer) -> None:
    put(producer, b"first")
    offset, _ = put(producer, b"second")
    assert offset == 64
    assert owner.span(offset, 6).tobytes() == b"second"


def test_arena_span_is_read_only(owner: ArenaOwner) -> None:
    assert owner.span(0, 64).readonly


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 1), (0, -1), (0, RING_BYTES + 1), (RING_BYTES, 1), (1 << 70, 1), (64, 1 << 70)]
)
def test_arena_span_outside_the_ring_is_refused(owner: ArenaOwner, offset: int, length: int) -> None:
    with pytest.raises(ShmError, match="not inside the arena's ring"):
        owner.span(offset, length)


def test_arena_credit_is_used_up_and_comes_back(owner: ArenaOwner, producer: ArenaProducer) -> None:
    _, first = put(producer, bytes(RING_BYTES // 2))
    _, second = put(producer, bytes(RING_BYTES // 2))
    assert producer.reserve(1) is None
    assert (producer.free_bytes(), producer.in_flight_bytes(), owner.used_bytes()) == (0, RING_BYTES, RING_BYTES)
    owner.publish_released(first)
    assert (producer.free_bytes(), producer.in_flight_bytes()) == (RING_BYTES // 2, RING_BYTES // 2)
    assert producer.reserve(RING_BYTES // 2) == 0
    producer.cancel()
    owner.publish_released(second)
    assert (producer.free_bytes(), owner.used_bytes()) == (RING_BYTES, 0)


def test_arena_reservation_larger_than_the_ring_can_never_fit(producer: ArenaProducer) -> None:
    with pytest.raises(ShmError, match=f"ring's {RING_BYTES}"):
        producer.reserve(RING_BYTES + 1)


def test_arena_uncommitted_reservation_is_invisible_to_the_owner(owner: ArenaOwner, producer: ArenaProducer) -> None:
    producer.reserve(1000)
    assert owner.used_bytes() == 0
    assert header_words(owner.fd)[3] == 0


def test_arena_released_position_must_rise_within_a_ring(owner: ArenaOwner) -> None:
    owner.publish_released(RING_BYTES)
    for position in (RING_BYTES - 64, 2 * RING_BYTES + 64, -1, 1 << 64, 1 << 70):
        with pytest.raises(ShmError, match="cannot follow"):
            owner.publish_released(position)
    owner.publish_released(RING_BYTES)
    assert header_words(owner.fd)[4] == RING_BYTES


@pytest.mark.parametrize("head", [0, 1, RING_BYTES + 1, (1 << 64) - 1])
def test_arena_used_bytes_stay_in_range_whatever_the_producer_wrote(owner: ArenaOwner, head: int) -> None:
    owner.publish_released(64)
    os.pwrite(owner.fd, struct.pack("<Q", head), 64)
    assert 0 <= owner.used_bytes() <= RING_BYTES


def test_arena_that_releases_too_much_is_refused_by_the_producer(owner: ArenaOwner, producer: ArenaProducer) -> None:
    os.pwrite(owner.fd, struct.pack("<Q", 128), 128)
    with pytest.raises(ShmError, match="position 128 is released"):
        producer.reserve(64)


def test_arena_attach_leaves_the_descriptor_open(owner: ArenaOwner) -> None:
    fd = os.dup(owner.fd)
    end = ArenaProducer.attach(fd, owner.size_bytes)
    os.close(fd)
    put(end, b"still mapped")
    end.close()
    assert owner.span(0, 12).tobytes() == b"still mapped"


def test_arena_second_producer_goes_on_where_everything_is_released(owner: ArenaOwner, producer: ArenaProducer) -> None:
    _, position = put(producer, bytes(1000))
    with pytest.raises(ShmError, match="spans of another producer"):
        ArenaProducer.attach(owner.fd, owner.size_bytes)
    owner.publish_released(position)
    second = ArenaProducer.attach(owner.fd, owner.size_bytes)
    assert put(second, bytes(1000)) == (0, position + 1024)
    second.close()


def sealed_memory(content: bytes, size_bytes: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    fd = os.memfd_create("not-an-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(fd, content, 0)
    os.ftruncate(fd, size_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


HEADER = struct.pack("<8sQQ", b"QVARENA1", 1, RING_BYTES)


@pytest.mark.parametrize(
    ("content", "size_bytes", "seals", "message"),
    [
        (HEADER, HEADER_BYTES + RING_BYTES, fcntl.F_SEAL_SHRINK, "not sealed against a change"),
        (HEADER, HEADER_BYTES + RING_BYTES, fcntl.F_SEAL_GROW, "not sealed against a change"),
        (HEADER, HEADER_BYTES + RING_BYTES - 1, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, "69631 bytes with its header"),
        (b"", HEADER_BYTES + RING_BYTES, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, "not an arena"),
        (
            struct.pack("<8sQQ", b"QVARENA1", 2, RING_BYTES),
            HEADER_BYTES + RING_BYTES,
            fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW,
            "version 1",
        ),
    ],
)
def test_arena_attach_to_something_else_is_refused(content: bytes, size_bytes: int, seals: int, message: str) -> None:
    fd = sealed_memory(content, size_bytes, seals)
    with pytest.raises(ShmError, match=message):
        ArenaProducer.attach(fd, RING_BYTES)
    os.close(fd)


def test_arena_attach_to_a_file_or_a_closed_descriptor_is_refused() -> None:
    with tempfile.TemporaryFile() as file, pytest.raises(ShmError, match="seal"):
        ArenaProducer.attach(file.fileno(), RING_BYTES)
    with pytest.raises(ShmError, match="not sealable memory"):
        ArenaProducer.attach(-1, RING_BYTES)


@pytest.mark.parametrize("size_bytes", [0, -1])
def test_arena_of_no_bytes_is_refused(size_bytes: int) -> None:
    with pytest.raises(ShmError, match="expected at least 1"):
        ArenaOwner.create(size_bytes)


def test_arena_larger_than_the_memory_is_refused_before_anything_is_allocated() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NoRoom, match=r"only [0-9]+ bytes of memory are available"):
        ArenaOwner.create(1 << 50)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_arena_that_the_kernel_cannot_allocate_is_a_clean_error() -> None:
    def run() -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (RING_BYTES, RING_BYTES))
        with pytest.raises(NoRoom, match="cannot be allocated: File too large"):
            ArenaOwner.create(RING_BYTES)
        assert len(os.listdir("/proc/self/fd")) == descriptors

    assert join(fork(run)) == 0


def test_arena_close_frees_descriptor_and_mapping(owner: ArenaOwner) -> None:
    fd = owner.fd
    inode = f" {os.fstat(fd).st_ino} "
    producer = ArenaProducer.attach(fd, owner.size_bytes)
    assert Path("/proc/self/maps").read_text().count(inode) == 2
    owner.close()
    owner.close()
    producer.close()
    producer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert inode not in Path("/proc/self/maps").read_text()


def test_arena_closed_ends_refuse_every_use(owner: ArenaOwner, producer: ArenaProducer) -> None:
    producer.close()
    owner.close()
    for use in (
        lambda: owner.span(0, 1),
        lambda: owner.publish_released(64),
        owner.used_bytes,
        lambda: producer.reserve(64),
        producer.free_bytes,
        producer.in_flight_bytes,
    ):
        with pytest.raises(ShmError):
            use()


def test_arena_closed_inside_a_reservation_refuses_the_commit(producer: ArenaProducer) -> None:
    producer.reserve(64)
    producer.close()
    with pytest.raises(ShmError):
        producer.commit(64)


def test_arena_close_with_borrowed_memory_leaves_it_to_the_borrower(owner: ArenaOwner, producer: ArenaProducer) -> None:
    put(producer, b"borrowed")
    span = owner.span(0, 8)
    exported = memoryview(producer.ring)  # What a buffer made over the whole ring does.
    producer.close()
    owner.close()
    assert span.tobytes() == b"borrowed"
    assert exported[:8].tobytes() == b"borrowed"


def test_arena_owner_dropped_without_close_warns() -> None:
    arena = ArenaOwner.create(4096)
    fd = arena.fd
    with pytest.warns(ResourceWarning, match="never closed"):
        del arena
    os.close(fd)


def test_arena_is_visible_to_another_process(owner: ArenaOwner) -> None:
    def run() -> None:
        end = ArenaProducer.attach(owner.fd, owner.size_bytes)
        put(end, b"from the child")

    assert join(fork(run)) == 0
    assert owner.used_bytes() == 64
    assert owner.span(0, 14).tobytes() == b"from the child"


def test_arena_ends_show_identity_and_state(owner: ArenaOwner, producer: ArenaProducer) -> None:
    assert repr(owner) == f"<ArenaOwner fd={owner.fd} size_bytes={RING_BYTES} released=0>"
    assert repr(producer) == f"<ArenaProducer size_bytes={RING_BYTES} in_flight_bytes=0>"
    producer.close()
    assert repr(producer) == f"<ArenaProducer size_bytes={RING_BYTES} closed>"


def test_arena_mapping_survives_in_a_child_that_inherited_it(owner: ArenaOwner) -> None:
    def run() -> None:
        owner.publish_released(128)

    assert join(fork(run)) == 0
    assert header_words(owner.fd)[4] == 128
