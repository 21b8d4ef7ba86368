"""Segments and logs of deleted topics that somebody still has open or mapped: they count, and other users keep them for a while only."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from quiver_actors.base.config.reading import resolve
from quiver_actors.base.units import SECOND_NS
from quiver_actors.node.topics.aside import ASIDE_PREFIX
from quiver_actors.node.topics.keeper import TopicKeeper
from quiver_actors.store.disk.held import GRACE_NS, lock_for_reader
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.supervisor.measure import all_of, measuring

SIZE_BYTES = 1 << 20
ASIDE = f"{ASIDE_PREFIX}clicks-00"


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[TopicKeeper]:
    resolved = resolve(None, environment={})
    with closing(PosixDisk(str(tmp_path))) as disk:
        yield TopicKeeper(disk, str(tmp_path), resolved, resolve=lambda: resolved, applied=dict)


class Reader:
    """A mapping of one file of a deleted topic, made before the topic was deleted."""

    def __init__(self, root: Path, name: str, *, is_guest: bool = False) -> None:
        self.path = root / ASIDE / "core_0" / name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"x" * SIZE_BYTES)
        descriptor = os.open(self.path, os.O_RDONLY)
        if not is_guest:
            lock_for_reader(descriptor)
        self._mapped = mmap.mmap(descriptor, SIZE_BYTES, prot=mmap.PROT_READ)
        os.close(descriptor)

    @property
    def reads_zeroes(self) -> bool:
        return self._mapped[:] == bytes(SIZE_BYTES)

    def close(self) -> None:
        self._mapped.close()


def counted(root: Path) -> int:
    """The bytes of disk that the coordinator of the size cap counts for no worker."""
    return all_of(measuring([str(root)], ()))


def go_on(keeper: TopicKeeper, now_ns: int) -> int | None:
    """Let the keeper do all that it has to do at that time; when it wants to be called again."""
    due_ns = keeper.step(now_ns)
    while due_ns is not None and due_ns < now_ns + SECOND_NS:
        due_ns = keeper.step(due_ns)
    return due_ns


@pytest.mark.parametrize("name", ["segments/0000000000000001.qseg", "wal/quiver.wal", "wal/quiver.wal.7"])
def test_what_only_other_users_have_counts_and_is_emptied_after_a_grace(
    keeper: TopicKeeper, tmp_path: Path, name: str
) -> None:
    guest = Reader(tmp_path, name, is_guest=True)
    (guest.path.parent / "0000000000000002.qseg").write_bytes(b"nobody has it" * 1000)
    due_ns = go_on(keeper, SECOND_NS)
    assert due_ns is not None
    assert os.listdir(guest.path.parent) == [guest.path.name]
    assert not guest.reads_zeroes
    assert counted(tmp_path) >= SIZE_BYTES
    due_ns = go_on(keeper, GRACE_NS)
    assert guest.path.exists()
    assert go_on(keeper, 2 * GRACE_NS) is None
    assert guest.reads_zeroes, "and no access of it faults"
    assert not (tmp_path / ASIDE).exists()
    assert counted(tmp_path) < SIZE_BYTES


@pytest.mark.parametrize(
    "name",
    ["segments/0000000000000001.qseg", "held/0000000000000001.qseg.77", "wal/quiver.wal", "held/quiver.wal.7.77"],
)
def test_what_a_reader_of_the_own_user_has_stays_until_it_lets_go(
    keeper: TopicKeeper, tmp_path: Path, name: str
) -> None:
    reader = Reader(tmp_path, name)
    for now_ns in (SECOND_NS, 100 * GRACE_NS):
        assert go_on(keeper, now_ns) is not None
        assert reader.path.exists()
        assert not reader.reads_zeroes
        assert counted(tmp_path) >= SIZE_BYTES
    reader.close()
    assert go_on(keeper, 101 * GRACE_NS) is None
    assert not (tmp_path / ASIDE).exists()


def test_a_file_with_another_name_loses_this_one_and_is_never_emptied(keeper: TopicKeeper, tmp_path: Path) -> None:
    guest = Reader(tmp_path, "segments/0000000000000001.qseg", is_guest=True)
    os.link(guest.path, tmp_path / "copy")
    assert go_on(keeper, SECOND_NS) is None
    assert not (tmp_path / ASIDE).exists()
    assert not guest.reads_zeroes


def test_the_grace_begins_anew_with_a_start(keeper: TopicKeeper, tmp_path: Path) -> None:
    guest = Reader(tmp_path, "segments/0000000000000001.qseg", is_guest=True)
    assert go_on(keeper, SECOND_NS) is not None
    resolved = resolve(None, environment={})
    with closing(PosixDisk(str(tmp_path))) as disk:
        again = TopicKeeper(disk, str(tmp_path), resolved, resolve=lambda: resolved, applied=dict)
        assert go_on(again, 2 * GRACE_NS) is not None
        assert not guest.reads_zeroes
        assert go_on(again, 3 * GRACE_NS) is None
        assert guest.reads_zeroes
