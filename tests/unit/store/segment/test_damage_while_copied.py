"""Rebuilding a compacted segment gives it new checksums: nothing that was damaged on the way may be covered by them."""

from __future__ import annotations

import pyarrow as pa

from quiver_actors.store.jobs.rebuild import Hints, rebuild
from quiver_actors.store.segment.checked import CheckedReader
from tests.disks.simulated import SimDisk
from tests.unit.store.segment.logfile import LogFile

COUNT = 6
FIRST_COPY = 3
"""Which reading of a bundle copies it: those before prove it."""


def batch_of(number: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([number * 1000 + row for row in range(50)])})


def values_at(content: bytes, number: int) -> int:
    return content.index(batch_of(number).column(0).buffers()[1].to_pybytes())


def test_damage_that_comes_while_a_rescue_copies_costs_its_bundle() -> None:
    log = LogFile()
    for number in range(COUNT):
        log.push({0: batch_of(number)})
    content = bytearray(log.compacted())
    content[values_at(bytes(content), 1)] ^= 1
    late = values_at(bytes(content), 4)
    disk = SimDisk()
    file = disk.create("new")
    readings = 0

    def read(length: int, offset: int) -> bytes:
        nonlocal readings
        if offset <= late < offset + length:
            readings += 1
            if readings == FIRST_COPY:
                content[late] ^= 1
        return bytes(content[offset : offset + length])

    found = rebuild(read, len(content), file, Hints(7, b""))
    assert found is not None
    assert readings > FIRST_COPY
    assert found.lost == (1, 4)
    reader = CheckedReader(disk.contents()["new"])
    kept = {index: reader.bundle(index)[0] for index in range(COUNT) if index not in found.lost}
    assert all(batch.equals(batch_of(index)) for index, batch in kept.items())
