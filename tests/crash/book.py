"""What producers and subscribers of a real node have seen, from their journals, and whether it keeps the promise.

Each process appends whole lines with one write(2), so that a kill cuts off only what it had not been told yet. Of a producer
`pushing first count` before a push, then `acked number core segment index` for each bundle or `refused first count code`; of a
subscriber `got verdict producer number core segment index`, `durable core segment index` when the acknowledgement is on disk,
`gap core segment first last reason` (`last` is -1 where nobody knows how many there were), and `failed code` when it has to connect anew.

Demanded
- Every acknowledged bundle reaches every subscriber under the id of its receipt, or a gap notice covers it.
- What is delivered was pushed and is equal to it, acknowledged or not. Of an idempotent producer it is there once, under one id; what
  others were not sure of they, or their client, may have pushed twice.
- Nothing is delivered again after its acknowledgement was durable.
- Clients get no errors but those of Quiver that may be waited out, and those that are expected under such a fault.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from quiver_actors.base.error_codes import error_classes
from tests.crash.producer import IDEMPOTENT

Bundle = tuple[int, int]
"""Producer and number."""
Place = tuple[int, int, int]
"""Core, segment and index."""
UNKNOWN_END = -1


class Journal:
    """Reads a growing file line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def new_lines(self) -> list[list[str]]:
        """The words of each whole line that has come since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return []
        self._at += len(whole) + 1
        return [line.split() for line in whole.decode().split("\n")]


@dataclass
class _Reader:
    """Deliveries and notices that one subscriber had."""

    journal: Journal
    got: dict[Bundle, set[Place]] = field(default_factory=dict)
    had_before: dict[Bundle, set[Place]] = field(default_factory=dict)
    """Deliveries of the node whose data were copied: it may have delivered a bundle before the producer heard of its acknowledgement."""
    durable: set[Place] = field(default_factory=set)
    told: list[tuple[int, int, int, int]] = field(default_factory=list)

    def has(self, bundle: Bundle, place: Place) -> bool:
        """Return whether the bundle was delivered under this id, by this node or the one whose data were copied."""
        return place in self.got.get(bundle, ()) or place in self.had_before.get(bundle, ())

    def was_told(self, place: Place) -> bool:
        return any(
            place[:2] == (core, segment) and first <= place[2] and (last == UNKNOWN_END or place[2] <= last)
            for core, segment, first, last in self.told
        )


class Book:
    """All journals of one node. `update` reads what is new."""

    def __init__(
        self, directory: Path, producers: int, subscribers: tuple[str, ...], tolerated: frozenset[str]
    ) -> None:
        self._directory = directory
        self._tolerated = tolerated
        self._producers = {producer: Journal(self.producer_journal(producer)) for producer in range(producers)}
        self._readers = {name: _Reader(Journal(self.subscriber_journal(name))) for name in subscribers}
        self._next = Counter[int]()
        self._unacknowledged = Counter[int]()
        self.acknowledged: dict[Bundle, Place] = {}
        self.refused = Counter[str]()
        self.counts = Counter[str]()
        self.wrong: list[str] = []

    def copy(self) -> Book:
        """Return a copy of the book with everything that the journals say now."""
        self.update()
        return copy.deepcopy(self)

    def inherit(self, before: Book, after: Book) -> None:
        """The node has a copy of another one's data, taken between these two of its books: what was promised before holds here."""
        self._next.update(after._next)
        self._unacknowledged.update(before._unacknowledged)
        self.acknowledged.update(before.acknowledged)
        for name in before._readers.keys() & self._readers.keys():
            mine = self._readers[name]
            # What it had resolved by then, it had written down.
            got = after._readers[name].got
            mine.had_before = {bundle: set(places) for bundle, places in got.items()}
            mine.got = {bundle: set(got[bundle]) for bundle in before.acknowledged.keys() & got.keys()}
            mine.durable, mine.told = set(before._readers[name].durable), list(after._readers[name].told)

    def producer_journal(self, producer: int) -> Path:
        return self._directory / f"producer-{producer}"

    def subscriber_journal(self, name: str) -> Path:
        return self._directory / f"subscriber-{name}"

    def next_number(self, producer: int) -> int:
        """Return a number that this producer has never used; for an idempotent one, the first that is not acknowledged."""
        self.update()
        return self._unacknowledged[producer] if producer in IDEMPOTENT else self._next[producer]

    def update(self) -> None:
        for producer, journal in self._producers.items():
            for words in journal.new_lines():
                self._hear_producer(producer, words)
        for name, reader in self._readers.items():
            for words in reader.journal.new_lines():
                self._hear_subscriber(name, reader, words)

    def owed(self, since: dict[Bundle, Place] | None = None) -> list[str]:
        """Acknowledged bundles that a subscriber neither had nor was told of; of `since`, where not all are meant."""
        self.update()
        return [
            f"{name}: bundle {bundle}, acknowledged as {place}"
            for name, reader in self._readers.items()
            for bundle, place in (self.acknowledged if since is None else since).items()
            if not reader.has(bundle, place) and not reader.was_told(place)
        ]

    def told(self) -> list[str]:
        """Acknowledged bundles that a gap notice says are lost: to be empty where nothing is dropped on purpose."""
        return [
            f"{name} is told that {bundle} at {place} is lost"
            for name, reader in self._readers.items()
            if reader.told
            for bundle, place in self.acknowledged.items()
            if reader.was_told(place)
        ]

    def _hear_producer(self, producer: int, words: list[str]) -> None:
        match words:
            case ["pushing", first, count]:
                self._next[producer] = max(self._next[producer], int(first) + int(count))
            case ["acked", number, core, segment, index]:
                self._hear_acknowledgement((producer, int(number)), (int(core), int(segment), int(index)))
            case ["refused", _, count, code]:
                self.refused[code] += int(count)
                self._hear_error(f"producer {producer}", code)
            case _:
                self.wrong.append(f"producer {producer} says {words}")

    def _hear_acknowledgement(self, bundle: Bundle, place: Place) -> None:
        if self.acknowledged.setdefault(bundle, place) != place:
            self.wrong.append(f"{bundle} is acknowledged as {place}, and was as {self.acknowledged[bundle]}")
        self._unacknowledged[bundle[0]] = max(self._unacknowledged[bundle[0]], bundle[1] + 1)

    def _hear_subscriber(self, name: str, reader: _Reader, words: list[str]) -> None:
        match words:
            case ["got", verdict, producer, number, *where]:
                self._hear_delivery(name, reader, verdict, (int(producer), int(number)), where)
            case ["durable", core, segment, index]:
                reader.durable.add((int(core), int(segment), int(index)))
                self.counts["durable"] += 1
            case ["gap", core, segment, first, last, reason]:
                reader.told.append((int(core), int(segment), int(first), int(last)))
                self.counts[f"told_{reason}"] += 1
            case ["failed", code]:
                self.refused[code] += 1
                self._hear_error(f"subscriber {name}", code)
            case _:
                self.wrong.append(f"subscriber {name} says {words}")

    def _hear_error(self, who: str, code: str) -> None:
        known = error_classes().get(code)
        if code not in self._tolerated and (known is None or not known.retriable):
            self.wrong.append(f"{who} gets {code}")

    def _hear_delivery(self, name: str, reader: _Reader, verdict: str, bundle: Bundle, where: list[str]) -> None:
        core, segment, index = map(int, where)
        place = (core, segment, index)
        self.counts["delivered"] += 1
        if verdict != "same":
            self.wrong.append(f"{name} got {bundle} at {place} with other contents")
        if not self._was_pushed(*bundle):
            self.wrong.append(f"{name} got {bundle}, which was never pushed")
        if place in reader.durable:
            self.wrong.append(f"{name} got {bundle} at {place} again after its acknowledgement was durable")
        places = reader.got.setdefault(bundle, set())
        self.counts["redelivered"] += place in places
        places.add(place)
        if len(places) > 1 and bundle[0] in IDEMPOTENT:
            self.wrong.append(f"{name} got {bundle} under several ids: {sorted(places)}")

    def _was_pushed(self, producer: int, number: int) -> bool:
        """Whether the producer's journal names the bundle: it is written before the push, so before any delivery."""
        if number >= self._next[producer]:
            for words in self._producers[producer].new_lines():
                self._hear_producer(producer, words)
        return number < self._next[producer]
