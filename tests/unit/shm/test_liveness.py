"""Life locks and the sweep of what the dead left, with real processes."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.errors import LockHeld, ShmError
from quiver_actors.shm.liveness import LifeLock, holder_alive, holder_pid, recorded_name, sweep_named_memory
from quiver_actors.shm.names import hold_name, new_name, sweep_names, unlink_name
from tests.unit.shm.children import Gate, fork, join


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[LifeLock]:
    made = LifeLock(tmp_path / "life.lock")
    yield made
    made.release()


def test_lock_free_is_taken_and_names_its_holder(lock: LifeLock) -> None:
    assert not holder_alive(lock.path)
    lock.acquire()
    assert holder_alive(lock.path)
    assert holder_pid(lock.path) == os.getpid()
    assert os.stat(lock.path).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(lock.fd)


def test_lock_released_is_free_again(lock: LifeLock) -> None:
    with lock:
        assert holder_alive(lock.path)
    assert not holder_alive(lock.path)
    assert lock.fd == -1
    lock.release()
    assert lock.try_acquire()


def test_lock_held_refuses_a_second_one_and_names_pid_and_path(lock: LifeLock) -> None:
    lock.acquire()
    second = LifeLock(lock.path)
    assert not second.try_acquire()
    with pytest.raises(LockHeld, match=f"life.lock is locked by process {os.getpid()}") as raised:
        second.acquire()
    assert (raised.value.path, raised.value.holder_pid) == (lock.path, os.getpid())
    assert second.fd == -1


def test_lock_taken_twice_by_one_object_is_refused(lock: LifeLock) -> None:
    lock.acquire()
    with pytest.raises(ShmError, match="by this object already"):
        lock.try_acquire()
    assert holder_alive(lock.path)


def test_lock_of_a_holder_without_a_number_says_so(lock: LifeLock) -> None:
    lock.acquire()
    os.truncate(lock.path, 0)
    with pytest.raises(LockHeld, match="by another process") as raised:
        LifeLock(lock.path).acquire()
    assert raised.value.holder_pid is None


def test_lock_goes_with_its_killed_holder(lock: LifeLock, gates: tuple[Gate, Gate]) -> None:
    taken, _ = gates

    def run() -> None:
        lock.acquire()
        taken.open()
        signal.pause()

    pid = fork(run)
    taken.wait()
    assert holder_alive(lock.path)
    assert holder_pid(lock.path) == pid
    assert not lock.try_acquire()
    os.kill(pid, signal.SIGKILL)
    assert join(pid) == -signal.SIGKILL
    assert not holder_alive(lock.path)
    lock.acquire()
    assert holder_pid(lock.path) == os.getpid()


def test_lock_released_in_a_child_stays_with_the_parent(lock: LifeLock) -> None:
    lock.acquire()

    def run() -> None:
        lock.release()
        assert holder_alive(lock.path)
        assert not LifeLock(lock.path).try_acquire()

    assert join(fork(run)) == 0
    assert holder_alive(lock.path)


def test_lock_released_by_the_parent_is_free_although_a_child_inherited_it(
    lock: LifeLock, gates: tuple[Gate, Gate]
) -> None:
    forked, go_on = gates
    lock.acquire()

    def run() -> None:
        forked.open()
        go_on.wait()

    pid = fork(run)
    forked.wait()
    lock.release()
    assert not holder_alive(lock.path)
    go_on.open()
    assert join(pid) == 0


def test_lock_in_a_missing_directory_or_on_a_directory_or_a_link_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ShmError, match="No such file"):
        LifeLock(tmp_path / "missing" / "lock").acquire()
    with pytest.raises(ShmError, match="cannot be opened"):
        LifeLock(tmp_path).acquire()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ShmError, match="cannot be opened"):
        LifeLock(tmp_path / "link").acquire()
    with pytest.raises(ShmError, match="cannot be opened"):
        holder_alive(tmp_path / "link")


def test_lock_never_released_warns(tmp_path: Path) -> None:
    dropped = LifeLock(tmp_path / "lock")
    dropped.acquire()
    fd = dropped.fd
    with pytest.warns(ResourceWarning, match="never released"):
        del dropped
    os.close(fd)


@pytest.mark.parametrize("text", ["", "no number", "-5"])
def test_holder_pid_of_no_number_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    assert holder_pid(tmp_path / "lock") is None
    assert holder_pid(tmp_path / "missing") is None


def leave_a_page_behind(name: str) -> None:
    """Have a child create a page and be killed."""
    created = Gate()

    def run() -> None:
        page = CountersPage.create(name, 2, 2)
        created.open()
        signal.pause()
        page.close()

    pid = fork(run)
    created.wait()
    created.close()
    os.kill(pid, signal.SIGKILL)
    assert join(pid) == -signal.SIGKILL


# Sweeps also run in nodes that other tests start on this machine, so what a sweep says it removed is asserted only for a page
# that another sweep must leave alone.


def others_than(name: str) -> Callable[[str], bool]:
    """Keeps what nodes of other tests have left, which may be looked at there."""
    return lambda found: found != name


def exists(name: str) -> bool:
    return Path(f"/dev/shm{name}").exists()


def test_sweep_unlinks_the_recorded_page_of_a_killed_supervisor(tmp_path: Path, name: str) -> None:
    leave_a_page_behind(name)
    record = tmp_path / "node.json"
    record.write_text(json.dumps({"version": 1, "pid": 1, "counters": name}))
    sweep_named_memory(recorded_name(record), others_than(name))
    assert not exists(name)
    assert name not in sweep_named_memory(recorded_name(record), others_than(name))


def test_sweep_unlinks_the_recorded_page_although_a_worker_still_has_it(tmp_path: Path, name: str) -> None:
    page = CountersPage.create(name, 2, 2)
    record = tmp_path / "node.json"
    record.write_text(json.dumps({"counters": name}))
    assert name in sweep_named_memory(recorded_name(record), others_than(name))
    assert page.read()[0].generation == 0
    page.close()


@pytest.mark.parametrize(
    "record",
    [
        None,
        "",
        "{",
        "[]",
        "3",
        "{}",
        '{"counters": 7}',
        '{"counters": "/psm_1"}',
        '{"counters": "/../../etc/passwd"}',
        "\xff",
    ],
)
def test_sweep_finds_the_page_of_a_dead_node_whose_record_is_gone_or_damaged(
    tmp_path: Path, name: str, record: str | None
) -> None:
    leave_a_page_behind(name)
    if record is not None:
        (tmp_path / "node.json").write_text(record, encoding="latin-1")
    sweep_named_memory(recorded_name(tmp_path / "node.json"), others_than(name))
    assert not exists(name)


def test_sweep_leaves_pages_that_a_process_lives_behind(name: str, gates: tuple[Gate, Gate]) -> None:
    forked, go_on = gates
    page = CountersPage.create(name, 1, 1)
    assert name not in sweep_names(others_than(name))

    def run() -> None:
        forked.open()
        go_on.wait()

    pid = fork(run)
    forked.wait()
    page.close()
    assert name not in sweep_names(others_than(name))
    go_on.open()
    assert join(pid) == 0
    sweep_names(others_than(name))
    assert not exists(name)


def test_sweep_keeps_what_is_asked_for_and_the_lock_is_free_again(name: str) -> None:
    CountersPage.create(name, 1, 1).close()
    asked: list[str] = []

    def is_kept(found: str) -> bool:
        asked.append(found)
        return True

    assert name not in sweep_names(is_kept)
    assert name in asked
    assert name not in sweep_names(is_kept)
    sweep_named_memory(name, is_kept)
    assert not exists(name)


def test_sweep_removes_pages_that_are_only_read(name: str) -> None:
    page = CountersPage.create(name, 1, 1)
    reader = CountersPage.attach(name)
    page.close()
    sweep_names(others_than(name))
    assert not exists(name)
    assert reader.read()[0].generation == 0
    reader.close()


def test_new_memory_that_a_sweeper_was_faster_to_remove_is_noticed(name: str) -> None:
    fd = os.open(f"/dev/shm{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    sweep_names(others_than(name))
    assert not hold_name(fd, name)
    os.close(fd)


def test_pages_are_made_while_other_nodes_sweep() -> None:
    names = [new_name() for _ in range(2000)]
    ours, is_over = set(names), threading.Event()

    def sweep() -> None:
        while not is_over.is_set():
            sweep_names(lambda found: found not in ours)

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for each in names:
            page = CountersPage.create(each, 1, 1)
            assert exists(each)
            page.close()
    finally:
        is_over.set()
        for sweeper in sweepers:
            sweeper.join()


def test_names_are_fresh_and_only_ours_are_unlinked() -> None:
    assert new_name() != new_name()
    assert not unlink_name(new_name())
    for foreign in ("/psm_abc", "/quiver-0123456789abc", "quiver-0123456789ab"):
        with pytest.raises(ShmError, match="not allowed"):
            unlink_name(foreign)
