"""Commits of lone pushes: the loop of a worker carries them out itself while that is quick and nobody else waits."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.lone import KIND_ACK, LONE_ACK
from quiver_actors.errors import DurabilityUnknown
from quiver_actors.node.worker.budgets import NEVER_NS
from quiver_actors.node.worker.doors import Poll
from quiver_actors.node.worker.entry import Worker
from quiver_actors.node.worker.lone_syncs import CarryOut, LoneSyncs, input_of
from quiver_actors.node.worker.threads import JobThread
from tests.unit.node.worker.faulty_disk import FaultyDisk
from tests.unit.node.worker.harness import WireClient, WorkerThread, running, table, until
from tests.unit.node.worker.lone import lone_push

NEEDED = 3


class Patient(Worker):
    """A worker whose loop syncs after three quick commits, and to which no disk is slow."""

    quick_ns = NEVER_NS

    def _lone_commits(self, sync: JobThread, poll: Poll) -> CarryOut:
        has_input = input_of(cast("select.epoll", poll))
        return LoneSyncs(sync, has_input, quick_commits=NEEDED, quick_ns=self.quick_ns).carry_out


class Hasty(Patient):
    """The same, but every disk is slow."""

    quick_ns = -1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    (tmp_path / "data").mkdir()
    made = FaultyDisk(str(tmp_path / "data"))
    yield made
    made.close()


def push_alone(client: WireClient, value: int) -> tuple[int, ...]:
    tag, frame = lone_push(client, value)
    client.socket.sendall(frame)
    answer: tuple[int, ...] = LONE_ACK.unpack(client.socket.recv(1 << 16))
    assert (answer[2], answer[5]) == (KIND_ACK, tag)
    return answer


def warmed(worker: WorkerThread, disk: FaultyDisk) -> WireClient:
    """A producer whose next lone push the loop syncs."""
    client = worker.producer()
    client.push_and_wait(table(0))
    for value in range(NEEDED + 1):
        push_alone(client, value)
    disk.faults.syncing.clear()
    return client


def test_the_loop_syncs_after_enough_quick_commits_of_lone_pushes(tmp_path: Path, disk: FaultyDisk) -> None:
    with running(tmp_path, disk=disk, kind=Patient) as worker:
        client = worker.producer()
        client.push_and_wait(table(0))
        disk.faults.syncing.clear()
        indexes = [push_alone(client, value)[4] for value in range(2 * NEEDED)]
    assert indexes == list(range(1, 2 * NEEDED + 1))
    threads = disk.faults.syncing[: 2 * NEEDED]
    assert threads == ["quiver-sync"] * NEEDED + ["loop"] * NEEDED


def test_the_loop_leaves_a_slow_disk_to_the_thread(tmp_path: Path, disk: FaultyDisk) -> None:
    with running(tmp_path, disk=disk, kind=Hasty) as worker:
        client = warmed(worker, disk)
        push_alone(client, 1)
        assert disk.faults.syncing == ["quiver-sync"]


def test_another_commit_gives_the_next_ones_back_to_the_thread(tmp_path: Path, disk: FaultyDisk) -> None:
    with running(tmp_path, disk=disk, kind=Patient) as worker:
        client = warmed(worker, disk)
        client.push_and_wait(table(1))
        for value in range(NEEDED):
            push_alone(client, value)
        assert disk.faults.syncing == ["quiver-sync"] * (1 + NEEDED)


def test_what_arrives_during_a_sync_gives_the_next_ones_back_to_the_thread(tmp_path: Path, disk: FaultyDisk) -> None:
    with running(tmp_path, disk=disk, kind=Patient) as worker:
        client, other = warmed(worker, disk), worker.producer()
        disk.faults.gate.clear()
        tag, frame = lone_push(client, 1)
        client.socket.sendall(frame)
        until(lambda: disk.faults.syncing == ["loop"], "the loop's sync")
        push = other.push(table(2))
        disk.faults.gate.set()
        assert client.expect(m.Acked).runs[0].tag == tag
        assert other.acked(push)
        push_alone(client, 3)
        assert disk.faults.syncing == ["loop", "quiver-sync", "quiver-sync"]


def test_a_sync_of_the_loop_that_fails_acknowledges_nothing_and_is_not_tried_again(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with running(tmp_path, disk=disk, kind=Patient) as worker:
        client = warmed(worker, disk)
        disk.faults.set("fdatasync", "wal")
        tag, frame = lone_push(client, 1)
        client.socket.sendall(frame)
        refused = client.expect(m.Refused)
        assert (refused.tag, refused.code) == (tag, DurabilityUnknown.code)
        assert disk.faults.syncing == ["loop"]
        disk.faults.clear()


def test_a_subscriber_gets_what_the_loop_has_synced_at_once(tmp_path: Path, disk: FaultyDisk) -> None:
    with running(tmp_path, disk=disk, kind=Patient) as worker:
        client = warmed(worker, disk)
        reader = worker.connect()
        reader.register("s", credit=100)
        reader.values(NEEDED + 2, "s")
        disk.faults.syncing.clear()
        push_alone(client, 77)
        assert [values for _, _, values in reader.values(1, "s")] == [[77]]


def test_to_look_for_input_takes_no_edge_away_from_the_loop() -> None:
    wake_fd, poll = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), select.epoll()
    poll.register(wake_fd, select.EPOLLIN | select.EPOLLET)
    has_input = input_of(poll)
    assert not has_input()
    os.eventfd_write(wake_fd, 1)
    assert has_input()
    assert has_input()
    assert poll.poll(0) == [(wake_fd, select.EPOLLIN)]
    assert not has_input()
    poll.close()
    os.close(wake_fd)
