"""Do pushes and live delivery wait for a cold disk that is slow and fails?

Method: a node whose topic keeps one segment on the hot disk, moves all others to a cold disk, and has moved ten before. Single pushes of
4 KiB, 200 a second, with one live consumer in another process; a third process reads cold segments all the time. The cold disk of `slow`
takes 5 s for each call, of which 30 % fail (on the disk seam, benchmarks/slow_cold_node.py); that of `quick` is the same disk as the hot
one. Rounds in turn.

    same_twice   the quick disk once more: what of a ratio is noise of the machine
    push, get    from the call of `push` until the receipt, until the consumer has the batch: median and 99th percentile
    moved        segments that have come to the cold disk meanwhile; a subscriber that reads nothing keeps them all

Aim: the 99th percentiles of both change by less than 5 %.

    python -m benchmarks.slow_cold [--quick] [--json] [--rounds N] [--dir D] [--seconds 60] [--latency 5] [--errors 0.3]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import quiver_actors
from benchmarks.harness import (
    Figure,
    Measurements,
    Report,
    begun,
    parser,
    percentile,
    read_options,
    run_interleaved,
    running_node,
)
from benchmarks.ingest import make_batches
from benchmarks.live_consumers import WARM_CALLS, consumers, gets, push_timed
from quiver_actors.errors import QuiverError

PUSH_BYTES = 4 << 10
PUSHES_PER_SECOND = 200
COLD_SEGMENTS = 10
CONFIG = """
[segment]
target_size = "256KiB"
max_open_duration = "1h"
[tier]
cold_dir = "{cold}"
keep_hot = 1
"""


def read_cold(run_dir: str) -> None:
    """Read what is stored, again and again; most of it is cold."""
    with quiver_actors.connect(run_dir, timeout=5) as client:
        while True:
            with contextlib.suppress(QuiverError):
                for bundle in client.read("default", 0):
                    assert bundle.batch.num_rows
            time.sleep(0.1)


@contextlib.contextmanager
def cold_reader(run_dir: str) -> Iterator[None]:
    """A process that does so while the context lasts."""
    process = multiprocessing.get_context("spawn").Process(target=read_cold, args=(run_dir,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def fill(directory: str, config: str, data_dir: str, cold: str) -> None:
    """Make a data directory some segments of which are cold."""
    batches = make_batches(PUSH_BYTES)
    deadline = time.monotonic() + 120
    with running_node(directory, config, data_dir=data_dir) as run_dir, quiver_actors.connect(run_dir) as client:
        client.subscribe(
            "nobody", start="earliest"
        ).close()  # keeps what the consumer has acknowledged, so that it moves
        while moved_to(cold) < COLD_SEGMENTS:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{moved_to(cold)} segments were moved in 120 s: expected {COLD_SEGMENTS}")
            client.push_many(batches[number % len(batches)] for number in range(64))
            time.sleep(0.1)


def moved_to(cold: str) -> int:
    """How many segments lie on the cold disk."""
    return len(list(Path(cold).glob("default/core_0/*/*.qseg")))


def measure(directory: str, program: tuple[str, ...], total: int) -> Measurements:
    """Push so often, at a fixed rate."""
    batches = make_batches(PUSH_BYTES)
    with contextlib.ExitStack() as held:
        cold, data_dir = (held.enter_context(tempfile.TemporaryDirectory(dir=directory)) for _ in range(2))
        config = CONFIG.format(cold=cold)
        fill(directory, config, data_dir, cold)
        run_dir = held.enter_context(running_node(directory, config, program=program, data_dir=data_dir))
        client = held.enter_context(quiver_actors.connect(run_dir))
        consumer = held.enter_context(consumers(gets, [(run_dir, WARM_CALLS + total)]))
        held.enter_context(cold_reader(run_dir))
        before = moved_to(cold)
        consumer.begin()
        pushes = push_timed(lambda number: client.push(batches[number % len(batches)]), total, PUSHES_PER_SECOND)
        ((got, _),) = consumer.results()
        took, moved = pushes.took(got), moved_to(cold) - before
        return pushes.summary() | {"get_p50": percentile(took, 0.5), "get_p99": percentile(took, 0.99), "moved": moved}


def show(report: Report, directory: str, options: argparse.Namespace) -> None:
    """Run the rounds and print the figures."""
    total = int(options.seconds * PUSHES_PER_SECOND)
    slow = "benchmarks.slow_cold_node", str(options.latency), str(options.errors)
    quick = "benchmarks.slow_cold_node", "0", "0"
    candidates = {"slow": slow, "quick": quick, "same_twice": quick}
    found = run_interleaved(
        {name: partial(measure, directory, program, total) for name, program in candidates.items()}, options.rounds
    )
    for figure in ("push_p50", "push_p99", "get_p50", "get_p99"):
        name = figure.replace("_", "/")
        report.show_rounds(f"slow_cold/{name}", found["slow"], figure, "us", "synced", ("quick", found["quick"]))
        for candidate in ("slow", "same_twice"):
            show_spread(report, f"slow_cold/{name}/{candidate}", found[candidate], found["quick"], figure)
    for name, rounds in found.items():
        report.show_rounds(f"slow_cold/moved/{name}", rounds, "moved", "segments")


def show_spread(report: Report, case: str, ours: list[Measurements], quick: list[Measurements], key: str) -> None:
    """Show the ratio to the quick disk with its least and most in a round: by how much rounds differ that should be the same."""
    ratios = [one[key] / other[key] for one, other in zip(ours, quick, strict=True)]
    value, low, high = statistics.median(ratios), min(ratios), max(ratios)
    report.show(Figure(case, value, "of quick", "", None, "synced", len(ratios), low, high))


def main() -> None:
    """Print the figures."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=0, help="of each round (default 60, with --quick 3)")
    options.add_argument("--latency", type=float, default=5.0, help="seconds of each call on the cold disk (default 5)")
    options.add_argument("--errors", type=float, default=0.3, help="share of these calls that fail (default 0.3)")
    found = read_options(options, rounds=3)
    found.seconds = found.seconds or (3 if found.quick else 60)
    with begun(found) as (report, directory):
        show(report, directory, found)


if __name__ == "__main__":
    main()
