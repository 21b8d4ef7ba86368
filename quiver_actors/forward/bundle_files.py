"""Files that are named for the bundles in them: how to find out whether a bundle is in one already.

    <topic>-core_<n>-<incarnation>-<first>-<last>-<count>.parquet        first, last: <segment_seq>.<bundle_index>

All bundles of a file are of one topic, core and incarnation (the first eight digits; bundle ids repeat only where it differs). The name
bounds which they are; which exactly is in the file's metadata, as runs, and is read only if a bundle within the bounds is asked for.
A name says all where first and last are of one segment and the count leaves no hole.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from quiver_actors.base.ranges import runs_by_segment
from quiver_actors.client.delivery import Delivery
from quiver_actors.errors import InvalidFormat

SUFFIX = ".parquet"
RUNS_KEY = b"quiver.bundles"
"""Metadata of a file: JSON list of `[segment_seq, first bundle_index, count]`, rising."""

_NAME = re.compile(
    r"(?P<topic>[A-Za-z0-9_-]{1,64})-core_(?P<core>\d+)-(?P<incarnation>[0-9a-f]{8})"
    r"-(?P<seq>\d+)\.(?P<index>\d+)-(?P<last_seq>\d+)\.(?P<last_index>\d+)-(?P<count>\d+)\.parquet"
)

Place = tuple[int, int]
"""(segment_seq, bundle_index): where a bundle is, within one origin."""


class Origin(NamedTuple):
    """Within one of these a `Place` never names two bundles."""

    topic: str
    core: int
    incarnation: str


def origin_of(delivery: Delivery) -> Origin:
    """Return the origin of a delivered bundle."""
    bundle_id, incarnation = delivery.bundle_id, delivery.incarnation
    return Origin(bundle_id.topic, bundle_id.core, "0" * 8 if incarnation is None else incarnation.hex()[:8])


class Run(NamedTuple):
    """Bundles that follow one another in one segment."""

    segment_seq: int
    first_index: int
    bundle_count: int

    @property
    def last_index(self) -> int:
        """Index of the last bundle of the run in its segment."""
        return self.first_index + self.bundle_count - 1

    def holds(self, place: Place) -> bool:
        """Whether the run contains the bundle at a place (segment number, index)."""
        return place[0] == self.segment_seq and self.first_index <= place[1] <= self.last_index


def runs_of(places: Iterable[Place]) -> list[Run]:
    """Distinct places as rising runs."""
    return [Run(*run) for run in runs_by_segment(sorted(set(places)))]


def encode_runs(runs: Sequence[Run]) -> bytes:
    """Return the runs as compact JSON, the form in which a file's metadata keeps them."""
    return json.dumps(runs, separators=(",", ":")).encode()


def decode_runs(path: str, text: bytes | None) -> list[Run]:
    """
    Raises:
        InvalidFormat: not what `encode_runs` makes.
    """
    try:
        return [Run(*map(int, run)) for run in json.loads(text or b"")]
    except (ValueError, TypeError) as error:
        raise InvalidFormat(
            f"{path} does not say which bundles it holds ({RUNS_KEY.decode()}): move it elsewhere if ParquetFiles did not write it"
        ) from error


def file_name(origin: Origin, runs: Sequence[Run]) -> str:
    """The name of a file that holds these bundles (at least one)."""
    first, last = runs[0], runs[-1]
    count = sum(run.bundle_count for run in runs)
    topic, core, incarnation = origin
    return (
        f"{topic}-core_{core}-{incarnation}-{first.segment_seq:08d}.{first.first_index:05d}"
        f"-{last.segment_seq:08d}.{last.last_index:05d}-{count}{SUFFIX}"
    )


class BundleFile(NamedTuple):
    """The parts of a file name."""

    name: str
    origin: Origin
    first: Place
    last: Place
    bundle_count: int

    @property
    def whole_run(self) -> Run | None:
        """The bundles in it, where the name alone tells."""
        if self.first[0] != self.last[0] or self.last[1] - self.first[1] + 1 != self.bundle_count:
            return None
        return Run(self.first[0], self.first[1], self.bundle_count)


def parse_name(name: str) -> BundleFile | None:
    """Parse a file name; None: another program gave the name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    numbers = [int(found[key]) for key in ("seq", "index", "last_seq", "last_index", "count")]
    origin = Origin(found["topic"], int(found["core"]), found["incarnation"])
    return BundleFile(name, origin, (numbers[0], numbers[1]), (numbers[2], numbers[3]), numbers[4])


class Listing(Protocol):
    """The files of one place. A name always has the same content."""

    def names(self) -> Iterable[str]:
        """List all names that are there now. Raises OSError or ArchiveError."""

    def runs(self, name: str) -> list[Run]:
        """Read which bundles a file holds. Raises InvalidFormat: it does not say; OSError or ArchiveError."""


class BundleIndex:
    """Which bundles the files of one place hold. Looks at names; reads a file's metadata when it has to, once."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._known: set[str] = set()
        self._files: dict[Origin, list[BundleFile]] = {}
        """Sorted by their first bundle."""
        self._runs: dict[str, list[Run]] = {}

    def refresh(self) -> None:
        """Take in the names that have come and forget those that have gone. Raises as `Listing.names`."""
        names = set(self._listing.names())
        for name in self._known - names:
            self._forget(name)
        for name in names - self._known:
            found = parse_name(name)
            if found is not None:
                self._known.add(name)
                bisect.insort(self._files.setdefault(found.origin, []), found, key=lambda file: (file.first, file.name))

    def holds(self, origin: Origin, place: Place) -> bool:
        """Whether some file holds the bundle.

        Raises:
            InvalidFormat, OSError, ArchiveError: a file that may hold it cannot be read.
        """
        files = self._files.get(origin, [])
        behind = bisect.bisect_right(files, place, key=lambda file: file.first)
        return any(
            place <= file.last and any(run.holds(place) for run in self._runs_of(file))
            for file in reversed(files[:behind])
        )

    def _runs_of(self, file: BundleFile) -> list[Run]:
        runs = self._runs.get(file.name)
        if runs is None:
            whole = file.whole_run
            runs = self._runs[file.name] = [whole] if whole else self._listing.runs(file.name)
        return runs

    def _forget(self, name: str) -> None:
        found = parse_name(name)
        self._known.discard(name)
        self._runs.pop(name, None)
        if found is not None:
            self._files[found.origin].remove(found)
