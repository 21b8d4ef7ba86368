"""A real node at its limits: a file system without room, a file that may not grow, no descriptor left, no memory left.

    python -m tests.crash.limits [ROUNDS] [SEED] [LIMIT ...]          ends with two lines of JSON: all, and what adds up

A round presses on a node under load, lets it feel that, perhaps kills a worker or the whole node meanwhile, and lets go. Demanded: errors
are typed, ingest resumes by itself, and nothing that the `Book` demands is broken.

    tmpfs, ext4         the data lie on a file system of 48 MiB; a file takes all room, or a stopped subscriber lets nothing be deleted
    inodes              ext4 with no inode left
    file_size           RLIMIT_FSIZE of supervisor and workers below the size of a log
    node_descriptors    RLIMIT_NOFILE of supervisor and workers right above what they have open, while clients come
    client_descriptors  the same of producers and subscribers, while segments come
    memory              RLIMIT_AS of the workers right above what they have mapped, while clients come
    cap                 a size cap that drops the oldest, and a stopped subscriber: every bundle that it misses must be told

File systems need root, ext4 loop devices too. Limits of processes need nothing: only the soft one is lowered, and raised again.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from quiver_actors.base.units import MIB
from quiver_actors.errors import DiskError, ProtocolError, SharedMemoryError
from tests.crash.bundles import TOPIC
from tests.crash.campaign import guarded
from tests.crash.live_node import SUPERVISOR, LiveNode, tell
from tests.crash.mounts import isolate, small_image, small_memory, why_not
from tests.crash.pressures import (
    ClientDescriptors,
    FileSize,
    Memory,
    NodeDescriptors,
    NoInode,
    NoRoom,
    OverCap,
    Pressure,
    small_image_of_few_inodes,
)
from tests.crash.showing import numbers_given, show

ROOM_BYTES = 48 * MIB
_PUSH_TIMEOUT_SECONDS = 3.0
_FELT_SECONDS = 10.0
_CONFIG = f"""
arena_size = "4MiB"

[retention]
min_free = "{{min_free}}"
{{cap}}

[segment]
target_size = "1MiB"
max_open_duration = "200ms"

[topics.{TOPIC}]
"""

_CAP = """
size_cap = "24MiB"
size_cap_policy = "drop_oldest"
"""

_TOLERATED = frozenset({ProtocolError.code, SharedMemoryError.code, DiskError.code})
"""What a client gets that has no descriptor left, for a message or for a file, or whose worker has no memory for its arena."""


@dataclass
class LimitTally:
    """Counted while it was done."""

    rounds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Number of rounds, by limit."""
    felt: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Rounds in which a client was refused."""
    kills: int = 0
    """Workers and nodes that were killed and had to come back meanwhile."""
    told: int = 0
    """Acknowledged bundles that were dropped on purpose, with notice."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Limits that cannot be set here, and why."""
    acknowledged: int = 0
    delivered: int = 0
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        return {
            "limit_rounds": sum(self.rounds.values()),
            "limit_rounds_felt": sum(self.felt.values()),
            "node_told_dropped": self.told,
            "node_kills": self.kills,
            "node_acknowledged": self.acknowledged,
            "open_failures": len(self.failures),
        }


Place = Callable[[Path, int], contextlib.AbstractContextManager[Path]]

LIMITS: dict[str, tuple[type[Pressure], Place | None, tuple[str, ...]]] = {
    "tmpfs": (NoRoom, small_memory, ()),
    "ext4": (NoRoom, small_image, ("mkfs.ext4",)),
    "inodes": (NoInode, small_image_of_few_inodes, ("mkfs.ext4",)),
    "file_size": (FileSize, None, ()),
    "node_descriptors": (NodeDescriptors, None, ()),
    "client_descriptors": (ClientDescriptors, None, ()),
    "memory": (Memory, None, ()),
    "cap": (OverCap, None, ()),
}
"""What presses, where the data lie, and the programs that need to be there."""


class Limits:
    """Rounds at one limit."""

    def __init__(self, name: str, node: LiveNode, random: Random, tally: LimitTally) -> None:
        self._name = name
        self._node = node
        self._random = random
        self._tally = tally
        self._pressure = LIMITS[name][0](node, random)

    def round(self) -> None:
        node, pressure = self._node, self._pressure
        node.progress(self._random.randrange(1, 60))
        refused = sum(node.book.refused.values())
        pressure.press()
        self._strain()
        deadline = time.monotonic() + _FELT_SECONDS

        def is_over() -> bool:
            node.book.update()
            pressure.keep_up()
            if pressure.drops:
                return pressure.is_over()
            is_felt = sum(node.book.refused.values()) > refused
            return is_felt or (not pressure.is_felt_for_sure and time.monotonic() > deadline)

        node.wait(is_over, f"nobody feels {self._name}")
        self._tally.felt[self._name] += sum(node.book.refused.values()) > refused
        pressure.let_go()
        node.wait_ready()
        node.progress(60)
        self._tally.rounds[self._name] += 1

    def _strain(self) -> None:
        """New clients come, or somebody dies, while there is none of it left."""
        match self._random.choice(("clients", "clients", "worker", "node", "nothing")):
            case "clients":
                for name in (*self._node.producers, *self._node.subscribers):
                    self._node.end(name, signal.SIGKILL)
                    self._node.start(name)
            case "worker":
                for pid in self._node.worker_pids()[:1]:
                    tell([pid], signal.SIGKILL)
                    self._node.wait_gone([pid])
                    self._tally.kills += 1
            case "node":
                self._node.end(SUPERVISOR, signal.SIGKILL)
                self._node.start(SUPERVISOR)
                self._tally.kills += 1
        self._pressure.keep_up()


@contextlib.contextmanager
def _place(name: str) -> Iterator[Path | None]:
    where = LIMITS[name][1]
    if where is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="quiver-limit-") as base, where(Path(base) / "small", ROOM_BYTES) as small:
        yield small / "data"


def _try(name: str) -> None:
    """Raises OSError: there is no such file system for us here."""
    with _place(name):
        pass


def run(rounds: int, seed: int, names: list[str]) -> LimitTally:
    """Run that many rounds at each limit that can be set here."""
    tally = LimitTally()
    for name in names:
        _, where, programs = LIMITS[name]
        if where is not None and (reason := why_not(functools.partial(_try, name), *programs)):
            tally.skipped[name] = reason
    names = [name for name in names if name not in tally.skipped]
    if any(LIMITS[name][1] for name in names):
        isolate()
    for name in names:
        random = Random(f"limits {name} {seed}")
        drops = LIMITS[name][0].drops
        config = _CONFIG.format(min_free=random.choice(("0B", "1MiB")), cap=_CAP if drops else "")
        with (
            guarded(tally.failures.append, f"{name}, seed {seed}"),
            _place(name) as data,
            LiveNode(
                config=config,
                data=data,
                pause_seconds=0.005,
                push_timeout_seconds=_PUSH_TIMEOUT_SECONDS,
                tolerated=_TOLERATED,
                deaths_max=LIMITS[name][0].deaths_max,
            ) as node,
        ):
            limits = Limits(name, node, random, tally)
            for _ in range(rounds):
                limits.round()
            node.settle()
            told = node.book.told()
            tally.told += len(told)
            tally.failures += [] if drops else told[:5]
            tally.acknowledged += len(node.book.acknowledged)
            tally.delivered += node.book.counts["delivered"]
            for code, count in node.book.refused.items():
                tally.refused[code] += count
    return tally


def main() -> int:
    rounds, seed = numbers_given(3, 1)
    started = time.monotonic()
    return show(started, run(rounds, seed, sys.argv[3:] or list(LIMITS)))


if __name__ == "__main__":
    sys.exit(main())
