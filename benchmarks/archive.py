"""What do the archive's uploads and reads reach of what the object store gives, and what do they cost the pushes beside them?

Method: an object store on this host (`--store`: `moto`, an S3 server in Python; `versitygw`; or `directory`). Each comparison runs in turn.

    upload     segments of 32 MiB as the archiver sends them (proven, with checksums, looked at afterwards, recorded), against plain puts of
               the same files
    read       all bundles of these segments by `open_archive`, against obstore's `get_ranges` of the same ranges: nothing is proven or
               decoded there
    requests   calls to the store for each GB of such segments, and for each 1,000 pushes that wait for the archive one after the other
    ingest     bundles of 64 KiB into a node that archives into its archiver's memory, against the same node without an archive; against
               itself (`same_twice`: what the machine's noise is); and the CPU time of its workers and of its archiver, which is at work
               before the clock starts
    push       single pushes into a topic with `durability = "archived"`, whose segments are cut each 250 ms

Aims: upload and read 0.8, ingest 0.95.

    python -m benchmarks.archive [--quick] [--json] [--dir D] [--store moto]
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Figure,
    Measurements,
    Report,
    begun,
    cpu_seconds,
    parser,
    percentile,
    push_patiently,
    read_options,
    run_interleaved,
    running_node,
    workers_of,
)
from benchmarks.ingest import make_batches
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import Owner
from quiver_actors.archive.manifest_store import Addition, ManifestWriter
from quiver_actors.archive.uploads import Throttle, upload
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.store.objects.object_store import PART_BYTES, ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.support.faulty_objects import FaultyStore
from tests.support.object_servers import serving

NODE, GB = "bench", 1e9
SEGMENT_BYTES = 32 << 20
READERS = 8
"""A read of the archive fetches so many objects at a time."""
BATCH_SEGMENTS = 16
CONFIG = 'node = "bench"\n[retention]\nmin_free = "16MiB"\n'
ARCHIVE = '[archive]\nenabled = true\nurl = "{url}"\n'
Files = list[tuple[SegmentInfo, bytes]]


def make_segments(directory: str, count: int) -> Files:
    """Return so many sealed segments of bundles of 64 KiB, as an archiver gets them."""
    batches = make_batches(64 << 10)
    with quiver_actors.open(directory, settings={"segment": {"max_open_duration": "1h"}}) as store:
        while sum(map(len, store.segments().values())) < count:
            store.push_many(batches[number % len(batches)] for number in range(SEGMENT_BYTES // (64 << 10) + 1))
        infos = next(iter(store.segments().values()))[:count]
        paths = sorted(Path(directory, "default/core_0/segments").iterdir())[:count]
        return [(info, path.read_bytes()) for info, path in zip(infos, paths, strict=True)]


def archived(store: ObjectStore, files: Files, round_number: int) -> tuple[str, float]:
    """Archive files as the archiver does. Returns the node's name and how many seconds it took."""
    node = f"{NODE}-{round_number}"
    owner = Owner(epoch=1, directory="d", start="s", since_unix_ns=time.time_ns())
    writer = ManifestWriter.own(store, node, owner, None)
    stream, throttle = StreamKey("default", "0" * 32, 0), Throttle(0, time.sleep)
    started = time.perf_counter()
    for first in range(0, len(files), BATCH_SEGMENTS):
        batch = files[first : first + BATCH_SEGMENTS]
        writer.check_owner()
        done = [upload(store, node, stream, info, memoryview(content), throttle) for info, content in batch]
        writer.commit({stream: Addition(done, [], done[-1].segment_seq, {})})
    return node, time.perf_counter() - started


def plain_puts(store: ObjectStore, files: Files, round_number: int) -> float:
    """Put the same files in the same pieces. Returns how many seconds it took."""
    started = time.perf_counter()
    for info, content in files:
        view = memoryview(content)
        pieces = [view[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
        store.put(f"plain/{round_number}/{info.segment_seq}", pieces, len(content))
    return time.perf_counter() - started


def measure_uploads(report: Report, url: str, files: Files, rounds: int) -> str:
    """Show the figures of uploads. Returns the name of a node whose archive has the files."""
    counting, size_bytes, nodes = FaultyStore(open_store(url)), sum(len(content) for _, content in files), [""]

    def ours() -> Measurements:
        before = len(counting.calls)
        nodes[0], seconds = archived(counting, files, len(counting.calls))
        return {"rate": size_bytes / seconds / 1e6, "calls": (len(counting.calls) - before) / (size_bytes / GB)}

    def plain() -> Measurements:
        return {"rate": size_bytes / plain_puts(counting.inner, files, len(counting.calls)) / 1e6}

    found = run_interleaved({"archive": ours, "puts": plain}, rounds)
    report.show_rounds("archive/upload", found["archive"], "rate", "MB/s", "synced", ("puts", found["puts"]))
    report.show_rounds("archive/requests/32MiB", found["archive"], "calls", "a GB")
    counting.close()
    return nodes[0]


def measure_reads(report: Report, url: str, node: str, directory: str, rounds: int) -> None:
    """Show the figures of ranged reads. The ranges are those that a first read asks for. Connections are there before the clock starts."""
    with counted_reads(url) as asked, quiver_actors.open_archive(url, node=node, cache_dir=directory) as archive:
        size_bytes = sum(bundle[0].nbytes for bundle in archive.read("default", 0))
    store = open_store(url)

    def ours() -> Measurements:
        with quiver_actors.open_archive(url, node=node, cache_dir=directory) as archive, timed(size_bytes) as found:
            for bundle in archive.read("default", 0):
                assert bundle[0].num_rows
        return found

    def plain(at_once: int) -> Measurements:
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(store.head, asked))
            with timed(size_bytes) as found:
                for read in threads.map(store.get_ranges, asked.keys(), asked.values()):
                    assert read
        return found

    candidates = {"archive": ours, "get_ranges": lambda: plain(1), f"{READERS} get_ranges": lambda: plain(READERS)}
    found = run_interleaved(candidates, rounds)
    for name in ("get_ranges", f"{READERS} get_ranges"):
        report.show_rounds("archive/read", found["archive"], "rate", "MB/s", "", (name, found[name]))
        report.show_rounds("archive/read/cpu", found["archive"], "cpu", "s/GB", "", (name, found[name]))
    store.close()


@contextmanager
def timed(size_bytes: int) -> Iterator[Measurements]:
    """The rate of so many bytes, and the CPU time of this process for each GB of them, when the context has ended."""
    found: Measurements = {}
    started, started_cpu = time.perf_counter(), time.process_time()
    yield found
    found["rate"] = size_bytes / (time.perf_counter() - started) / 1e6
    found["cpu"] = (time.process_time() - started_cpu) / (size_bytes / GB)


@contextmanager
def counted_reads(url: str) -> Iterator[dict[str, list[tuple[int, int]]]]:
    """The ranges that are read of each object while the context lasts."""
    asked: dict[str, list[tuple[int, int]]] = {}
    kind = type(open_store(url))
    plain = kind.read

    def noted(self: ObjectStore, key: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        asked.setdefault(key, []).append((start, end))
        return plain(self, key, start, end)

    kind.read = noted  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        kind.read = plain  # type: ignore[method-assign]


def measure_ingest(report: Report, directory: str, megabytes: int, rounds: int) -> None:
    """Show what an archiver takes of the pushes beside it. It has started and archived a segment before the clock starts."""
    batches = make_batches(64 << 10)
    group = [batches[number % len(batches)] for number in range(64)]

    def ingest(config: str, *, is_archived: bool) -> Measurements:
        with running_node(directory, config) as run_dir, quiver_actors.connect(run_dir) as client:
            push_patiently(client, group)
            if is_archived:
                client.flush(until="archived", timeout=120)
            others, archivers = node_processes(run_dir)
            before, archiver_before = cpu_seconds(*others), cpu_seconds(*archivers)
            started = time.perf_counter()
            for _ in range(megabytes // 4):
                push_patiently(client, group)
            took, node = time.perf_counter() - started, cpu_seconds(*others) - before
            if is_archived:
                client.flush(until="archived", timeout=600)
            archiver = cpu_seconds(*archivers) - archiver_before
        return {"rate": megabytes / took, "node": node / megabytes * 1e3, "archiver": archiver / megabytes * 1e3}

    with_archive = CONFIG + ARCHIVE.format(url="memory://bench")
    candidates = {
        "archived": lambda: ingest(with_archive, is_archived=True),
        "alone": lambda: ingest(CONFIG, is_archived=False),
        "alone again": lambda: ingest(CONFIG, is_archived=False),
    }
    found = run_interleaved(candidates, rounds)
    alone = "alone", found["alone"]
    report.show_rounds("archive/ingest", found["archived"], "rate", "MB/s", "synced", alone)
    report.show_rounds("archive/ingest/same_twice", found["alone again"], "rate", "MB/s", "synced", alone)
    report.show_rounds("archive/ingest/cpu/node", found["archived"], "node", "s/GB", "synced", alone)
    report.show_rounds("archive/ingest/cpu/archiver", found["archived"], "archiver", "s/GB", "synced")


def node_processes(run_dir: str) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The node's workers, and its archivers."""
    archivers = [each for each in workers_of(run_dir) if "quiver_actors.archive" in each.cmdline()]
    return [each for each in workers_of(run_dir) if each not in archivers], archivers


def measure_pushes(report: Report, directory: str, url: str, pushes: int) -> None:
    """Show how long a push takes that waits for the archive."""
    batch, took = pa.record_batch({"number": pa.array(range(100))}), []
    config = 'durability = "archived"\n' + CONFIG + ARCHIVE.format(url=f"{url}/pushes")
    with running_node(directory, config) as run_dir, quiver_actors.connect(run_dir, timeout=60) as client:
        client.push(batch, timeout=120)
        for _ in range(pushes):
            started = time.perf_counter()
            client.push(batch, timeout=120)
            took.append(1000 * (time.perf_counter() - started))
    took.sort()
    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
        report.show(Figure(f"archive/push/{name}", percentile(took, fraction), "ms", "", None, "archived", 1))


def main() -> None:
    """Print the figures."""
    options = parser(__doc__)
    options.add_argument("--store", default="moto", help="moto, versitygw or directory (default: moto)")
    found = read_options(options, rounds=3)
    count, megabytes, pushes = (1, 128, 3) if found.quick else (6, 1024, 40)
    with begun(found) as (report, directory), serving(found.store, Path(directory)) as (url, environment):
        os.environ.update(environment)
        report.note(f"object store: {found.store}")
        files = make_segments(os.path.join(directory, "segments"), count)
        node = measure_uploads(report, url, files, found.rounds)
        measure_reads(report, url, node, directory, found.rounds)
        measure_ingest(report, directory, megabytes, found.rounds)
        measure_pushes(report, directory, url, pushes)


if __name__ == "__main__":
    main()
