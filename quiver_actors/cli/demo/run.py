"""Runs the demo from start to closing line. Exit code 0: nothing lost and every row as in the source."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from quiver_actors.cli.demo import tables
from quiver_actors.cli.demo.compare import Outcome, compare
from quiver_actors.cli.demo.job import EXECUTORS, push_travel, round_trip_planes, start_spark
from quiver_actors.cli.demo.node import TOPIC, Node
from quiver_actors.cli.demo.progress import ProgressBar
from quiver_actors.cli.demo.stream import StreamOutcome, run_stream
from quiver_actors.client import connect

DAYS_ALL = 366
KILL_AT = 0.4
KILLED_CORE = 0
_ARRIVAL_SECONDS = 60.0


class Subscriber:
    """A subscriber process; `figures` is what it said last."""

    def __init__(self, workspace: Path, run_dir: Path, kind: str, *arguments: str) -> None:
        self.kind = kind
        self.figures = {"deliveries": 0, "bundles": 0, "rows": 0}
        with (workspace / f"{kind}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quiver_actors.cli.demo.subscriber", kind, str(run_dir), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def check_alive(self) -> None:
        """Raise RuntimeError, with the name of its log, if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(
                f"subscriber {self.kind} ended with exit code {self._process.returncode}: see {self.kind}.log"
            )

    def finish(self) -> None:
        """Let it take what is left, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(timeout=_ARRIVAL_SECONDS) != 0:
            raise RuntimeError(f"subscriber {self.kind} failed: see {self.kind}.log")
        self._reading.join()

    def kill(self) -> None:
        """End the process with SIGKILL and wait for it."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.figures = json.loads(line)


def main() -> int:
    """Run the demo in a new directory; exit code 0 if nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m quiver_actors.demo", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS_ALL, help="only the first days of 2013")
    parser.add_argument("--keep", action="store_true", help="keep the output directory")
    arguments = parser.parse_args()
    workspace = Path(tempfile.mkdtemp(prefix="quiver-demo-"))
    started = time.monotonic()
    try:
        outcome, problems = run(workspace, arguments.days)
    except BaseException:
        print(f"the demo failed; logs and output are in {workspace}", file=sys.stderr)
        raise
    for problem in problems:
        print(problem, file=sys.stderr)
    good = outcome.is_good and not problems
    if good and not arguments.keep:
        shutil.rmtree(workspace)
    else:
        print(f"logs and output are in {workspace}", file=sys.stderr)
    print(f"took {time.monotonic() - started:.0f} s")
    print(outcome)
    return 0 if good else 1


def run(workspace: Path, days: int) -> tuple[Outcome, list[str]]:
    """The whole story, below `workspace`: what came out, and what else went wrong."""
    files = tables.unpack_tables(workspace)
    source = {
        "flights": tables.first_days(tables.read_table(files["flights"], tables.FLIGHTS), days),
        "weather": tables.first_days(tables.read_table(files["weather"], tables.WEATHER), days),
    }
    output = workspace / "parquet"
    output.mkdir()
    with Node(workspace) as node, ThreadPoolExecutor(1) as job_thread:
        print(node.wait_until_ready())
        subscribers = [
            Subscriber(workspace, node.run_dir, "parquet", str(output)),
            Subscriber(workspace, node.run_dir, "count"),
        ]
        try:
            spark = start_spark(workspace, node.run_dir)
            print(f"Spark {spark.version} reads {_describe(source)} and pushes them by {tables.HOURS_PER_BUNDLE} hours")
            job = job_thread.submit(push_travel, spark, files, days)
            receipts = follow(node, subscribers, job, tables.count_blocks(source.values()))
            rows, equal = round_trip_planes(spark, files)
            print(f'planes written and read back with format("quiver"): {rows} rows, equal={str(equal).lower()}')
            for subscriber in subscribers:
                subscriber.finish()
            spark.stop()
            stream = stream_half(node, workspace, source["flights"])
        finally:
            for subscriber in subscribers:
                subscriber.kill()
        print(node.status_text())
        if node.stop() != 0:
            raise RuntimeError("the node did not stop cleanly: see node.log")
    outcome = compare(receipts, output, source)
    problems = disagreements(subscribers, outcome, equal)
    print(stream)
    return outcome, problems if stream.is_good else [*problems, "the stream lost, doubled or changed rows"]


def stream_half(node: Node, workspace: Path, flights: pa.Table) -> StreamOutcome:
    """A session with executors of their own, so that one can be killed."""
    spark = start_spark(workspace, node.run_dir, EXECUTORS)
    try:
        print(f"Spark streams {flights.num_rows} flights into the node and out of it again, into Parquet")
        return run_stream(spark, node, workspace, flights)
    finally:
        spark.stop()


def follow(node: Node, subscribers: list[Subscriber], job: Future[pa.Table], bundles: int) -> pa.Table:
    """Show the progress of the Parquet writer, kill a worker on the way, and wait until everything has arrived at both.

    Returns:
        The job's receipts.
    """
    bar = ProgressBar("bundles written to Parquet", bundles)
    killed = False
    deadline = float("inf")
    while True:
        arrived = min(subscriber.figures["bundles"] for subscriber in subscribers)
        bar.update(subscribers[0].figures["bundles"])
        if not killed and arrived >= KILL_AT * bundles:
            killed = True
            kill_one(node, bar, job)
        if job.done() and deadline == float("inf"):
            deadline = time.monotonic() + _ARRIVAL_SECONDS
            seal(node)
        everything = job.done() and arrived >= job.result().num_rows and node.lag(TOPIC) == 0
        if everything or time.monotonic() > deadline:
            bar.close()
            return job.result()
        for subscriber in subscribers:
            subscriber.check_alive()
        time.sleep(0.05)


def kill_one(node: Node, bar: ProgressBar, job: Future[pa.Table]) -> None:
    """Kill a worker while Spark pushes, wait for the next one, and say how long that took."""
    pushing = "while Spark pushes" if job.running() else "after Spark has pushed all"
    pid = node.kill_worker(KILLED_CORE)
    bar.say(f"  SIGKILL to worker {KILLED_CORE} (pid {pid}) {pushing}")
    started = time.monotonic()
    pid = node.wait_for_another_worker(KILLED_CORE, pid)
    bar.say(f"  worker {KILLED_CORE} is back (pid {pid}) after {time.monotonic() - started:.2f} s")
    bar.say(node.status_text())


def seal(node: Node) -> None:
    """Seal what is open, so that it is delivered at once."""
    with connect(str(node.run_dir)) as client:
        client.flush(TOPIC)


def disagreements(subscribers: list[Subscriber], outcome: Outcome, planes_equal: bool) -> list[str]:
    """Print what each subscriber saw; what else went wrong than the closing line says."""
    for subscriber in subscribers:
        figures = subscriber.figures
        print(f"{subscriber.kind}: {figures['bundles']} bundles, {figures['rows']} rows")
    print(f"duplicates: {outcome.redelivered} delivered again, {outcome.pushed_again} pushed again")
    found = []
    if len({(subscriber.figures["bundles"], subscriber.figures["rows"]) for subscriber in subscribers}) > 1:
        found.append("the subscribers saw different bundles")
    if not planes_equal:
        found.append('format("quiver") returned other planes than were written')
    return found


def _describe(source: dict[str, pa.Table]) -> str:
    return " and ".join(f"{table.num_rows} {name} rows" for name, table in source.items())
