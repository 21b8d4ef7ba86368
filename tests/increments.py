"""Conditional increments of one object by many processes: `python -m tests.increments [--store directory] [--processes 16] [--count 1000]`.

Each process reads the object and replaces it with one more, by compare-and-swap, again where another one was faster. At the end the object
must hold the number of all increments. `--store`: `directory`, `memory` (threads of one process), or a server of
`tests.support.object_servers`. moto compares and puts in two steps, so it loses increments of several processes.
`tests/contract/test_object_store.py` runs short forms.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from quiver_actors.store.objects.object_store import Metadata, ObjectChanged
from quiver_actors.store.objects.opening import open_store
from tests.support.object_servers import KINDS, serving

KEY = "node/count"


def increment(store: Metadata, count: int) -> None:
    """Add so many, one by one."""
    for _ in range(count):
        while True:
            found = store.get(KEY)
            assert found is not None
            try:
                store.replace(KEY, b"%d" % (int(found.content) + 1), found.version)
                break
            except ObjectChanged:
                continue


def counted_in_threads(store: Metadata, threads: int, count: int) -> int:
    """Have so many threads add so many each; returns what is there then."""
    store.create(KEY, b"0")
    running = [threading.Thread(target=increment, args=(store, count)) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return number_in(store)


def counted_in_processes(store: Metadata, url: str, processes: int, count: int, timeout_seconds: float) -> int:
    """Have so many processes add so many each; returns what is there then."""
    store.create(KEY, b"0")
    command = [sys.executable, "-m", "tests.increments", "--url", url, "--count", str(count)]
    running = [subprocess.Popen(command, cwd=Path(__file__).parents[1]) for _ in range(processes)]
    codes = [each.wait(timeout_seconds) for each in running]
    assert codes == [0] * processes
    return number_in(store)


def number_in(store: Metadata) -> int:
    """What the object says."""
    found = store.get(KEY)
    assert found is not None
    return int(found.content)


def main() -> int:
    """Run the long form."""
    parser = argparse.ArgumentParser(prog="python -m tests.increments")
    parser.add_argument("--store", choices=KINDS, default="directory")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--count", type=int, default=1000, help="increments of each process")
    parser.add_argument("--url", help="add to the object of a store that is there, in this process alone")
    options = parser.parse_args()
    if options.url:
        increment(open_store(options.url), options.count)
        return 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, serving(options.store, Path(directory)) as (url, environment):
        os.environ.update(environment)
        store = open_store(url)
        if options.store == "memory":
            found = counted_in_threads(store, options.processes, options.count)
        else:
            found = counted_in_processes(store, url, options.processes, options.count, 3600)
    expected = options.processes * options.count
    print(f"{found:,} of {expected:,} increments counted on {options.store} in {time.monotonic() - started:.0f} s")
    return int(found != expected)


if __name__ == "__main__":
    sys.exit(main())
