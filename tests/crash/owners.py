"""One directory, one owner after the other: an embedded store in a process of its own, or a real node, killed at random moments.

    python -m tests.crash.owners [ROUNDS] [SEED] [PERCENT OF NODES]          ends with two lines of JSON: all, and what adds up

An owner of a store pushes and subscribes in threads, and forks children that try to use the store (`store_owner`). While it lives, a
second one comes, which must be refused by its number and change nothing. Most owners are killed, at a random time or at a whitebox point
(`points`), some are told to end. In some rounds a node with 1 to 3 cores owns the directory, so that it adopts what the store has left and
the other way round. At the end all is delivered, by a store or a node, and the `Book` compares.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self

import quiver_actors
from tests.crash.book import Journal
from tests.crash.bundles import TOPIC
from tests.crash.campaign import guarded
from tests.crash.live_node import PRODUCER, SUBSCRIBER, SUPERVISOR, LiveNode, rest
from tests.crash.points import Plan
from tests.crash.showing import numbers_given, show
from tests.crash.store_owner import own, try_to_open

OWNER = "owner"
NODE_SHARE = 0.25
"""Share of the rounds in which a node owns the directory."""
_POINT_SHARE = 0.3
_TERM_SHARE = 0.2
_RIVAL_SHARE = 0.5
_CORES_MAX = 3
_POINT_CALLS_MAX = 3_000
_STRIKE_SECONDS = 3.0
"""Not every owner comes to its point: then it is killed where it is."""
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


@dataclass
class OwnersTally:
    """Counted while it was done."""

    rounds: int = 0
    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Kind of owner and how it has ended."""
    points: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    rivals_refused: int = 0
    forks_refused: int = 0
    acknowledged: int = 0
    delivered: int = 0
    redelivered: int = 0
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        return {
            "owner_kills": sum(count for name, count in self.ends.items() if name.startswith("store SIGKILL")),
            "owner_rounds": self.rounds,
            "owner_points": sum(self.points.values()),
            "owner_rivals_refused": self.rivals_refused,
            "owner_forks_refused": self.forks_refused,
            "owner_acknowledged": self.acknowledged,
            "open_failures": len(self.failures),
        }


class Owned(LiveNode):
    """A directory with its present owner: a store in a process (`OWNER`), or a node with its clients. Nobody owns it at first."""

    def __init__(self) -> None:
        super().__init__(producers=2)
        self._forks = Journal(self.directories.base / "journals" / "forks")
        self.forks_refused = 0

    def __enter__(self) -> Self:
        try:
            if self._in_child(self._register_in_store):
                raise self.failed("the subscribers cannot be registered")
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def config(self) -> Path:
        return self._config

    def _register_in_store(self) -> int:
        with quiver_actors.open(self.data, config=self.config) as store:
            for name in self.subscribers:
                store.subscribe(name.partition("-")[2], topic=TOPIC, start="earliest").close()
        return 0

    def _in_child(self, work: Callable[[], int]) -> int:
        """Do it in a process of its own, which must not be this one; returns its exit code."""
        if pid := os.fork():
            return self.wait_end(pid)
        return self._live(OWNER, lambda _: os._exit(work()))

    def start_store(self, *, pushes: bool, forks: bool) -> None:
        """Let a store own the directory."""
        self.book.update()
        producers = range(len(self.producers)) if pushes else range(0)
        journals = {which: self._journal(self.book.producer_journal(which)) for which in producers}
        reading = {name.partition("-")[2]: 0 for name in self.subscribers}
        for name in reading:
            reading[name] = self._journal(self.book.subscriber_journal(name))
        numbers = {which: (self.book.next_number(which), journals[which]) for which in producers}
        forking = self._journal(self._forks.path)
        pid = os.fork()
        if pid == 0:
            self.points.take(OWNER)
            self._live(OWNER, lambda _: own(self.data, self.config, numbers, reading, forking if forks else None))
        self.pids[OWNER] = pid
        for descriptor in (*journals.values(), *reading.values(), forking):
            os.close(descriptor)

    def _journal(self, path: Path) -> int:
        return os.open(path, _APPEND, 0o600)

    def start_node(self, cores: int, *, pushes: bool) -> None:
        """Let a node own the directory."""
        self._cores = cores
        self.start(SUPERVISOR)
        self.wait_ready()
        self.start(*self.subscribers, *(self.producers if pushes else ()))

    def end_node(self, number: signal.Signals) -> None:
        self.end(SUPERVISOR, number)
        for name in [name for name in self.pids if name.startswith((PRODUCER, SUBSCRIBER))]:
            self.end(name, signal.SIGKILL)

    def rival_is_refused(self) -> None:
        """A second owner comes. Raises CampaignFailed: it is not refused by the number of the first."""
        heard = self.directories.base / "rival"
        self._in_child(lambda: heard.write_text(try_to_open(self.data, self.config)) * 0)
        answer = heard.read_text()
        if f"process {self.pids.get(OWNER, self.pids.get(SUPERVISOR))}" not in answer:
            raise self.failed(f"a second owner beside {self.pids} hears: {answer}")

    def check(self) -> None:
        """Look like the base class, and at the forks: none may use the store, or hang."""
        super().check()
        for words in self._forks.new_lines():
            self.forks_refused += words[0] == "refused"
            if words[0] != "refused":
                raise self.failed(f"a fork of the owner says {words}")


class Owners:
    """One owner after the other, in rounds."""

    def __init__(self, owned: Owned, random: Random, tally: OwnersTally, node_share: float) -> None:
        self._owned = owned
        self._node_share = node_share
        self._random = random
        self.tally = tally

    def round(self) -> None:
        if self._random.random() < self._node_share:
            self._node_round()
        else:
            self._store_round()
        self.tally.rounds += 1

    def _node_round(self) -> None:
        random, owned = self._random, self._owned
        owned.start_node(random.randint(1, _CORES_MAX), pushes=True)
        owned.progress(random.randrange(1, 40))
        self._rival()
        number = random.choice((signal.SIGKILL, signal.SIGTERM))
        owned.end_node(number)
        self.tally.ends[f"node {number.name}"] += 1

    def _store_round(self) -> None:
        random, owned = self._random, self._owned
        if random.random() < _POINT_SHARE:
            self._store_with_a_point()
            return
        forks, refused = random.random() < 0.5, owned.forks_refused
        owned.start_store(pushes=True, forks=forks)
        owned.progress(random.randrange(1, 40))
        if forks:
            owned.wait(lambda: owned.forks_refused > refused, "nobody hears of a fork")
        self._rival()
        rest(random.random() * 0.1)
        owned.check()
        number = signal.SIGTERM if random.random() < _TERM_SHARE else signal.SIGKILL
        self._end_store(number)

    def _store_with_a_point(self) -> None:
        """It dies at one of its calls, those of its start included; if it does not come so far, where it is."""
        random, owned = self._random, self._owned
        nth = random.randint(1, random.choice((30, 300, _POINT_CALLS_MAX)))
        owned.points.set(OWNER, Plan(nth, random.random() < 0.5, signal.SIGKILL))
        owned.start_store(pushes=True, forks=False)
        deadline = time.monotonic() + _STRIKE_SECONDS
        struck = None
        while struck is None and time.monotonic() < deadline:
            rest(0.01)
            struck = owned.points.struck()
        if struck is not None:
            self.tally.points[struck.point] += 1
        owned.points.withdraw(OWNER)
        self._end_store(signal.SIGKILL)
        owned.points.struck()

    def _end_store(self, number: signal.Signals) -> None:
        self._owned.end(OWNER, number)
        self.tally.ends[f"store {number.name}"] += 1

    def _rival(self) -> None:
        if self._random.random() < _RIVAL_SHARE:
            self._owned.rival_is_refused()
            self.tally.rivals_refused += 1

    def settle(self) -> None:
        """Wait until every subscriber has each acknowledged bundle."""
        if self._random.random() >= min(0.5, self._node_share):
            self._owned.start_store(pushes=False, forks=False)
        else:
            self._owned.start_node(self._random.randint(1, _CORES_MAX), pushes=False)
        self._owned.settle()


def run(rounds: int, seed: int, node_share: float = NODE_SHARE) -> OwnersTally:
    tally, random = OwnersTally(), Random(f"owners {seed}")
    with guarded(tally.failures.append, f"seed {seed}"), Owned() as owned:
        owners = Owners(owned, random, tally, node_share)
        try:
            for _ in range(rounds):
                owners.round()
            owners.settle()
            tally.failures += owned.book.told()[:5]
        finally:
            book = owned.book
            tally.acknowledged, tally.forks_refused = len(book.acknowledged), owned.forks_refused
            tally.delivered, tally.redelivered = book.counts["delivered"], book.counts["redelivered"]
    return tally


def main() -> int:
    rounds, seed, node_percent = numbers_given(20, 1, round(100 * NODE_SHARE))
    started = time.monotonic()
    return show(started, run(rounds, seed, node_percent / 100))


if __name__ == "__main__":
    sys.exit(main())
