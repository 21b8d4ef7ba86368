"""Writes the directory of a former release that `data/former-90d0418.tar.xz` holds. Run at commit 90d0418, in a clone of it:

    PYTHONPATH=. python <this file> OUT && tar -C OUT -cJf former-90d0418.tar.xz .

Bundles are numbered as by `numbered_batch`. Segment 0 holds 0 to 3, segment 1 (compacted) 100 to 599, segment 2 50 to 53, of which 51 is
damaged and was rescued: everybody has a notice that nobody was told of. The open log holds 54 and 55 with keys of producer "p", and 70 to
72; a prepared stage of transaction "t" holds 60 and 61. Subscriber "done" has acknowledged segments 0 and 1, "half" bundles 0 and 2,
"fresh" nothing.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.paths import EnginePaths
from tests.support.engine_driver import numbered_batch, topic_settings
from tests.support.stage_driver import StageDriver

DIRECTORY = "default/core_0"


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "quiver.version").write_text("quiver-data 1\n")
    settings = topic_settings(segment_target_size_bytes=1 << 20)
    driver = StageDriver(PosixDisk(str(out)), settings, DIRECTORY)
    for subscriber in ("done", "half", "fresh"):
        driver.engine.registrations.register(subscriber, "earliest")
    for first, count in ((0, 4), (100, 500), (50, 4)):
        for number in range(first, first + count):
            driver.push({0: numbered_batch(number, rows=1 if first == 100 else 5)})
        driver.settle()
        driver.seal()
    compact_segment = import_module("quiver_actors.store.jobs.upkeep").compact_segment
    print("compacted:", compact_segment(PosixDisk(str(out)), EnginePaths(DIRECTORY), 1, dry_run=False))
    for segment_seq, indexes, *_ in driver.claim("done", "x", 504):
        driver.resolve("done", "x", segment_seq, "ack", indexes)
    ((segment_seq, indexes, *_),) = driver.claim("half", "x", 4)
    driver.resolve("half", "x", segment_seq, "ack", [0, 2])
    driver.flush_progress()
    driver.engine._lock.release()
    path = out / DIRECTORY / "segments/0000000000000002.qseg"
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[121:125], "little") + 8
    content[121 + size + 200] ^= 0xFF
    path.chmod(0o640)
    path.write_bytes(content)
    driver.reopen()
    driver.settle()
    driver.flush_progress()
    for number in (54, 55):
        key = {"quiver.producer": pa.array(["p"]), "quiver.producer_sequence": pa.array([number - 54], pa.uint64())}
        driver.push({0: numbered_batch(number), 63: pa.record_batch(key)})
    driver.commit()
    driver.prepared(60, 61)
    for number in (70, 71, 72):
        driver.push_numbered(number)
    driver.commit()
    os._exit(0)


main(Path(sys.argv[1]))
