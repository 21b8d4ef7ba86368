"""Bits flip in the files of a real node while it runs and its consumers read: no wrong value may be shown, and all is told.

    python -m tests.crash.live_flips [FLIPS] [SEED]          ends with two lines of JSON: all, and what adds up

Bundles of all shapes are pushed (with and without dictionaries, small and large, into stages too). Bits flip in any sealed segment, any
place of it, and in logs that are open, between any two bundles that a consumer takes, under mappings that are open. A consumer of
everything, one of a column, one that comes late, and readers of ranges compare each bundle with what was pushed. At the end every bundle
has come to each subscriber, or a notice has told of it.

A flip waits while a consumer compares a bundle: that damage which comes between the check and the use is not found is said in
docs/delivery.md.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, GapSubscription
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.gaps import GapNotice
from quiver_actors.errors import DataLost, FormatError, NotStored, QuiverError, StorageUnavailable
from tests.crash.showing import numbers_given, show
from tests.integration.client_node import ClientNode, client_node

CONFIG = """
[segment]
target_size = "1MiB"
max_open_duration = "200ms"

[retention]
quarantine_cap = "4MiB"
"""
FLIPS_AT_ONCE_MAX = 60
BUNDLES_AT_ONCE_MAX = 80
OPEN_LOGS_SHARE = 0.3
LOG_BYTES = 1 << 20
TAKEN_AT_ONCE_MAX = 120
_STANDSTILL_SECONDS = 60.0
"""After so long without anything new a subscriber does not come to its end."""


@dataclass
class FlipTally:
    """Counted while it was done."""

    flips: int = 0
    pushed: int = 0
    compared: int = 0
    """Bundles that were shown, and were right."""
    refused: int = 0
    """Reads that raised because of damage."""
    announced: int = 0
    """Bundles of which a notice told."""
    wrong: int = 0
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        return {
            "live_flips": self.flips,
            "live_flips_compared": self.compared,
            "live_flips_refused": self.refused,
            "live_flips_wrong": self.wrong,
            "open_failures": len(self.failures),
        }


@lru_cache(maxsize=4096)
def batch_of(number: int) -> pa.RecordBatch:
    """The contents of a bundle follow from its number."""
    rng = np.random.default_rng(number)
    rows = int(rng.choice([1, 5, 40, 400, 4000], p=[0.2, 0.3, 0.3, 0.15, 0.05]))
    columns = {"number": np.full(rows, number), "noise": rng.integers(0, 1 << 62, rows)}
    if number % 3 == 0:
        words = pa.array([f"word {word % (2 + number % 50)}" for word in range(rows)])
        columns["word"] = words.dictionary_encode()
    return pa.record_batch(columns)


def same_values(found: pa.RecordBatch, expected: pa.RecordBatch) -> bool:
    """Whether they say the same: a stream's dictionary may have grown beyond that of one bundle."""
    return found.schema.equals(expected.schema) and all(
        _plain(one).equals(other) for one, other in zip(found.columns, map(_plain, expected.columns), strict=True)
    )


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


@dataclass
class Reader:
    """A durable subscriber and what it knows."""

    name: str
    columns: list[str] | None
    seen: set[BundleId] = field(default_factory=set)
    told: set[BundleId] = field(default_factory=set)


class Campaign:
    """Pushes, flips bits and reads in turn, and compares every value shown with the stored one."""

    def __init__(self, node: ClientNode, client: Client, seed: int, tally: FlipTally) -> None:
        self.tally = tally
        self._node = node
        self._client = client
        self._random = random.Random(seed)
        self._next = 0
        self._stored: dict[BundleId, int] = {}
        self._readers = [Reader("all", None), Reader("column", ["noise"]), Reader("late", None)]
        self._open: dict[str, GapSubscription] = {}
        client.subscribe("late").close()

    def run(self, flips: int) -> None:
        try:
            for reader in self._readers[:2]:
                self._subscription(reader)
            while self.tally.flips < flips and not self.tally.wrong:
                self._push()
                self._take(self._random.choice(self._readers[:2]))
                self._flip()
                self._take(self._random.choice(self._readers[:2]))
                if self._random.random() < 0.2:
                    self._flip()
                    self._read_range()
                self._read_log()
                if self._random.random() < 0.02:
                    self._close(self._random.choice(self._readers[:2]))
            for reader in self._readers:
                self._drain(reader)
        finally:
            for reader in self._readers:
                self._close(reader)

    # --- what goes on ----------------------------------------------------------------------------------------------------

    def _push(self) -> None:
        count = self._random.randint(1, BUNDLES_AT_ONCE_MAX)
        numbers = range(self._next, self._next + count)
        self._next += count
        if self._random.random() < 0.1:
            with self._client.transaction(f"flips-{numbers[0]}") as transaction:
                for number in numbers:
                    transaction.push(batch_of(number))
            self.tally.pushed += count  # which ids they have is seen when they come
            return
        receipts = self._client.push_many([batch_of(number) for number in numbers])
        self._stored.update((receipt.bundle_id, number) for receipt, number in zip(receipts, numbers, strict=True))
        self.tally.pushed += count
        if self._random.random() < 0.3:
            self._client.flush()

    def _flip(self) -> None:
        """Flip some bits anywhere in the sealed segments, or in the logs that are open."""
        kind = "wal/quiver.wal*" if self._random.random() < OPEN_LOGS_SHARE else "segments/*.qseg"
        paths = sorted((self._node.directories.data / "default").glob(f"core_*/{kind}"))
        paths = [path for path in paths if "cursor" not in path.name and "spare" not in path.name]
        for _ in range(self._random.randint(1, FLIPS_AT_ONCE_MAX) if paths else 0):
            # The newest ones are those that consumers have mapped.
            recent = self._random.random() < 0.7
            self._flip_in(self._random.choice(paths[-8:] if recent else paths))

    def _flip_in(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):  # it is being rescued or deleted
            path.chmod(0o640)
            descriptor = os.open(path, os.O_RDWR)
            try:
                # Behind its entries an open log has nothing that anybody reads.
                at = self._random.randrange(min(os.fstat(descriptor).st_size, LOG_BYTES))
                byte = os.pread(descriptor, 1, at)[0]
                os.pwrite(descriptor, bytes([byte ^ 1 << self._random.randrange(8)]), at)
            finally:
                os.close(descriptor)
            self.tally.flips += 1

    def _read_log(self) -> None:
        """A node waits for whoever reads its log."""
        self._node.process.comes_within("worker.exit", 0.0)

    # --- consumers ---------------------------------------------------------------------------------------------------------

    def _subscription(self, reader: Reader) -> GapSubscription:
        found = self._open.get(reader.name)
        if found is None:
            columns: dict[str | int, list[str]] | None = None if reader.columns is None else {0: reader.columns}
            found = self._client.subscribe(
                reader.name, start="earliest", gaps="deliver", columns=columns, lease=None, prefetch=64
            )
            self._open[reader.name] = found
        return found

    def _close(self, reader: Reader) -> None:
        found = self._open.pop(reader.name, None)
        if found is not None:
            found.close()

    def _take(self, reader: Reader, timeout: float = 0.0) -> int:
        """Take what is there, up to some; returns how many events came."""
        subscription = self._subscription(reader)
        for taken in range(self._random.randint(1, TAKEN_AT_ONCE_MAX)):
            event = subscription.get(timeout)
            if event is None:
                return taken
            if isinstance(event, GapNotice):
                self._note(reader, event)
            elif self._random.random() < 0.15:
                event.defer()
            elif self._compare(reader, event):
                event.ack()
        return TAKEN_AT_ONCE_MAX

    def _note(self, reader: Reader, notice: GapNotice) -> None:
        first, count = notice.bundle_index_first, notice.bundle_count
        ids = [BundleId(notice.topic, notice.core, notice.segment_seq, first + each) for each in range(count or 0)]
        if count is None:
            segment = (notice.core, notice.segment_seq)
            ids = [id_ for id_ in self._stored if (id_.core, id_.segment_seq) == segment and id_.bundle_index >= first]
        reader.told.update(ids)
        self.tally.announced += len(ids)

    def _compare(self, reader: Reader, bundle: StoredBundle) -> bool:
        """Whether it was shown; a wrong value ends the campaign."""
        id_ = bundle.bundle_id
        try:
            batch = bundle[0]
        except (DataLost, FormatError):
            self.tally.refused += 1
            return False
        reader.seen.add(id_)
        number = self._stored.get(id_)
        if number is None and "number" in batch.schema.names:
            # Of a transaction, whose receipts do not say where its bundles are.
            number = self._stored[id_] = int(batch.column("number")[0].as_py())
        if number is not None:
            self.tally.compared += 1
            if not same_values(batch, batch_of(number).select(batch.schema.names)):
                self.tally.wrong += 1
                self.tally.failures.append(f"{reader.name} was shown other values of {id_} than bundle {number} had")
        return True

    def _read_range(self) -> None:
        """Read all that is stored, without a claim."""
        reader = Reader("range", None)
        with contextlib.suppress(NotStored, StorageUnavailable):
            for bundle in self._client.read("default", 0):
                self._compare(reader, bundle)

    def _drain(self, reader: Reader) -> None:
        """Read on until everything has come or was announced as lost."""
        known, deadline = -1, 0.0
        while not self._subscription(reader).all_drained() and not self.tally.wrong:
            if len(reader.seen | reader.told) > known:
                known, deadline = len(reader.seen | reader.told), time.monotonic() + _STANDSTILL_SECONDS
            elif time.monotonic() > deadline:
                self.tally.failures.append(
                    f"{reader.name} is not drained, and learns nothing for {_STANDSTILL_SECONDS:.0f} s"
                )
                return
            self._take(reader, timeout=0.5)
            self._read_log()
        missing = [id_ for id_ in self._stored if id_ not in reader.seen and id_ not in reader.told]
        if missing:
            self.tally.failures.append(f"{reader.name} neither got nor was told of {missing[:5]}")


def run(flips: int, seed: int) -> FlipTally:
    tally = FlipTally()
    with client_node(config=CONFIG) as node, node.connect() as client:
        try:
            Campaign(node, client, seed, tally).run(flips)
        except QuiverError as error:
            tally.failures.append(f"{type(error).__name__}: {error}")
    return tally


def main() -> int:
    flips, seed = numbers_given(10_000, 1)
    started = time.monotonic()
    return show(started, run(flips, seed))


if __name__ == "__main__":
    sys.exit(main())
