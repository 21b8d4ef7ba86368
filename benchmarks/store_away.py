"""Do pushes notice that the object store of their node's archive is away?

Method: a node with one topic that archives into an S3 server on this host (`--store`: `moto`, in Python, or `versitygw`). Single pushes of
1 KiB, one after the other: moto keeps everything in its memory, 3 GB for ten minutes. For so many seconds the store is there, then its
process is stopped for as long (requests are taken and not answered), and so on for each round. At the end pushing stops, and the archiver
catches up.

    push      pushes a second while the store is away, against those while it is there; and 99th percentiles of a push
    lag       segments, bytes and seconds that `quiver status` shows the archiver to be behind before the store comes back, at most
    behind    bundles that the archive did not have when the store came back
    catch_up  seconds from then until the archive has every bundle that was pushed

Aim: the rate while the store is away is 0.95 of that while it is there. The long form is `--minutes 10`: a round takes twice that, and then
the archiver catches up.

    python -m benchmarks.store_away [--quick] [--json] [--rounds N] [--dir D] [--store moto] [--seconds 60 | --minutes M]
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import quiver_actors
from benchmarks.harness import Figure, Measurements, Report, begun, parser, percentile, read_options, running_node
from benchmarks.ingest import make_batches
from quiver_actors.base.archive_status import ArchiveStatus, read_archive_status
from quiver_actors.client import Client
from tests.support.object_servers import SERVERS, Server

PUSH_BYTES = 1 << 10
CATCH_UP_SECONDS = 600
CONFIG = """
node = "bench"
[segment]
target_size = "4MiB"
[retention]
min_free = "16MiB"
[archive]
enabled = true
url = "{url}"
max_delay = "1s"
request_timeout = "5s"
retry_interval = "2s"
"""


@dataclass
class Lag:
    """The most that the archiver was shown to be behind."""

    segments: int = 0
    size_bytes: int = 0
    seconds: float = 0
    states: set[str] = field(default_factory=set)

    def look(self, run_dir: str) -> None:
        """Compare with what is shown now."""
        status = read_archive_status(run_dir)
        if status is not None:
            self.segments = max(self.segments, status.lag_segments)
            self.size_bytes = max(self.size_bytes, status.lag_bytes)
            self.seconds = max(self.seconds, age_seconds(status))
            self.states.add(status.state)


def age_seconds(status: ArchiveStatus) -> float:
    """How old the oldest bundle is that is not archived."""
    oldest_unix_ns = min((each.oldest_unix_ns for each in status.streams if each.oldest_unix_ns), default=0)
    return (time.time_ns() - oldest_unix_ns) / 1e9 if oldest_unix_ns else 0.0


class Pusher:
    """Pushes one bundle after the other, and counts them."""

    def __init__(self, client: Client) -> None:
        self.count = 0
        self._client = client
        self._batches = make_batches(PUSH_BYTES)

    def run(self, seconds: float) -> Measurements:
        """Push for so long."""
        took, started = list[float](), time.perf_counter()
        before = started
        while before - started < seconds:
            self._client.push(self._batches[self.count % len(self._batches)], timeout=60)
            self.count += 1
            after = time.perf_counter()
            took.append(1e6 * (after - before))
            before = after
        took.sort()
        return {"rate": len(took) / (before - started), "p99": percentile(took, 0.99)}


def measure(report: Report, directory: str, server: Server, rounds: int, seconds: float) -> None:
    """Run the rounds and print the figures."""
    there, away, lag = list[Measurements](), list[Measurements](), Lag()
    url = f"{server.url}/away"
    with running_node(directory, CONFIG.format(url=url)) as run_dir, quiver_actors.connect(run_dir) as client:
        pusher = Pusher(client)
        pusher.run(min(5, seconds))
        client.flush(until="archived", timeout=120)
        for _ in range(rounds):
            there.append(pusher.run(seconds))
            server.pause()
            try:
                away.append(pusher.run(seconds))
                lag.look(run_dir)
            finally:
                server.resume()
        behind = pusher.count - archived_count(url)
        started = time.perf_counter()
        client.flush(until="archived", timeout=CATCH_UP_SECONDS)
        took = time.perf_counter() - started
        missing = pusher.count - archived_count(url)
    report.show_rounds("store_away/push", away, "rate", "pushes/s", "synced", ("there", there))
    report.show_rounds("store_away/push/p99", away, "p99", "us", "synced", ("there", there))
    for name, value, unit in (
        ("lag/segments", lag.segments, "segments"),
        ("lag/bytes", lag.size_bytes / 1e6, "MB"),
        ("lag/seconds", lag.seconds, "s"),
        ("behind", behind, "bundles"),
        ("catch_up", took, "s"),
        ("missing", missing, "bundles"),
    ):
        report.show(Figure(f"store_away/{name}", value, unit, "", None, "", rounds))


def archived_count(url: str) -> int:
    """How many bundles the archive has."""
    with quiver_actors.open_archive(url, node="bench") as archive:
        return sum(info.bundle_count for infos in archive.segments().values() for info in infos)


def main() -> None:
    """Print the figures."""
    options = parser(__doc__)
    options.add_argument("--store", default="moto", help="moto or versitygw (default: moto)")
    time_away = options.add_mutually_exclusive_group()
    time_away.add_argument(
        "--seconds", type=float, default=0, help="how long the store is away (default 60, with --quick 8)"
    )
    time_away.add_argument("--minutes", type=float, default=0, help="the same in minutes")
    found = read_options(options, rounds=1)
    seconds = found.seconds or 60 * found.minutes or (8 if found.quick else 60)
    with begun(found) as (report, directory):
        (place := Path(directory, "server")).mkdir()
        server = SERVERS[found.store](place)
        os.environ.update(server.environment)
        try:
            report.note(f"object store: {found.store}")
            measure(report, directory, server, found.rounds, seconds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
