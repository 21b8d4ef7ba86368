"""Segments that are deleted while somebody has them open: they count until they are let go, and other users keep them for a while only."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.held import GRACE_NS
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.engine.held_files import LOOK_INTERVAL_NS
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.quarantine import move_to_quarantine
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS
from tests.support.engine_driver import EngineDriver, drop_segment, topic_settings


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[EngineDriver]:
    disk = PosixDisk(str(tmp_path))
    made = EngineDriver(disk, topic_settings(segment_compaction="off"))
    made.push_numbered(0, 3)
    made.seal()
    yield made
    made.engine.close()
    disk.close()


class Reader:
    """What a consumer has of a segment, sealed or open: a mapping, and no descriptor."""

    def __init__(self, driver: EngineDriver, segment_seq: int = 0, *, is_guest: bool) -> None:
        engine = driver.engine
        is_open = segment_seq in {info.segment_seq for info in engine.readable_end.infos()}
        opens = engine.readable_end.open if is_open else engine.open_segment
        descriptor, size_bytes = opens(segment_seq, for_guest=is_guest)
        self.size_bytes = size_bytes
        self.mapped = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
        os.close(descriptor)
        self.content = self.mapped[:]

    @property
    def is_emptied(self) -> bool:
        return self.mapped[:] == bytes(self.size_bytes)


def delete(driver: EngineDriver) -> None:
    drop_segment(driver.engine, 0, "evicted")
    driver.settle()
    assert not driver.engine.segments()


def held_bytes(driver: EngineDriver) -> int:
    return driver.engine.disk_account.disk_use().held_bytes


def after(driver: EngineDriver, duration_ns: int) -> None:
    driver.clock.advance(duration_ns)
    driver.settle()


def test_what_nobody_has_is_gone_with_its_name(driver: EngineDriver) -> None:
    delete(driver)
    assert held_bytes(driver) == 0


@pytest.mark.parametrize("is_guest", [True, False], ids=["another user", "the own user"])
def test_a_deleted_segment_counts_until_it_is_let_go(driver: EngineDriver, is_guest: bool) -> None:
    """506 MiB under a cap of 48, and the node reported 3."""
    reader = Reader(driver, is_guest=is_guest)
    delete(driver)
    assert held_bytes(driver) >= reader.size_bytes
    assert driver.engine.disk_account.used_bytes == driver.engine.disk_account.disk_use().total_bytes
    after(driver, GRACE_NS - SECOND_NS)
    assert held_bytes(driver) >= reader.size_bytes
    assert reader.mapped[:] == reader.content
    reader.mapped.close()
    after(driver, LOOK_INTERVAL_NS)
    assert held_bytes(driver) == 0


def test_what_only_other_users_have_is_emptied_after_a_grace(driver: EngineDriver) -> None:
    reader = Reader(driver, is_guest=True)
    delete(driver)
    after(driver, GRACE_NS)
    assert held_bytes(driver) == 0
    assert reader.is_emptied, "and no access of it faults"
    reader.mapped.close()


def test_what_a_reader_of_the_own_user_has_is_never_emptied(driver: EngineDriver) -> None:
    """The same holds where another user has it too."""
    own, guest = Reader(driver, is_guest=False), Reader(driver, is_guest=True)
    delete(driver)
    after(driver, 100 * GRACE_NS)
    assert own.mapped[:] == own.content
    own.mapped.close()
    after(driver, LOOK_INTERVAL_NS)
    assert guest.is_emptied
    assert held_bytes(driver) == 0
    guest.mapped.close()


def test_what_a_command_reads_by_its_name_is_never_emptied(driver: EngineDriver) -> None:
    """`quiver verify` and `export` have no connection that could say that they read it."""
    file = driver.disk.open_read(EnginePaths("default/core_0").segment(0))
    content = file.read(file.size(), 0)
    delete(driver)
    after(driver, 100 * GRACE_NS)
    assert file.read(len(content), 0) == content
    file.close()
    after(driver, LOOK_INTERVAL_NS)
    assert held_bytes(driver) == 0


# --- over a restart --------------------------------------------------------------------------------------------------------


def held_names(driver: EngineDriver) -> list[str]:
    return driver.disk.list_directory(EnginePaths(driver.directory).held)


def restart(driver: EngineDriver) -> None:
    driver.engine.close()
    driver.reopen()
    driver.settle()


@pytest.mark.parametrize("is_guest", [True, False], ids=["another user", "the own user"])
def test_what_is_held_counts_after_a_restart_too(driver: EngineDriver, is_guest: bool) -> None:
    reader = Reader(driver, is_guest=is_guest)
    delete(driver)
    for _ in range(2):
        restart(driver)
        assert held_bytes(driver) >= reader.size_bytes
        assert driver.engine.disk_account.used_bytes == driver.engine.disk_account.disk_use().total_bytes
    reader.mapped.close()
    after(driver, LOOK_INTERVAL_NS)
    assert held_bytes(driver) == 0
    assert not held_names(driver)


def test_what_was_let_go_while_nothing_ran_is_gone_at_the_start(driver: EngineDriver) -> None:
    reader = Reader(driver, is_guest=True)
    delete(driver)
    driver.engine.close()
    reader.mapped.close()
    driver.reopen()
    assert held_bytes(driver) == 0
    assert not held_names(driver)


def test_what_only_other_users_have_is_emptied_a_grace_after_a_restart(driver: EngineDriver) -> None:
    reader = Reader(driver, is_guest=True)
    delete(driver)
    restart(driver)
    after(driver, GRACE_NS - SECOND_NS)
    assert reader.mapped[:] == reader.content
    after(driver, SECOND_NS + LOOK_INTERVAL_NS)
    assert held_bytes(driver) == 0
    assert reader.is_emptied, "and no access of it faults"
    assert not held_names(driver)
    reader.mapped.close()


def test_what_a_reader_of_the_own_user_has_outlives_a_restart(driver: EngineDriver) -> None:
    own, guest = Reader(driver, is_guest=False), Reader(driver, is_guest=True)
    delete(driver)
    restart(driver)
    after(driver, 100 * GRACE_NS)
    assert own.mapped[:] == guest.mapped[:] == own.content
    own.mapped.close()
    after(driver, LOOK_INTERVAL_NS)
    assert guest.is_emptied
    guest.mapped.close()


def test_a_kill_between_the_two_names_leaves_the_segment_as_it_was(driver: EngineDriver) -> None:
    reader, paths = Reader(driver, is_guest=True), EnginePaths(driver.directory)
    driver.engine.close()
    driver.disk.make_directory(paths.held)
    driver.disk.link(paths.segment(0), f"{paths.held}/0000000000000000.qseg.1")
    driver.reopen()
    after(driver, 100 * GRACE_NS)
    assert not held_names(driver)
    assert held_bytes(driver) == 0
    assert [info.segment_seq for info in driver.engine.segments()] == [0]
    assert reader.mapped[:] == reader.content
    reader.mapped.close()


def test_a_file_that_has_another_name_is_never_emptied(driver: EngineDriver, tmp_path: Path) -> None:
    """A copy by a hard link is an operator's, or lies in quarantine: its bytes are there for somebody."""
    reader = Reader(driver, is_guest=True)
    copy = tmp_path / "copy"
    os.link(tmp_path / EnginePaths(driver.directory).segment(0), copy)
    delete(driver)
    after(driver, 100 * GRACE_NS)
    assert copy.read_bytes() == reader.content
    reader.mapped.close()


def test_where_no_second_name_can_be_given_it_counts_until_the_restart(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise DiskError("link", source, errno.EPERM)

    monkeypatch.setattr(driver.disk, "link", refuse)
    reader = Reader(driver, is_guest=True)
    delete(driver)
    assert held_bytes(driver) >= reader.size_bytes
    after(driver, GRACE_NS)
    assert reader.is_emptied
    assert held_bytes(driver) == 0
    reader.mapped.close()


def test_the_old_file_of_a_compaction_is_held_over_a_restart(tmp_path: Path) -> None:
    disk = PosixDisk(str(tmp_path))
    driver = EngineDriver(disk)
    driver.push_numbered(0, 400)
    driver.seal()
    reader = Reader(driver, is_guest=False)
    driver.run_for(COMPACTION_AGE_NS + 10 * SECOND_NS)
    assert driver.engine.figures().compactions == 1
    restart(driver)
    assert held_bytes(driver) >= reader.size_bytes
    assert reader.mapped[:] == reader.content
    reader.mapped.close()
    after(driver, LOOK_INTERVAL_NS)
    assert held_bytes(driver) == 0
    driver.engine.close()
    disk.close()


@pytest.mark.parametrize("is_guest", [True, False], ids=["another user", "the own user"])
def test_a_log_that_a_start_writes_anew_counts_until_it_is_let_go(
    driver: EngineDriver, tmp_path: Path, is_guest: bool
) -> None:
    """The start reads that log from memory, and the disk may have less of it: its segment is a copy."""
    driver.push_numbered(3, 40)
    driver.commit()
    reader, paths = Reader(driver, 1, is_guest=is_guest), EnginePaths(driver.directory)
    with (tmp_path / paths.active).open("r+b") as log:
        log.seek(2_000)
        log.write(b"damage")
    content = reader.mapped[:]
    driver.engine.close()
    driver.reopen()
    assert (tmp_path / paths.segment(1)).read_bytes() != content
    assert held_bytes(driver) > 0, "its reserved length takes no blocks"
    driver.settle()
    assert reader.mapped[:] == content
    after(driver, GRACE_NS + LOOK_INTERVAL_NS)
    assert reader.is_emptied == is_guest
    assert (held_bytes(driver) == 0) == is_guest
    reader.mapped.close()
    after(driver, LOOK_INTERVAL_NS)
    assert held_bytes(driver) == 0
    assert not held_names(driver)


def test_what_leaves_a_full_quarantine_counts_until_it_is_let_go(driver: EngineDriver) -> None:
    reader, paths = Reader(driver, is_guest=True), EnginePaths(driver.directory)
    driver.engine.close()
    for path in (paths.segment(0), paths.cursor):
        move_to_quarantine(driver.disk, paths, path)
    driver.reopen()
    driver.settle()
    assert held_bytes(driver) == 0, "it has its name in quarantine, and counts by that"
    driver.engine.change_settings(topic_settings(retention=RetentionSettings(quarantine_cap_bytes=0)))
    driver.settle()
    assert len(driver.disk.list_directory(paths.quarantine)) == 1
    assert held_bytes(driver) >= reader.size_bytes
    after(driver, GRACE_NS + LOOK_INTERVAL_NS)
    assert reader.is_emptied
    assert held_bytes(driver) == 0
    reader.mapped.close()
