"""What does a push into the embedded store cost above the disk, and how does it compare with SQLite?

Rounds are interleaved: in each, every store gets the same bundles of 1 KiB, one after the other (`back to back`, and at 200 a second), and
from 64 threads. `disk` is a `pwrite` and an `fdatasync` of as many bytes into a file whose blocks are reserved; SQLite commits a row of
the same bytes with `synchronous=FULL` in WAL mode, and 64 threads share one connection of which each commits.

    python -m benchmarks.embedded --rounds 5 --pushes 400
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

import quiver_actors

BUNDLE_BYTES = 1024
PACE_SECONDS = 1 / 200
THREADS = 64

Push = Callable[[], object]


@contextlib.contextmanager
def disk(directory: Path) -> Iterator[Push]:
    """Write and sync the bytes alone."""
    size_bytes, at = 64 << 20, [0]
    descriptor = os.open(directory / "file", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size_bytes)
    os.fsync(descriptor)
    content, lock = os.urandom(BUNDLE_BYTES), threading.Lock()

    def push() -> None:
        with lock:
            os.pwrite(descriptor, content, at[0])
            at[0] = (at[0] + BUNDLE_BYTES) % size_bytes
            os.fdatasync(descriptor)

    yield push
    os.close(descriptor)


@contextlib.contextmanager
def quiver(directory: Path) -> Iterator[Push]:
    """Push a bundle of one batch."""
    batch = pa.record_batch({"value": pa.array([os.urandom(BUNDLE_BYTES)], pa.binary())})
    with quiver_actors.open(directory / "store") as store:
        yield lambda: store.push(batch)


@contextlib.contextmanager
def sqlite(directory: Path) -> Iterator[Push]:
    """Insert and commit a row."""
    connection = sqlite3.connect(directory / "database", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE bundles (number INTEGER PRIMARY KEY, value BLOB)")
    content, lock = os.urandom(BUNDLE_BYTES), threading.Lock()

    def push() -> None:
        with lock:
            connection.execute("INSERT INTO bundles (value) VALUES (?)", (content,))

    yield push
    connection.close()


STORES = {"disk": disk, "quiver": quiver, "sqlite": sqlite}


def one_by_one(push: Push, count: int, pace_seconds: float) -> list[float]:
    """Return the milliseconds of each push."""
    took = []
    for _ in range(count):
        started = time.perf_counter()
        push()
        took.append(1e3 * (time.perf_counter() - started))
        time.sleep(max(0.0, pace_seconds - (time.perf_counter() - started)) if pace_seconds else 0)
    return took


def all_at_once(push: Push, count: int) -> float:
    """Return the pushes a second of all threads together."""

    def work() -> None:
        for _ in range(count // THREADS or 1):
            push()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS * (count // THREADS or 1) / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pushes", type=int, default=400, help="of each store, in each form and round")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    arguments = parser.parse_args()
    rounds, pushes = (1, 64) if arguments.quick else (arguments.rounds, arguments.pushes)
    took: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as held:
        base = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="quiver-embedded-", dir=".")))
        opened: dict[str, Push] = {}
        for name, open_store in STORES.items():
            (base / name).mkdir()
            opened[name] = held.enter_context(open_store(base / name))
            opened[name]()
        for _ in range(rounds):
            for name, push in opened.items():
                took.setdefault((name, "back to back"), []).extend(one_by_one(push, pushes, 0.0))
            for name, push in opened.items():
                took.setdefault((name, "200 a second"), []).extend(one_by_one(push, pushes // 2, PACE_SECONDS))
            for name, push in opened.items():
                took.setdefault((name, f"{THREADS} threads"), []).append(all_at_once(push, 4 * pushes))
    report(took)


def report(took: dict[tuple[str, str], list[float]]) -> None:
    """Print medians, and what is above the disk."""
    print(f"{'':14}{'p50 ms':>10}{'p99 ms':>10}{'above disk':>12}")
    for form in ("back to back", "200 a second"):
        floor = statistics.median(took["disk", form])
        for name in STORES:
            values = sorted(took[name, form])
            p50, p99 = statistics.median(values), values[int(0.99 * (len(values) - 1))]
            print(f"{name:8}{form:14}{p50:10.3f}{p99:10.3f}{p50 - floor:12.3f}")
    for name in STORES:
        print(f"{name:8}{THREADS} threads: {statistics.median(took[name, f'{THREADS} threads']):10,.0f} a second")


if __name__ == "__main__":
    main()
