"""Idempotent producers: what each of them stored last, so that a bundle that is pushed again is not stored again.

A producer numbers its bundles 1, 2, 3, ... (or from any other number on). Its key, (producer, number), travels in the envelope slot of the
bundle. Of every producer the newest runs are remembered: consecutive numbers that lie side by side in one segment.

| number of a push                | answer                                                              |
|---------------------------------|---------------------------------------------------------------------|
| of an unknown producer          | stored: it begins there                                             |
| the next one                    | stored                                                              |
| remembered                      | not stored again: where it was stored                               |
| older than what is remembered   | SequenceTooOld                                                      |
| behind the next one             | SequenceGap                                                         |

`quiver.producers` holds the windows up to a sealed segment: one frame as in `transactions.records`, magic QUIVPRD\\0, a msgpack list
of [producer, [[first, bundles, segment_seq, bundle_index, sequence], ...]], least recently used first. It is written before a segment is
sealed that holds keys; the keys of logs that are not sealed are read back from their entries.

Owner: one engine.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from quiver_actors.envelope import with_columns
from quiver_actors.errors import InvalidFormat, SequenceGap, SequenceTooOld, UsageError
from quiver_actors.model import ENVELOPE_SLOT
from quiver_actors.segment.arrow_ipc import END_OF_STREAM
from quiver_actors.segment.builder import SlotPlacement
from quiver_actors.transactions.records import decode_frame, encode_frame

PRODUCERS_MAGIC = b"QUIVPRD\0"
PRODUCER_CHARACTERS_MAX = 128
RUNS_PER_PRODUCER = 1024
RUNS_MAX = 65_536
"""Of all producers: beyond it the ones that were longest silent are forgotten."""
NUMBER_MAX = (1 << 63) - 1

PRODUCER_COLUMN = "quiver.producer"
NUMBER_COLUMN = "quiver.producer_sequence"
_SCHEMA = pa.schema(
    [pa.field(PRODUCER_COLUMN, pa.string(), nullable=False), pa.field(NUMBER_COLUMN, pa.uint64(), nullable=False)]
)


class KeyRun(NamedTuple):
    """`bundles` of them, numbered from `first` on, side by side in one segment."""

    first: int
    bundles: int
    segment_seq: int
    bundle_index: int
    sequence: int

    @property
    def end(self) -> int:
        return self.first + self.bundles


class Windows:
    """See the module."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, deque[KeyRun]] = OrderedDict()
        """Rising, side by side; least recently used producers first."""
        self._run_count = 0

    def __len__(self) -> int:
        return len(self._runs)

    def stored(self, producer: str, first: int, count: int) -> list[KeyRun]:
        """Which of those bundles were stored before: always the first ones of them.

        Raises:
            SequenceGap, SequenceTooOld: see the table.
        """
        runs = self._runs.get(producer)
        if runs is None:
            return []
        following, oldest = runs[-1].end, runs[0].first
        if first > following:
            raise SequenceGap(
                f"producer {producer!r} pushes {first}, the next one is {following}: push the {first - following} between them first"
            )
        if first < oldest:
            raise SequenceTooOld(
                f"producer {producer!r} pushes {first} again, and only {oldest} to {following - 1} are remembered: "
                "whether it was stored cannot be told any more"
            )
        return [_cut(run, first, first + count) for run in runs if run.first < first + count and first < run.end]

    def add(self, producer: str, run: KeyRun) -> None:
        """Bundles were stored; what of them is known already changes nothing."""
        runs = self._runs.setdefault(producer, deque())
        self._runs.move_to_end(producer)
        if runs and run.first < runs[-1].end:
            if run.end <= runs[-1].end:
                return
            run = _cut(run, runs[-1].end, run.end)
        last = runs[-1] if runs else None
        if last is not None and _continues(last, run):
            runs[-1] = last._replace(bundles=last.bundles + run.bundles)
            return
        if last is not None and run.first > last.end:
            # Only where its own record was lost: it begins anew, as an unknown one does.
            self._run_count -= len(runs)
            runs.clear()
        runs.append(run)
        self._run_count += 1
        self._trim(runs)

    def _trim(self, runs: deque[KeyRun]) -> None:
        if len(runs) > RUNS_PER_PRODUCER:
            runs.popleft()
            self._run_count -= 1
        while self._run_count > RUNS_MAX and len(self._runs) > 1:
            _, gone = self._runs.popitem(last=False)
            self._run_count -= len(gone)

    def encode(self) -> bytes:
        """The content of `quiver.producers`."""
        return encode_frame(PRODUCERS_MAGIC, [[name, list(runs)] for name, runs in self._runs.items()])


def decode_windows(data: bytes) -> Windows:
    """Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    windows = Windows()
    try:
        listed = msgspec.msgpack.decode(
            decode_frame(PRODUCERS_MAGIC, data, "quiver.producers"), type=list[tuple[str, list[KeyRun]]]
        )
    except msgspec.DecodeError as error:
        raise InvalidFormat(f"quiver.producers: {error}") from error
    for producer, runs in listed:
        for run in runs:
            windows.add(producer, run)
    return windows


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


def key_in(envelope: pa.RecordBatch) -> tuple[str, int] | None:
    """The key that an envelope carries; None if there is none."""
    names = envelope.schema.names
    if not envelope.num_rows or PRODUCER_COLUMN not in names or NUMBER_COLUMN not in names:
        return None
    producer, number = envelope.column(PRODUCER_COLUMN)[0].as_py(), envelope.column(NUMBER_COLUMN)[0].as_py()
    return (producer, number) if isinstance(producer, str) and isinstance(number, int) else None


def key_of(placements: Sequence[SlotPlacement], read: Callable[[int, int], bytes]) -> tuple[str, int] | None:
    """The key of a bundle in a log file, None if it carries none.

    Args:
        read: `read(length, offset)` of the file.
    """
    if not placements or placements[-1][0].slot_id != ENVELOPE_SLOT or placements[-1][5]:
        return None
    schema, _, offset, metadata_bytes, body_bytes, _ = placements[-1]
    stream = schema.message + read(metadata_bytes + body_bytes, offset) + END_OF_STREAM
    try:
        return key_in(pa.ipc.open_stream(stream).read_next_batch())
    except (pa.ArrowException, OSError):
        return None


def _continues(last: KeyRun, run: KeyRun) -> bool:
    return (
        run.first == last.end
        and run.segment_seq == last.segment_seq
        and run.bundle_index == last.bundle_index + last.bundles
        and run.sequence == last.sequence + last.bundles
    )


def _cut(run: KeyRun, first: int, end: int) -> KeyRun:
    """The part of a run that lies in `first..end`."""
    skipped = max(0, first - run.first)
    count = min(run.end, end) - run.first - skipped
    return KeyRun(run.first + skipped, count, run.segment_seq, run.bundle_index + skipped, run.sequence + skipped)
