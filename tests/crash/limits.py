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
import errno
import functools
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from quiver_actors.errors import DiskError, ProtocolError, SharedMemoryError
from quiver_actors.units import KIB, MIB
from tests.crash.bundles import TOPIC
from tests.crash.campaign import guarded
from tests.crash.live_node import SUPERVISOR, LiveNode, tell
from tests.crash.mounts import isolate, small_image, small_memory, why_not
from tests.crash.showing import numbers_given, show

ROOM_BYTES = 48 * MIB
_INODES = 96
_LAST_ROOM_BYTES = 6 * MIB
_DEATHS_MAX = 10
"""As the product has it. For want of room nobody dies: he would be given up, and would not come back when there is some."""
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
_OVER_CAP_BUNDLES = 2_500
"""About twice as much as the cap."""
_TOLERATED = frozenset({ProtocolError.code, SharedMemoryError.code, DiskError.code})
"""What a client gets that has no descriptor left, for a message or for a file, or whose worker has no memory for its arena."""


@dataclass
class LimitTally:
    """Counted while it was done."""

    rounds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By limit."""
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


class Pressure:
    """What is taken from a node, and given back."""

    is_felt_for_sure = False
    drops = False
    """Bundles may be lost, with notice."""
    deaths_max = 1_000_000
    """In a minute: who dies for want of descriptors or memory is started again."""

    def __init__(self, node: LiveNode, random: Random) -> None:
        self.node = node
        self.random = random

    def press(self) -> None:
        raise NotImplementedError

    def keep_up(self) -> None:
        """Called again and again while it lasts, and for processes that came meanwhile."""

    def let_go(self) -> None:
        raise NotImplementedError

    def is_over(self) -> bool:
        """Of one that drops bundles: enough was."""
        raise NotImplementedError


class NoRoom(Pressure):
    """All blocks of the file system go to a file; or most, and the node takes the rest as a stopped subscriber lets it delete nothing.
    With subscribers a node may go on in the room that it has, and refuse nobody."""

    deaths_max = _DEATHS_MAX

    def press(self) -> None:
        self._filler = self.node.data.with_name("filler")
        self._by_itself = self.is_felt_for_sure = self.random.random() < 0.5
        if self._by_itself:
            tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGSTOP)
        self._fill(_LAST_ROOM_BYTES if self._by_itself else 0)

    def keep_up(self) -> None:
        """Room that the node gives back is taken as well; a subscriber that came meanwhile is stopped too."""
        if self._by_itself:
            tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGSTOP)
        else:
            self._fill(0)

    def _fill(self, left_bytes: int) -> None:
        with self._filler.open("ab") as file:
            step_bytes = MIB
            while step_bytes >= 4 * KIB:
                found = os.fstatvfs(file.fileno())
                step_bytes = min(step_bytes, found.f_bavail * found.f_frsize - left_bytes)
                if step_bytes < 4 * KIB:
                    break
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step_bytes)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step_bytes //= 4

    def let_go(self) -> None:
        self._filler.unlink()
        tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGCONT)


class NoInode(Pressure):
    """Empty files take all inodes."""

    is_felt_for_sure = True
    deaths_max = _DEATHS_MAX

    def press(self) -> None:
        self._made: list[Path] = []
        self.keep_up()

    def keep_up(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                path = self.node.data.with_name(f"empty-{len(self._made)}")
                path.touch()
                self._made.append(path)

    def let_go(self) -> None:
        for path in self._made:
            path.unlink()


class SoftLimit(Pressure):
    """A resource limit of some processes, which their children inherit."""

    kind: int

    def press(self) -> None:
        self._limited: set[int] = set()
        self._has_started: set[int] = set()
        self.keep_up()

    def keep_up(self) -> None:
        for pid in self.targets():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                self._limit(pid, self.now(pid) + self.slack())

    def let_go(self) -> None:
        for pid in [*self.node.pids.values(), *self.node.worker_pids(ask=False)]:
            with contextlib.suppress(ProcessLookupError):
                self._limit(pid, resource.prlimit(pid, self.kind)[1])

    def _limit(self, pid: int, soft: int) -> None:
        if soft == resource.prlimit(pid, self.kind)[1] or pid not in self._limited:
            resource.prlimit(pid, self.kind, (soft, resource.prlimit(pid, self.kind)[1]))
            self._limited.add(pid)

    def targets(self) -> list[int]:
        """Not those of a node that is still starting: it is right to end if it cannot."""
        supervisor = self.node.pids[SUPERVISOR]
        if supervisor not in self._has_started and self.node.worker_pids():
            self._has_started.add(supervisor)
        return [supervisor, *self.node.worker_pids(ask=False)] if supervisor in self._has_started else []

    def now(self, pid: int) -> int:
        raise NotImplementedError

    def slack(self) -> int:
        raise NotImplementedError


class FileSize(SoftLimit):
    kind = resource.RLIMIT_FSIZE
    is_felt_for_sure = True
    deaths_max = _DEATHS_MAX

    def now(self, pid: int) -> int:
        return 0

    def slack(self) -> int:
        return self.random.choice((64 * KIB, 512 * KIB, MIB))


class NodeDescriptors(SoftLimit):
    kind = resource.RLIMIT_NOFILE

    def now(self, pid: int) -> int:
        names = os.listdir(f"/proc/{pid}/fd")
        if not names:
            raise ProcessLookupError(f"process {pid} is ending")
        return max(map(int, names)) + 1

    def slack(self) -> int:
        return self.random.choice((0, 1, 3))


class ClientDescriptors(NodeDescriptors):
    def targets(self) -> list[int]:
        return [self.node.pids[name] for name in (*self.node.producers, *self.node.subscribers)]


class Memory(SoftLimit):
    kind = resource.RLIMIT_AS

    def targets(self) -> list[int]:
        return self.node.worker_pids(ask=False)

    def now(self, pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()

    def slack(self) -> int:
        return self.random.choice((256 * KIB, 2 * MIB, 8 * MIB))


class OverCap(Pressure):
    """Nobody reads, and more is pushed than the cap lets the node keep."""

    drops = True

    def press(self) -> None:
        self._end = self.node.acknowledged() + _OVER_CAP_BUNDLES
        self.keep_up()

    def keep_up(self) -> None:
        tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGSTOP)

    def let_go(self) -> None:
        tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGCONT)

    def is_over(self) -> bool:
        return self.node.acknowledged() >= self._end


@contextlib.contextmanager
def _inodes(target: Path, size_bytes: int) -> Iterator[Path]:
    with small_image(target, size_bytes, "-N", str(_INODES)) as made:
        yield made


Place = Callable[[Path, int], contextlib.AbstractContextManager[Path]]
LIMITS: dict[str, tuple[type[Pressure], Place | None, tuple[str, ...]]] = {
    "tmpfs": (NoRoom, small_memory, ()),
    "ext4": (NoRoom, small_image, ("mkfs.ext4",)),
    "inodes": (NoInode, _inodes, ("mkfs.ext4",)),
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
    """So many rounds at each limit that can be set here."""
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
