"""Holders of deleted files, named by the kernel, with real processes that hold descriptors and mappings."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiver_actors.store.disk.held import HeldFile, Holder, lock_for_reader

CONTENT = b"abcd" * 64_000
GUEST_UID = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another user")


@contextmanager
def deleted(path: Path) -> Iterator[tuple[HeldFile, int]]:
    """A file that loses its name: what its worker keeps, and a descriptor of another open file."""
    path.write_bytes(CONTENT)
    path.chmod(0o440)
    held = HeldFile(os.open(path, os.O_RDONLY))
    given = os.open(path, os.O_RDONLY)
    path.unlink()
    yield held, given
    held.close()
    held.close()


def test_a_file_that_nobody_has_is_free(tmp_path: Path) -> None:
    with deleted(tmp_path / "file") as (held, given):
        os.close(given)
        assert held.holder() is Holder.NOBODY


def test_a_descriptor_and_a_mapping_alone_are_seen(tmp_path: Path) -> None:
    with deleted(tmp_path / "file") as (held, given):
        assert held.holder() is Holder.GUESTS
        assert held.size_bytes >= len(CONTENT)
        mapped = mmap.mmap(given, 0, prot=mmap.PROT_READ)
        os.close(given)
        assert held.holder() is Holder.GUESTS
        mapped.close()
        assert held.holder() is Holder.NOBODY


def test_a_descriptor_on_its_way_is_seen(tmp_path: Path) -> None:
    with deleted(tmp_path / "file") as (held, given):
        near, far = socket.socketpair()
        socket.send_fds(near, [b"x"], [given])
        os.close(given)
        assert held.holder() is Holder.GUESTS
        near.close()
        far.close()
        assert held.holder() is Holder.NOBODY


def test_a_reader_of_the_own_user_is_told_from_others_as_long_as_it_maps(tmp_path: Path) -> None:
    with deleted(tmp_path / "file") as (held, given):
        lock_for_reader(given)
        mapped = mmap.mmap(given, 0, prot=mmap.PROT_READ)
        os.close(given)
        assert held.holder() is Holder.READERS
        assert held.holder() is Holder.READERS, "looking changes nothing"
        mapped.close()
        assert held.holder() is Holder.NOBODY


def test_an_emptied_file_takes_no_room_and_its_mapping_reads_zeroes(tmp_path: Path) -> None:
    with deleted(tmp_path / "file") as (held, given), mmap.mmap(given, 0, prot=mmap.PROT_READ) as mapped:
        held.empty()
        assert held.size_bytes == 0
        assert mapped[:] == bytes(len(CONTENT))
        os.close(given)


@AS_ROOT
def test_a_lock_that_another_user_makes_is_not_a_readers(tmp_path: Path) -> None:
    """Else it would keep the blocks by it."""
    with deleted(tmp_path / "file") as (held, given):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os.setresuid(GUEST_UID, GUEST_UID, GUEST_UID)
            fcntl.flock(given, fcntl.LOCK_SH)
            theirs.send(b"locked")
            theirs.recv(1)
            os._exit(0)
        os.close(given)
        assert ours.recv(6) == b"locked"
        assert held.holder() is Holder.GUESTS
        ours.send(b"x")
        os.waitpid(pid, 0)
        ours.close()
        theirs.close()
        assert held.holder() is Holder.NOBODY
