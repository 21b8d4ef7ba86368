"""Deleted segments that other processes keep, over SIGKILL of a worker and of the whole node: they count, and are given back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quiver_actors.client import Client, Subscription
from quiver_actors.store.status.status_view import take_status
from tests.integration.capped_node import bundle, config, wait_until
from tests.integration.client_node import ClientNode, client_node, take

COUNT = 80
BYTES_MIN = 6 << 20
HOARDER = """
import mmap, os, sys
maps = []
for path in sys.argv[1:]:
    descriptor = os.open(path, os.O_RDONLY)
    maps.append(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    os.close(descriptor)
print("has them", flush=True)
for line in sys.stdin:
    print(sum(1 for each in maps if each[:] == bytes(len(each))), flush=True)
"""
"""A process that maps files without the lock by which a worker knows its own user's readers, as a guest has them. It is asked by a line
how many of them read zeroes."""


class Hoarder:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def emptied(self) -> int:
        """The number of files that read zeroes; a process that faults gives no answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("count\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def hoarding(files: list[Path]) -> Iterator[Hoarder]:
    command = [sys.executable, "-c", HOARDER, *map(str, files)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has them\n"
        yield Hoarder(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


def segment_files(node: ClientNode) -> list[Path]:
    return sorted(node.directories.data.glob("default/core_0/segments/*.qseg"))


def held_files(node: ClientNode) -> list[Path]:
    return sorted(node.directories.data.glob("default/core_0/held/*"))


def held_bytes(node: ClientNode) -> int:
    return sum(view.held_bytes for view in take_status(str(node.directories.run)).retention)


def is_counted(node: ClientNode) -> bool:
    """Whether the held files count, by themselves and in what the core says that it uses."""
    status = take_status(str(node.directories.run))
    held = sum(view.held_bytes for view in status.retention)
    return BYTES_MIN <= held <= sum(view.used_bytes for view in status.cores)


def stored(client: Client) -> None:
    client.push_many((bundle(number) for number in range(COUNT)), timeout=30.0)
    client.flush()


def acknowledge(subscription: Subscription, count: int) -> None:
    for delivery in take(subscription, count):
        delivery.ack()
    subscription.flush()


def test_what_is_held_counts_after_a_kill_and_comes_back_when_room_is_wanted() -> None:
    with client_node(1, config()) as node, node.connect() as client:
        subscription = client.subscribe("s", start="earliest", lease=None)
        stored(client)
        with hoarding(segment_files(node)) as hoarder:
            kept = subscription.get(60.0)
            assert kept is not None
            batch = kept.batch
            kept.ack()
            acknowledge(subscription, COUNT - 1)
            wait_until(lambda: not segment_files(node), "the segments to be deleted")
            wait_until(lambda: is_counted(node), "what the hoarder has counts")
            node.kill_worker(0)
            wait_until(lambda: is_counted(node), "it counts for the next worker too")
            node.kill_supervisor()
            node.restart()
            wait_until(lambda: is_counted(node), "and for the next node")
            files = held_files(node)
            with node.connect() as again:
                again.subscribe("t", start="earliest").close()
                # These fit beside what the own user's reader keeps, and not beside what the hoarder has.
                again.push_many((bundle(number) for number in range(COUNT, 2 * COUNT + 10)), timeout=60.0)
            assert hoarder.emptied() == len(files) - 1, "but for the one that a reader of the own user has"
            assert batch.column("id").to_pylist() == bundle(0).column("id").to_pylist()
            subscription.close()


def test_what_was_let_go_while_the_node_was_down_is_gone_at_its_start() -> None:
    with client_node(1, config()) as node:
        with node.connect() as client:
            subscription = client.subscribe("s", start="earliest")
            stored(client)
            with hoarding(segment_files(node)):
                acknowledge(subscription, COUNT)
                wait_until(lambda: is_counted(node), "what the hoarder has counts")
                node.signal_worker(0, signal.SIGKILL)
                node.kill_supervisor()
        assert held_files(node)
        node.restart()
        assert held_files(node) == []
        assert held_bytes(node) == 0
