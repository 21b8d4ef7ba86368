"""What does it cost to seal a full log into a readable segment, and to compact one?

seal       the work of a seal before its fsync, for a log of 32 MiB: tail encoded, appended, file cut to its size. Nothing of the entries
           is read again. Against `crc+pwrite`: the CRC and one write of the same bytes to a preallocated new file, which is what a
           separate segment file would cost at the least; and `re-encode`: every batch read with pyarrow and written to a new Arrow file.
compact    the same segment rewritten into contiguous streams by moving its encoded messages, to a preallocated new file, without its
           fsync. Against the same two.

Messages of 1 KiB, 64 KiB and 1 MiB; one schema, or sixteen in turn; without dictionaries, with equal ones in every bundle, and with
one that differs in every sixteenth. Files are in the page cache.

    python -m benchmarks.seal [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.harness import (
    Candidate,
    Measurements,
    Report,
    arguments,
    begun,
    run_interleaved,
)
from quiver_actors.base.checksum import crc32
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.encoding.entries import BundlePlan, PlannedBundles, plan
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.segment.compaction import Rewriting
from quiver_actors.store.segment.layout import Part
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.tail import encode_tail
from quiver_actors.store.wal.admission import check_push
from quiver_actors.store.wal.codec import Identity
from quiver_actors.store.wal.log import Log

KIB, MIB = 1 << 10, 1 << 20
SEGMENT_BYTES = 32 * MIB
SLACK_BYTES = 24 * MIB
_PUSH_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Case:
    message_bytes: int
    schemas: int
    dictionaries: str
    """`none`, `equal`, or `differing`."""
    segment_bytes: int = SEGMENT_BYTES

    @property
    def name(self) -> str:
        size = f"{self.message_bytes // MIB}MiB" if self.message_bytes >= MIB else f"{self.message_bytes // KIB}KiB"
        return f"{size}/{self.schemas}schemas/{self.dictionaries}"


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case(64 * KIB, 16, "equal", 4 * MIB)]
    plain = [Case(size, schemas, "none") for size in (KIB, 64 * KIB, MIB) for schemas in (1, 16)]
    return plain + [Case(64 * KIB, 1, kind) for kind in ("equal", "differing")]


def bundles(case: Case) -> Iterator[pa.RecordBatch]:
    """Distinct batches of about that size, of the case's schemas in turn."""
    rng = np.random.default_rng(case.message_bytes)
    rows = max(1, (case.message_bytes - 700) // 28)
    words = np.array([f"word-{number}" for number in range(100)])
    for number in range(case.segment_bytes // case.message_bytes):
        columns: dict[str, pa.Array] = {
            f"id{number % case.schemas}": pa.array(rng.integers(0, 1 << 40, rows)),
            "value": pa.array(rng.random(rows)),
        }
        if case.dictionaries == "none":
            columns["text"] = pa.array(words[rng.integers(100, size=rows)])
        else:
            version = number // 16 if case.dictionaries == "differing" else 0
            values = pa.array([f"{word}-{version}" for word in words])
            indexes = pa.array(rng.integers(0, 100, rows).astype(np.int32))
            columns["text"] = pa.DictionaryArray.from_arrays(indexes, values)
        yield pa.record_batch(columns)


class Prepared:
    """A full log file of a case; its contents can be sealed again and again."""

    def __init__(self, directory: str, case: Case) -> None:
        self.disk = PosixDisk(directory)
        file = self.disk.create("log")
        file.allocate(case.segment_bytes + SLACK_BYTES)
        self.log = Log(file, "log", case.segment_bytes + SLACK_BYTES)
        self.log.activate(bytes(16), 0, Identity(0, 0, bytes(16)))
        streams = StreamTable("t")
        plans: list[BundlePlan] = []
        for batch in bundles(case):
            plans.append(plan([(0, batch)], streams))
            if sum(planned.entry_bytes for planned in plans) >= _PUSH_BYTES:
                self._push(plans)
                plans = []
        if plans:
            self._push(plans)
        file.fdatasync()
        self.entries_end = self.log.end
        self.content = file.read(self.entries_end, 0)
        self.seal()
        self.segment = file.read(file.size(), 0)

    def _push(self, plans: list[BundlePlan]) -> None:
        planned = PlannedBundles(plans)
        memory = memoryview(bytearray(planned.size_bytes))
        rows = planned.write(memory, 0)
        push = rows.push(1, "t", 0, len(memory), len(memory))
        entries, _ = check_push(memory, self.log.end, push, rows.schemas())
        self.log.stage(memory, entries, time.time_ns(), 1)
        self.log.write()

    def tail(self) -> list[Part]:
        log = self.log
        return encode_tail(
            log.builder,
            entries_end=self.entries_end,
            crc32_of_entries=log.crc,
            wal_position_start=0,
            wal_position_end=log.position_end,
            incarnation=bytes(16),
        )

    def seal(self) -> None:
        tail = self.tail()
        self.log.file.write(tail, self.entries_end)
        self.log.file.truncate(self.entries_end + sum(map(len, tail)))

    def read(self, length: int, offset: int) -> bytes:
        return self.log.file.read(length, offset)

    def compact(self, descriptor: int) -> None:
        outline = read_outline(self.read, len(self.segment))
        at = 0
        for part in Rewriting(outline, self.read).parts():
            at += os.pwritev(descriptor, part, at)

    def crc_and_write(self, descriptor: int) -> None:
        crc32(self.content)
        os.pwrite(descriptor, self.content, 0)

    def encode_again(self, descriptor: int) -> None:
        """Every batch decoded, and written to one Arrow file a stream."""
        reader = SegmentReader(self.segment)
        files = ArrowFiles()
        for index in range(reader.bundle_count):
            files.write(reader.bundle(index)[0])
        at = 0
        for content in files.contents():
            at += os.pwrite(descriptor, content, at)

    def timed(self, work: Callable[[int], None]) -> Measurements:
        """Milliseconds of the work alone, with a preallocated new file that is thrown away."""
        file = self.disk.create("other")
        try:
            file.allocate(len(self.segment))
            started = time.perf_counter()
            work(file.fileno())
            return {"ms": (time.perf_counter() - started) * 1e3}
        finally:
            file.close()
            self.disk.unlink("other")


class ArrowFiles:
    """Arrow files in memory, one a schema; where a dictionary is not what a file can go on with, the next file."""

    def __init__(self) -> None:
        self._open: dict[pa.Schema, tuple[pa.BufferOutputStream, pa.ipc.RecordBatchFileWriter]] = {}
        self._closed: list[pa.Buffer] = []

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            self._writer(batch.schema).write_batch(batch)
        except pa.ArrowInvalid:
            self._close(batch.schema)
            self._writer(batch.schema).write_batch(batch)

    def contents(self) -> list[pa.Buffer]:
        for schema in list(self._open):
            self._close(schema)
        return self._closed

    def _writer(self, schema: pa.Schema) -> pa.ipc.RecordBatchFileWriter:
        if schema not in self._open:
            sink = pa.BufferOutputStream()
            self._open[schema] = sink, pa.ipc.new_file(sink, schema)
        return self._open[schema][1]

    def _close(self, schema: pa.Schema) -> None:
        sink, writer = self._open.pop(schema)
        writer.close()
        self._closed.append(sink.getvalue())


def compare(report: Report, directory: str, case: Case, rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as root:
        prepared = Prepared(root, case)
        candidates: dict[str, Candidate] = {
            "seal": lambda: prepared.timed(lambda _: prepared.seal()),
            "compact": lambda: prepared.timed(prepared.compact),
            "crc+pwrite": lambda: prepared.timed(prepared.crc_and_write),
            "re-encode": lambda: prepared.timed(prepared.encode_again),
        }
        results = run_interleaved(candidates, rounds)
        for ours in ("seal", "compact"):
            for limit in ("crc+pwrite", "re-encode"):
                against = limit, results[limit]
                report.show_rounds(
                    f"{ours}/{case.name}", results[ours], "ms", "ms", "page-cache", against, as_speed=True
                )
        prepared.log.file.close()


def main() -> None:
    options = arguments(__doc__)
    with begun(options) as (report, directory):
        for case in cases(options.quick):
            compare(report, directory, case, options.rounds)


if __name__ == "__main__":
    main()
