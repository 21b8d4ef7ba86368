"""What all benchmarks share: options and how a run begins, interleaved rounds, medians, one line a figure, a node to measure.

A candidate is a function that runs once and returns its measurements. Candidates of one comparison run in turn, in alternating
order, in the same process run, so that a drift of the machine hits all of them; figures are medians over the rounds, and a ratio
is the median of the ratios within a round.

With `--json` every line is one object: a figure, or, at the beginning and at the end of a run, `{"machine": ...}` with the cores, the
load and what a lone fdatasync cost there, so that no figure stands without them. `benchmarks.report` makes the page from these lines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from quiver_actors.client import Client
from quiver_actors.client.node_view import NodeDirectory
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
    """Median of the rounds."""
    unit: str
    against: str
    ratio: float | None
    durability: str
    """What was true when the clock stopped: `synced`, `written`, `open-segment`, `page-cache`, `none`; empty where nothing is stored."""
    rounds: int
    low: float | None = None
    high: float | None = None
    """Least and most of the rounds."""


class Report:
    """Prints figures as they come: JSON lines, or a table for people."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, figure: Figure) -> None:
        if self._as_json:
            print(json.dumps(asdict(figure)), flush=True)
            return
        ratio = "" if figure.ratio is None else f"{figure.ratio:8.2f} of {figure.against}"
        spread = "" if figure.low is None or figure.rounds < 2 else f"[{_short(figure.low)} .. {_short(figure.high)}]"
        value = f"{_short(figure.value):>14}"
        print(f"{figure.case:44} {value} {figure.unit:12} {spread:24} {figure.durability:9} {ratio}", flush=True)

    def show_rounds(
        self,
        case: str,
        results: list[Measurements],
        key: str,
        unit: str,
        durability: str = "",
        against: tuple[str, list[Measurements]] | None = None,
        *,
        as_speed: bool = False,
    ) -> None:
        """One figure of what the rounds measured; `against` is another candidate's name and rounds. `as_speed`: of two times, so
        that 2 is twice as fast."""
        values = [result[key] for result in results]
        ratio = None
        if against is not None:
            ratio = median_ratio(against[1], results, key) if as_speed else median_ratio(results, against[1], key)
        name = against[0] if against else ""
        value = statistics.median(values)
        self.show(Figure(case, value, unit, name, ratio, durability, len(values), min(values), max(values)))

    def note(self, text: str) -> None:
        if not self._as_json:
            print(f"# {text}", flush=True)

    def skipped(self, what: str, why: str) -> None:
        """Something that this machine cannot measure, and what to do about it."""
        print(json.dumps({"skipped": what, "why": why}) if self._as_json else f"# {what} is skipped: {why}", flush=True)

    def machine(self, directory: str) -> None:
        """Cores, load, and what a lone fdatasync of 4 KiB costs there now."""
        found = machine(directory)
        if self._as_json:
            print(json.dumps({"machine": found}), flush=True)
        else:
            self.note(machine_line(found))


def _short(value: float | None) -> str:
    assert value is not None
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


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


def read_options(found: argparse.ArgumentParser, rounds: int = 5) -> argparse.Namespace:
    """What the command line says; `rounds` unless it says how many."""
    options = found.parse_args()
    options.rounds = options.rounds or (1 if options.quick else rounds)
    return options


def arguments(description: str | None) -> argparse.Namespace:
    """The arguments of `parser` alone, read."""
    return read_options(parser(description))


@contextlib.contextmanager
def begun(options: argparse.Namespace) -> Iterator[tuple[Report, str]]:
    """How every run begins and ends: a report and a directory on a real disk, the machine told before and after."""
    report = Report(options.json)
    with scratch(options) as directory:
        if filesystem(directory) in ("tmpfs", "ramfs", "overlay") and not options.quick:
            report.note(f"{directory} is on {filesystem(directory)}: choose a real disk with --dir")
        report.machine(directory)
        yield report, directory
        report.machine(directory)


def filesystem(directory: str) -> str:
    """Its type, of the longest mount point that holds the directory."""
    mounts = [
        part for part in psutil.disk_partitions(all=True) if os.path.realpath(directory).startswith(part.mountpoint)
    ]
    return str(max(mounts, key=lambda part: len(part.mountpoint)).fstype) if mounts else "unknown"


def run_interleaved(
    candidates: Mapping[str, Candidate], rounds: int, *, warm_bytes: int = _WARM_BYTES
) -> dict[str, list[Measurements]]:
    """Run every candidate once a round, in alternating order."""
    results: dict[str, list[Measurements]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            warm_memory(warm_bytes)
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


def machine(directory: str) -> dict[str, float | str]:
    """What figures depend on: cores, what others take of them (percent of all, while this process sleeps), the load, the cost of 200
    lone fdatasyncs of 4 KiB, versions, the time (UTC)."""
    busy_percent = psutil.cpu_percent(interval=0.3)
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
    return {
        "cores": len(os.sched_getaffinity(0)),
        "busy_percent": round(busy_percent),
        "load": round(os.getloadavg()[0], 2),
        "fdatasync_p50_us": round(percentile(took, 0.5)),
        "fdatasync_p99_us": round(percentile(took, 0.99)),
        "filesystem": filesystem(directory),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def machine_line(found: Mapping[str, float | str]) -> str:
    """Return the machine's facts as text for people."""
    return (
        f"{found['cores']} cores, {found['busy_percent']} % busy, load {found['load']}, {found['filesystem']}, "
        f"fdatasync p50 {found['fdatasync_p50_us']} us, p99 {found['fdatasync_p99_us']} us"
    )


@contextlib.contextmanager
def scratch(options: argparse.Namespace) -> Iterator[str]:
    """A directory for this benchmark's data, removed at the end."""
    directory = tempfile.mkdtemp(prefix="quiver-bench-", dir=options.dir)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def running_node(
    directory: str,
    config: str = "",
    cores: int = 1,
    *,
    ready_seconds: float = 30,
    data_dir: str = "",
    program: Sequence[str] = ("quiver_actors.cli.main", "up"),
) -> Iterator[str]:
    """A supervisor with its workers on fresh directories; yields the run directory. All data is removed at the end, except what was
    there before in a `data_dir`. `program`: another module that takes the options of `quiver up`."""
    root = tempfile.mkdtemp(prefix="node-", dir=directory)
    config_path = Path(root, "quiver.toml")
    config_path.write_text(config)
    run_dir = os.path.join(root, "run")
    command = [sys.executable, "-m", *program, "--config", str(config_path)]
    command += ["--data-dir", data_dir or os.path.join(root, "data"), "--run-dir", run_dir, "--cores", str(cores)]
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


def workers_of(run_dir: str) -> list[psutil.Process]:
    """The node's workers."""
    return list(psutil.Process(NodeDirectory(run_dir).view.pid).children())


def worker_of(run_dir: str) -> psutil.Process:
    """The only worker."""
    (worker,) = workers_of(run_dir)
    return worker


def cpu_seconds(*processes: psutil.Process) -> float:
    """User and system time of their threads so far, to the nanosecond where the kernel keeps it."""
    return sum(_cpu_seconds(process) for process in processes)


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        told = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
        return sum(int(line.split()[0]) for line in told) / 1e9
    except OSError:
        return float(sum(process.cpu_times()[:2]))


def push_patiently(client: Client, bundles: Sequence[Bundle]) -> None:
    """Push them, again if the node asks for patience: what it had taken of them is then pushed twice."""
    while True:
        try:
            client.push_many(bundles)
        except Throttled:
            time.sleep(0.2)
        else:
            return
