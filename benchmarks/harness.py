"""What all benchmarks share: interleaved rounds, medians, one line a figure, a node to measure.

A candidate is a function that runs once and returns its measurements. Candidates of one comparison run in turn, in alternating
order, in the same process run, so that a drift of the machine hits all of them; figures are medians over the rounds, and a ratio
is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from quiver_actors.client import Client
from quiver_actors.client.slots import Bundle
from quiver_actors.errors import Throttled

Measurements = dict[str, float]
Candidate = Callable[[], Measurements]

_WARM_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of output. `ratio` is value / that of `against`; both empty where the figure stands alone."""

    case: str
    value: float
    unit: str
    against: str
    ratio: float | None
    durability: str
    rounds: int


class Report:
    """Prints figures as they come: JSON lines, or a table for people."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, figure: Figure) -> None:
        if self._as_json:
            print(json.dumps(asdict(figure)), flush=True)
            return
        ratio = "" if figure.ratio is None else f"{figure.ratio:8.2f} of {figure.against}"
        value = f"{figure.value:14,.0f}" if figure.value >= 100 else f"{figure.value:14,.2f}"
        print(f"{figure.case:44} {value} {figure.unit:12} {figure.durability:9} {ratio}", flush=True)

    def note(self, text: str) -> None:
        if not self._as_json:
            print(f"# {text}", flush=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    """`--quick`, `--json`, `--rounds N`, `--dir D`."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--quick", action="store_true", help="one short round: shows that it works, not how fast")
    found.add_argument("--json", action="store_true", help="one JSON object a line")
    found.add_argument("--rounds", type=int, default=0, help="rounds (default 5, with --quick 1)")
    found.add_argument(
        "--dir", default=None, help="directory for data, on a real disk (default: the temporary directory)"
    )
    return found


def arguments(description: str | None) -> argparse.Namespace:
    """The arguments of `parser` alone, read."""
    options = parser(description).parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    return options


def run_interleaved(candidates: Mapping[str, Candidate], rounds: int) -> dict[str, list[Measurements]]:
    """Run every candidate once a round, in alternating order."""
    results: dict[str, list[Measurements]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            warm_memory()
            results[name].append(candidates[name]())
    return results


def median(results: list[Measurements], key: str) -> float:
    return statistics.median(result[key] for result in results)


def median_ratio(ours: list[Measurements], limit: list[Measurements], key: str) -> float:
    """Median over rounds of ours / limit within the round."""
    return statistics.median(a[key] / b[key] for a, b in zip(ours, limit, strict=True))


def percentile(sorted_values: list[float], fraction: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * fraction))]


def warm_memory(size_bytes: int = _WARM_BYTES) -> None:
    """Touch memory and give it back: a guest that returns free pages to its host pays several times more for a cold one."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, size_bytes, flags=flags).close()


def machine_line(directory: str) -> str:
    """Cores, load, and what a lone fdatasync of 4 KiB costs there."""
    path = os.path.join(directory, "fdatasync.probe")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    took = []
    try:
        for number in range(200):
            os.pwrite(descriptor, bytes(4096), number * 4096)
            started = time.perf_counter()
            os.fdatasync(descriptor)
            took.append((time.perf_counter() - started) * 1e6)
    finally:
        os.close(descriptor)
        os.unlink(path)
    took.sort()
    cores = len(os.sched_getaffinity(0))
    p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
    return f"{cores} cores, load {os.getloadavg()[0]:.1f}, fdatasync p50 {p50:.0f} us, p99 {p99:.0f} us"


@contextlib.contextmanager
def scratch(options: argparse.Namespace) -> Iterator[str]:
    """A directory for this benchmark's data, removed at the end."""
    directory = tempfile.mkdtemp(prefix="quiver-bench-", dir=options.dir)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def running_node(directory: str, config: str = "", cores: int = 1, *, ready_seconds: float = 30) -> Iterator[str]:
    """A supervisor with its workers on fresh directories; yields the run directory. All data is removed at the end."""
    root = tempfile.mkdtemp(prefix="node-", dir=directory)
    config_path = Path(root, "quiver.toml")
    config_path.write_text(config)
    run_dir = os.path.join(root, "run")
    command = [sys.executable, "-m", "quiver_actors.cli.main", "up", "--config", str(config_path)]
    command += ["--data-dir", os.path.join(root, "data"), "--run-dir", run_dir, "--cores", str(cores)]
    with open(os.path.join(root, "log"), "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_ready(run_dir, process, ready_seconds)
        yield run_dir
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(root, ignore_errors=True)


def wait_ready(run_dir: str, process: subprocess.Popen[bytes], timeout_seconds: float = 30) -> None:
    """Return once the node's workers are ready."""
    status = [sys.executable, "-m", "quiver_actors.cli.main", "status", "--run-dir", run_dir]
    status += ["--wait", "ready", "--timeout", f"{timeout_seconds:.0f}s"]
    subprocess.run(status, check=True, stdout=subprocess.DEVNULL)
    if process.poll() is not None:
        raise RuntimeError(f"the node ended with exit code {process.returncode}")


def push_patiently(client: Client, bundles: Sequence[Bundle]) -> None:
    """Push them, again if the node asks for patience: what it had taken of them is then pushed twice."""
    while True:
        try:
            client.push_many(bundles)
        except Throttled:
            time.sleep(0.2)
        else:
            return
