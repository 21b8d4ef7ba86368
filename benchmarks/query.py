"""How fast is what is stored read as a table, by `pyarrow.dataset` and by DuckDB, and what does a condition on the time of a push save?

One topic of bundles of 4,096 rows (64 KiB), all sealed, in segments of 32 MiB, in a store of this process. The limit, interleaved in the
same run, is `pyarrow.dataset` over Arrow files with the same batches, one file a segment. Every bundle is checked against its checksum;
Arrow checks nothing. A scan sums two columns, so that all values are read; the clock of `from scratch` includes making the dataset.

`recent` asks for the newest 1 % of 100 segments of 16 MiB (`--quick`: 4 MiB); its ratio is to the same statement over all of them, and the
clock includes taking the snapshot. `schema` asks for the one schema of 10,000 small segments that have three.

`command` is `quiver query "SELECT count(*) ..."` from the start of its process to its end, over an empty topic and over the data of the
scan; its modules are compiled, as an installation has them. `--only` takes some of `scans`, `selections`, `schemas` and `command`.

    python -m benchmarks.query [--quick] [--json] [--rounds N] [--dir D] [--only PART ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import quiver_actors
from benchmarks.harness import Candidate, Measurements, Report, begun, parser, read_options, run_interleaved
from quiver_actors import Store

ROWS = 4096
SEGMENTS, SEGMENTS_QUICK = 32, 2
BUNDLES_PER_SEGMENT = 512
MORE_SEGMENTS, MORE_SEGMENTS_QUICK = 100, 100
BUNDLES_PER_MORE, BUNDLES_PER_MORE_QUICK = 256, 64
SCHEMA_SEGMENTS, SCHEMA_SEGMENTS_QUICK = 10_000, 300
PARTS = ("scans", "command", "selections", "schemas")
SETTINGS = {"segment.compaction": "off"}
_SUMS = "SELECT sum(a), sum(b) FROM rows"


def bundle(number: int) -> pa.RecordBatch:
    first = number * ROWS
    return pa.record_batch({"a": np.arange(first, first + ROWS, dtype=np.int64), "b": np.full(ROWS, number / 7)})


def fill(store: Store, topic: str, segments: int, bundles: int, files: Path | None = None) -> None:
    """Push and seal; write the same batches to Arrow files."""
    store.create_topic(topic)
    for segment in range(segments):
        batches = [bundle(segment * bundles + number) for number in range(bundles)]
        store.push_many(batches, topic=topic)
        store.flush(topic)
        if files is not None:
            with pa.ipc.new_file(files / f"{segment:04}.arrow", batches[0].schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)


def clocked(action: Callable[[], Any]) -> Candidate:
    def measure() -> Measurements:
        start, cpu_start = time.perf_counter(), time.process_time()
        action()
        return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}

    return measure


def scanned(dataset: ds.Dataset) -> None:
    """Read all values."""
    for batch in dataset.to_batches():
        pc.sum(batch.column("a")), pc.sum(batch.column("b"))


def asked(dataset: ds.Dataset) -> None:
    connection = duckdb.connect()
    connection.register("rows", dataset)
    connection.execute(_SUMS).fetchall()


def counted(store: Store, since: str = "") -> None:
    store.sql(f"SELECT sum(a), sum(b) FROM small {since}").read_all()


def scans(report: Report, store: Store, base: Path, segments: int, rounds: int) -> None:
    files = base / "files"
    files.mkdir()
    fill(store, "rows", segments, BUNDLES_PER_SEGMENT, files)
    ours, theirs = store.dataset("rows"), ds.dataset(files, format="ipc")
    found = run_interleaved(
        {
            "arrow": clocked(lambda: scanned(theirs)),
            "ours": clocked(lambda: scanned(ours)),
            "from scratch": clocked(lambda: scanned(store.dataset("rows"))),
            "arrow, DuckDB": clocked(lambda: asked(theirs)),
            "ours, DuckDB": clocked(lambda: asked(ours)),
        },
        rounds,
    )
    size = size_of(segments)
    for name, against in (("ours", "arrow"), ("from scratch", "arrow"), ("ours, DuckDB", "arrow, DuckDB")):
        report.show_rounds(
            f"query/{size}/{name}", found[name], "seconds", "s", against=(against, found[against]), as_speed=True
        )
        report.show_rounds(
            f"query/{size}/{name}, CPU",
            found[name],
            "cpu_seconds",
            "s",
            against=(against, found[against]),
            as_speed=True,
        )


def size_of(segments: int) -> str:
    return f"{segments * BUNDLES_PER_SEGMENT * ROWS * 16 / 2**30:.2f}GiB"


def selections(report: Report, store: Store, segments: int, bundles: int, rounds: int) -> None:
    fill(store, "small", segments, bundles)
    wanted = store.segments("small")[0][-max(1, segments // 100) :]
    since = f"WHERE _quiver_segment >= {wanted[0].segment_seq}"
    for name, narrowed in (
        ("SQL", lambda: counted(store, since)),
        ("dataset", lambda: scanned(store.dataset("small", start=wanted[0].first_ingestion_ts_nanos))),
    ):
        found = run_interleaved({"all": clocked(lambda: counted(store)), "recent": clocked(narrowed)}, rounds)
        report.show_rounds(
            f"query/{segments}segments/recent/{name}",
            found["recent"],
            "seconds",
            "s",
            against=("all", found["all"]),
            as_speed=True,
        )


def schemas(report: Report, store: Store, segments: int, rounds: int) -> None:
    """How soon is the one schema of many small segments known, each of which has one of three?"""
    store.create_topic("drifting")
    for number in range(segments):
        store.push(pa.record_batch({"a": [number], f"c{number % 3}": [1.0]}), topic="drifting")
        store.flush("drifting")
    found = run_interleaved({"schema": clocked(lambda: store.schema("drifting"))}, rounds)
    report.show_rounds(f"query/schema of {segments} segments", found["schema"], "seconds", "s")


def command(report: Report, name: str, data_dir: Path, topic: str, rounds: int) -> None:
    """How long does a statement take from the command line? The first call of each round compiles what is not compiled yet."""
    line = [sys.executable, "-m", "quiver_actors.cli.main", "query", "--data-dir", str(data_dir)]
    statement = f'SELECT count(*) FROM "{topic}"'
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def ask() -> None:
        subprocess.run([*line, statement], check=True, stdout=subprocess.DEVNULL, env=env)

    ask()
    found = run_interleaved({"command": clocked(ask)}, rounds)
    report.show_rounds(f"query/command/{name}", found["command"], "seconds", "s")


def commands(report: Report, base: Path, segments: int, rounds: int) -> None:
    with quiver_actors.open(base / "empty"):
        pass
    command(report, "empty", base / "empty", "default", rounds)
    if not (base / "rows").exists():
        with quiver_actors.open(base / "rows", settings=SETTINGS) as store:
            fill(store, "rows", segments, BUNDLES_PER_SEGMENT)
    command(report, size_of(segments), base / "rows", "rows", rounds)


def main() -> None:
    """Measure and print."""
    options_parser = parser(__doc__)
    options_parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    options = read_options(options_parser)
    segments = SEGMENTS_QUICK if options.quick else SEGMENTS
    more = (MORE_SEGMENTS_QUICK, BUNDLES_PER_MORE_QUICK) if options.quick else (MORE_SEGMENTS, BUNDLES_PER_MORE)
    with begun(options) as (report, directory):
        base = Path(directory)
        if "scans" in options.only:
            with quiver_actors.open(base / "rows", settings=SETTINGS) as store:
                scans(report, store, base, segments, options.rounds)
        if "command" in options.only:
            commands(report, base, segments, options.rounds)
        with quiver_actors.open(base / "more", settings=SETTINGS) as store:
            if "selections" in options.only:
                selections(report, store, *more, options.rounds)
            if "schemas" in options.only:
                schemas(report, store, SCHEMA_SEGMENTS_QUICK if options.quick else SCHEMA_SEGMENTS, options.rounds)


if __name__ == "__main__":
    main()
