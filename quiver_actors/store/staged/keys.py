"""Idempotent producers: what each of them stored last, so that a bundle that is pushed again is not stored again.

Source: docs/formats.md section 10.5, "Idempotent producers", and section 10.6, "Producers and the number of workers".

A producer numbers its bundles 1, 2, 3, ... (or from any other number on). Its key, (producer, number), travels in the envelope slot of the
bundle. Of every producer the newest runs are remembered: consecutive numbers that lie side by side in one segment. The window of a
producer reaches from a floor to the newest number. What is in it and in no run was never stored, or lost before it was acknowledged:
a power loss may take a bundle out of the middle of a log.

| number of a push                | answer                                                              |
|---------------------------------|---------------------------------------------------------------------|
| of an unknown producer          | stored: it begins there                                             |
| the next one                    | stored                                                              |
| remembered                      | not stored again: where it was stored                               |
| in the window, not remembered   | stored                                                              |
| below the window                | SequenceTooOld                                                      |
| behind the next one             | SequenceGap; stored if the window's end is open: it begins there    |

`quiver.producers` holds the windows up to a sealed segment: one frame as in `store.staged.records`, magic QUIVPRD\\0, a msgpack list
of [producer, [[first, bundles, segment_seq, bundle_index, sequence], ...]], least recently used first, runs rising. A run that another
core stores has that core as a sixth number. Where the floor is below the first run, a run of 0 bundles stands in front and tells it. In a
data directory whose number of workers has changed, ["", [[recovered_in, 0, settled_in, 0, 0]]] comes first. The file is written before a
segment is sealed that holds keys, and after the log of that segment is durable; the keys of logs that are not sealed are read back from
their entries.

Where the file is damaged, windows are found again in the segments that are there (`store.recovery.stored_keys`). What deleted segments
held is not known then: such a window begins behind its last gap, and its end is open, which a run of 0 bundles behind its last one tells:
a push behind the next number is stored, and the window begins there. Its next push closes it.

Owner: one engine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import msgspec
import pyarrow as pa

from quiver_actors.base.envelope import with_columns
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.errors import InvalidFormat, SequenceGap, SequenceTooOld, UsageError
from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM
from quiver_actors.store.segment.placement import SlotPlacement
from quiver_actors.store.staged.records import decode_frame, encode_frame

PRODUCERS_MAGIC = b"QUIVPRD\0"
PRODUCER_CHARACTERS_MAX = 128
RUNS_PER_PRODUCER = 1024
RUNS_MAX = 65_536
"""The most runs of all producers together: beyond it the producers that were silent longest are forgotten."""
NUMBER_MAX = (1 << 63) - 1
_GENERATIONS = ""
"""No producer has this name: what stands under it in the file are the file's generations."""

PRODUCER_COLUMN = "quiver.producer"
NUMBER_COLUMN = "quiver.producer_sequence"
_SCHEMA = pa.schema(
    [pa.field(PRODUCER_COLUMN, pa.string(), nullable=False), pa.field(NUMBER_COLUMN, pa.uint64(), nullable=False)]
)


class KeyRun(NamedTuple):
    """Consecutive bundles of one producer, `bundles` of them, numbered from `first` on, side by side in one segment."""

    first: int
    bundles: int
    segment_seq: int
    bundle_index: int
    sequence: int
    core: int = -1
    """Where they are stored; -1: on the core whose windows these are."""

    @property
    def end(self) -> int:
        """Number behind the last bundle of the run."""
        return self.first + self.bundles


_first_of = attrgetter("first")


class Window:
    """The remembered bundles of one producer. There is always a run, except while the first one is being added."""

    __slots__ = ("floor", "is_end_known", "runs")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        """The lowest number that the window can tell about."""
        self.runs: list[KeyRun] = []
        """The remembered runs, rising and apart."""
        self.is_end_known = True
        """Whether it is certain that nothing behind the last run was ever stored."""

    @property
    def following(self) -> int:
        """The number that the producer's next new bundle has."""
        return self.runs[-1].end if self.runs else self.floor

    def known(self, first: int, end: int) -> list[KeyRun]:
        """The parts of runs that are in `first..end`."""
        found: list[KeyRun] = []
        at = bisect_right(self.runs, first, key=_first_of)
        for run in islice(self.runs, max(0, at - 1), None):
            if run.first >= end:
                break
            if run.end > first:
                found.append(_cut(run, first, end))
        return found

    def add_unknown(self, run: KeyRun) -> int:
        """Remember what is not known yet of a run. Returns how many runs there are more by it."""
        known = self.known(run.first, run.end)
        return sum(self.add(_cut(run, first, end)) for first, end in gaps(max(run.first, self.floor), run.end, known))

    def add(self, run: KeyRun) -> int:
        """Remember a run of which nothing is known. Returns how many runs there are more by it."""
        at = bisect_right(self.runs, run.first, key=_first_of)
        before = self.runs[at - 1] if at else None
        if before is not None and _continues(before, run):
            self.runs[at - 1] = before._replace(bundles=before.bundles + run.bundles)
            return 0
        self.runs.insert(at, run)
        return 1

    def forget_oldest(self) -> None:
        """Forget the oldest run; the window then begins behind it."""
        self.floor = self.runs.pop(0).end

    def begin_at(self, floor: int) -> None:
        """Forget all runs, and begin the window at this number."""
        self.floor = floor
        self.runs.clear()

    def listed(self) -> list[KeyRun]:
        """The runs as the file lists them."""
        front = [KeyRun(self.floor, 0, 0, 0, 0)] if self.floor < self.runs[0].first else []
        end = [] if self.is_end_known else [KeyRun(self.following, 0, 0, 0, 0)]
        return [*front, *self.runs, *end]


class Windows:
    """The windows of all idempotent producers of one core.

    Attributes:
        recovered_in: the generation since whose first start everything that was stored on this core before it is known here.
        settled_in: the generation for which the windows were taken over that other cores held of this core's producers.
    """

    def __init__(self) -> None:
        self.recovered_in = self.settled_in = 0
        self._windows: OrderedDict[str, Window] = OrderedDict()
        """The windows by producer, least recently used first."""
        self._run_count = 0

    def __len__(self) -> int:
        return len(self._windows)

    def items(self) -> ItemsView[str, Window]:
        """Windows by producer, least recently used first; not to be changed."""
        return self._windows.items()

    def stored(self, producer: str, first: int, count: int) -> list[KeyRun]:
        """Which of those bundles were stored before, rising.

        Raises:
            SequenceGap, SequenceTooOld: see the table.
        """
        window = self._windows.get(producer)
        if window is None:
            return []
        if first > window.following:
            if not window.is_end_known:
                return []
            raise SequenceGap(
                f"producer {producer!r} pushes number {first}, but the next one is {window.following}: "
                f"push the {first - window.following} bundles between them first"
            )
        if first < window.floor:
            raise SequenceTooOld(
                f"producer {producer!r} pushes {first} again, and only {window.floor} to {window.following - 1} are remembered: "
                "it is not known any more whether it was stored"
            )
        return window.known(first, first + count)

    def add(self, producer: str, run: KeyRun, floor: int | None = None) -> None:
        """Note that bundles were stored. Those that are known already, or are older than the window, change nothing.

        Args:
            floor: of its window, if the producer is unknown and has pushed bundles in front of these that were not stored.
        """
        floor = run.first if floor is None else min(floor, run.first)
        window = self._windows.get(producer)
        if window is None:
            window = self._windows[producer] = Window(floor)
        elif not window.is_end_known and floor > window.following:
            self._run_count -= len(window.runs)
            window.begin_at(floor)
        window.is_end_known = True
        self._windows.move_to_end(producer)
        self._run_count += window.add_unknown(run)
        self._trim(window)

    def find(self, producer: str, run: KeyRun) -> None:
        """Stored bundles were found of which nobody knew any more: there may have been others behind them."""
        self.add(producer, run)
        self.leave_open(producer)

    def leave_open(self, producer: str) -> None:
        """Note that it is not known what the producer has stored last."""
        if producer in self._windows:
            self._windows[producer].is_end_known = False

    def _trim(self, window: Window) -> None:
        while len(window.runs) > RUNS_PER_PRODUCER:
            window.forget_oldest()
            self._run_count -= 1
        while self._run_count > RUNS_MAX and len(self._windows) > 1:
            _, gone = self._windows.popitem(last=False)
            self._run_count -= len(gone.runs)

    def encode(self) -> bytes:
        """The content of `quiver.producers`."""
        generations = self.recovered_in, self.settled_in
        listed = [[_GENERATIONS, [(self.recovered_in, 0, self.settled_in, 0, 0)]]] if any(generations) else []
        listed += [[name, [_packed(run) for run in window.listed()]] for name, window in self._windows.items()]
        return encode_frame(PRODUCERS_MAGIC, listed)


def decode_windows(data: bytes) -> Windows:
    """Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    windows = Windows()
    try:
        listed = msgspec.msgpack.decode(
            decode_frame(PRODUCERS_MAGIC, data, "quiver.producers"), type=list[tuple[str, list[KeyRun]]]
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFormat(f"quiver.producers: {error}") from error
    for producer, runs in listed:
        if producer == _GENERATIONS:
            windows.recovered_in, windows.settled_in = (runs[0].first, runs[0].segment_seq) if runs else (0, 0)
            continue
        floor = runs[0].first if runs else None
        for run in runs:
            if run.bundles > 0:
                windows.add(producer, run, floor)
        if len(runs) > 1 and runs[-1].bundles <= 0:
            windows.leave_open(producer)
    return windows


def _packed(run: KeyRun) -> tuple[int, ...]:
    return run if run.core >= 0 else run[:5]


def gaps(first: int, end: int, known: Sequence[KeyRun]) -> list[tuple[int, int]]:
    """What of `first..end` is in none of the runs, which rise: (first, end) of each piece."""
    found = []
    for run in known:
        if run.first > first:
            found.append((first, run.first))
        first = max(first, run.end)
    return [*found, (first, end)] if first < end else found


def carries_keys(schema: pa.Schema) -> bool:
    """Whether that is the schema of envelopes with keys."""
    return all(schema.get_field_index(field.name) >= 0 for field in _SCHEMA)


def check_key(producer: str, number: int) -> None:
    """
    Raises:
        UsageError: this can be no key.
    """
    if not isinstance(producer, str) or not 1 <= len(producer) <= PRODUCER_CHARACTERS_MAX:
        raise UsageError(f"producer {producer!r}: expected 1 to {PRODUCER_CHARACTERS_MAX} characters")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= NUMBER_MAX:
        raise UsageError(f"sequence {number!r} of producer {producer!r}: expected a number of 0 to {NUMBER_MAX}")


def with_key(envelope: pa.RecordBatch | None, producer: str, number: int) -> pa.RecordBatch:
    """The envelope of a bundle with its key, behind the columns that it had."""
    return with_columns(envelope, _SCHEMA, (producer, number))


def without_key(envelope: pa.RecordBatch) -> pa.RecordBatch:
    """The envelope without the columns that make it that of an idempotent push."""
    return envelope.select([index for index, name in enumerate(envelope.schema.names) if name not in _SCHEMA.names])


def key_in(envelope: pa.RecordBatch) -> tuple[str, int] | None:
    """The key that an envelope carries; None if there is none, or what stands in its place cannot be read."""
    producers, numbers = (_column(envelope, field) for field in _SCHEMA)
    if producers is None or numbers is None or not envelope.num_rows:
        return None
    key = producers[0].as_py(), numbers[0].as_py()
    return None if None in key else key


def _column(envelope: pa.RecordBatch, field: pa.Field) -> pa.Array | None:
    """A column that nobody has checked yet: it may have any type and any offsets."""
    index = envelope.schema.get_field_index(field.name)
    if index < 0 or envelope.schema.field(index).type != field.type:
        return None
    column = envelope.column(index)
    try:
        column.validate(full=True)
    except pa.ArrowException:
        return None
    return column


def key_of(placements: Sequence[SlotPlacement], read: Callable[[int, int], bytes]) -> tuple[str, int] | None:
    """The key of a bundle in a log file, None if it carries none.

    Args:
        read: `read(length, offset)` of the file.
    """
    if not placements or placements[-1][0].slot_id != ENVELOPE_SLOT:
        return None
    schema, _, offset, metadata_bytes, body_bytes, dictionaries = placements[-1]
    brought = [each.message for each in dictionaries]
    stream = b"".join([schema.message, *brought, read(metadata_bytes + body_bytes, offset), END_OF_STREAM])
    try:
        return key_in(pa.ipc.open_stream(stream).read_next_batch())
    except (pa.ArrowException, OSError):
        return None


def _continues(last: KeyRun, run: KeyRun) -> bool:
    return (
        run.first == last.end
        and run.core == last.core
        and run.segment_seq == last.segment_seq
        and run.bundle_index == last.bundle_index + last.bundles
        and run.sequence == last.sequence + last.bundles
    )


def _cut(run: KeyRun, first: int, end: int) -> KeyRun:
    """The part of a run that lies in `first..end`."""
    skipped = max(0, first - run.first)
    count = min(run.end, end) - run.first - skipped
    index, sequence = run.bundle_index + skipped, run.sequence + skipped
    return KeyRun(run.first + skipped, count, run.segment_seq, index, sequence, run.core)
