"""How many Python functions does a lone push call, on both sides together?

A push that waits for its own durability finds the processor's caches cold, so what it costs goes with the number of its Python steps
(docs/performance.md). This counts them: calls of Python functions and resumptions of generators, by `sys.setprofile` in every thread, from
the call of `push` until all threads rest again. Calls of C functions do not count. Figures are the least of many pushes: the turns of a
worker that come with time alone (5 ms after a push, ten times a second) fall into others. So they do not depend on the machine or its load.

node       a worker in a thread of this process, with its sockets, arena and sync thread; a client in the main thread
embedded   `quiver_actors.open`

Each without a subscriber (`alone`), and with one attached that has a bundle delivered for each push (`live`). Three figures:

(none)     the producer and the worker, until all threads rest
receipt    the calls until the worker has sent its answer, and those of the producer
consumer   those of the subscriber's own thread for a bundle: `get` and `ack`, and what arrives meanwhile. The median

    python -m benchmarks.calls [--quick] [--json] [--rounds N] [--dir D] [--list]
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

import quiver_actors
from benchmarks.harness import Figure, Report, begun, parser, read_options
from quiver_actors.base.clock import SystemClock
from quiver_actors.base.config import NodeSettings, TopicSettings
from quiver_actors.base.metrics.figures import FIGURES_VERSION
from quiver_actors.base.protocol.lone import LONE_MARK
from quiver_actors.client.client import Client
from quiver_actors.client.node_view import NODE_FILE, NODE_VERSION, CoreEntry, NodeView
from quiver_actors.node.worker.connection import Connection
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.node.worker.entry import Worker
from quiver_actors.node.worker.figures import FigurePublisher
from quiver_actors.node.worker.journal import Journal
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.store.disk.posix import PosixDisk

PUSHES = 500
_REST_SECONDS = 60.0
_SEND_FRAME = Connection.send_frame.__code__
"""Sends the struct that answers a lone push, and other frames."""
_RESTING = ("poll", "eventfd_read", "get")
"""C functions in which threads wait for work."""

Push = Callable[[], object]
Calls = collections.Counter[CodeType]
"""How often each function was called."""


class PushCalls(NamedTuple):
    """The calls for one push."""

    calls: Calls
    """Calls of the producer and the worker, until all threads rested."""
    until_receipt: int
    """Calls of the producer, and of the worker until it had sent its answer."""


class CallCounter:
    """Counts calls by the code that is called, in all threads that start while it is set."""

    def __init__(self) -> None:
        self.calls: Calls = collections.Counter()
        self._own = self._elsewhere = 0
        """Number of calls in the thread that pushes, and in all others."""
        self._pushing = threading.get_ident()
        self._elsewhere_at_answer: int | None = None
        self._resting: dict[int, bool] = {}
        """Whether each thread other than the caller's waits for work."""
        self._ignored: set[int] = set()

    def watch(self) -> None:
        """Count in this thread from now on, and in threads that start from now on."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def end(self) -> None:
        """Count in this thread and in new threads no more."""
        threading.setprofile(None)
        sys.setprofile(None)

    def ignore_this_thread(self) -> None:
        """Do not count in this thread, nor wait for it."""
        sys.setprofile(None)
        self._resting.pop(threading.get_ident(), None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        thread = threading.get_ident()
        if event == "call":
            self.calls[frame.f_code] += 1
            if frame.f_code.co_filename == __file__:
                return
            if thread == self._pushing:
                self._own += 1
            else:
                self._elsewhere += 1
        elif event == "c_call" and argument.__name__ == "send" and frame.f_code is _SEND_FRAME:
            if frame.f_locals["frame"][4] == LONE_MARK:
                self._elsewhere_at_answer = self._elsewhere
        elif event == "c_call" and argument.__name__ in _RESTING:
            self._resting[thread] = True
        elif event in ("c_return", "c_exception") and argument.__name__ in _RESTING:
            self._resting[thread] = False

    def rest(self) -> None:
        """Wait until every thread but this one waits for work, and stays so for a moment."""
        own, until, calm = threading.get_ident(), time.monotonic() + _REST_SECONDS, 0
        while calm < 2:
            time.sleep(0.0001)
            before = self.calls.total()
            alive = {thread.ident for thread in threading.enumerate()}
            is_calm = all(resting for thread, resting in list(self._resting.items()) if thread in alive - {own})
            calm = calm + 1 if is_calm and before == self.calls.total() else 0
            if time.monotonic() > until:
                raise TimeoutError(f"threads do not come to rest: {self._resting}")

    def of(self, push: Push) -> PushCalls:
        """The calls of one push."""
        sys.setprofile(None)
        self.rest()
        self.calls.clear()
        self._own = self._elsewhere = 0
        self._pushing, self._elsewhere_at_answer = threading.get_ident(), None
        sys.setprofile(self._note)
        push()
        sys.setprofile(None)
        self.rest()
        counted = self.calls.copy()
        for code in [code for code in counted if code.co_filename == __file__]:
            del counted[code]
        elsewhere = self._elsewhere if self._elsewhere_at_answer is None else self._elsewhere_at_answer
        return PushCalls(counted, self._own + elsewhere)


def _settings() -> NodeSettings:
    topic = TopicSettings(name="default")
    return NodeSettings(topics={"default": topic}, arena_bytes=1 << 20)


@contextlib.contextmanager
def node(directory: Path) -> Iterator[Client]:
    """A client of a worker in a thread of this process."""
    for name in ("data", "run"):
        (directory / name).mkdir(mode=0o700)
    page = CountersPage.create(new_name(), 2, 64, FIGURES_VERSION)
    region = page.writer(1)
    region.begin(os.getpid(), time.time_ns())
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    data_dir, run_dir = str(directory / "data"), str(directory / "run")
    context = WorkerContext(
        core=0, cores=1, settings=_settings(), data_dir=data_dir, run_dir=run_dir, region=region, wakeup_fd=writing
    )
    journal, disk = Journal(0), PosixDisk(data_dir)
    worker = Worker(context, disk, SystemClock(), FigurePublisher(region, 0, SystemClock(), journal), journal)
    worker.open()
    thread = threading.Thread(target=worker.serve, name="worker")
    thread.start()
    view = NodeView(NODE_VERSION, os.getpid(), data_dir, time.time_ns(), (CoreEntry(0, "core_0.sock"),))
    (directory / "run" / NODE_FILE).write_bytes(msgspec.json.encode(view))
    try:
        with quiver_actors.connect(run_dir) as client:
            yield client
    finally:
        worker.loop.request_drain()
        thread.join()
        disk.close()
        os.close(reading)
        os.close(writing)
        page.unlink()
        page.close()


@contextlib.contextmanager
def embedded(directory: Path) -> Iterator[Client]:
    """A store in this process."""
    with quiver_actors.open(directory / "store") as store:
        yield store


SIDES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Client]]] = {"node": node, "embedded": embedded}


def _batch() -> pa.RecordBatch:
    rows = 24
    return pa.record_batch(
        {
            "number": pa.array(range(rows), pa.int64()),
            "value": pa.array([0.5 * row for row in range(rows)], pa.float64()),
            "flag": pa.array([row % 3 == 0 for row in range(rows)]),
            "word": pa.array([f"word-{row}" for row in range(rows)]),
        }
    )


def counts(side: str, directory: Path, *, is_live: bool, pushes: int = PUSHES) -> tuple[list[PushCalls], list[Calls]]:
    """The calls of each push, and those of the subscriber for each bundle.

    Args:
        is_live: with a subscriber attached that receives the bundles.
    """
    consumed: list[Calls] = []
    counter, batch = CallCounter(), _batch()
    counter.watch()
    try:
        with SIDES[side](directory) as client, contextlib.ExitStack() as held:
            client.push(batch)
            if is_live:
                held.enter_context(_consumer(client, counter, consumed))
            for _ in range(20):
                client.push(batch)
            return [counter.of(lambda: client.push(batch)) for _ in range(pushes)], consumed
    finally:
        counter.end()


@contextlib.contextmanager
def _consumer(client: Client, counter: CallCounter, consumed: list[Calls]) -> Iterator[None]:
    """Receive and acknowledge in a thread that is counted apart."""
    is_over, is_ready, calls = threading.Event(), threading.Event(), Calls()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename != __file__:
            calls[frame.f_code] += 1

    def consume() -> None:
        counter.ignore_this_thread()
        with client.subscribe("reader", start="latest") as subscription:
            is_ready.set()
            while not is_over.is_set():
                calls.clear()
                sys.setprofile(note)
                delivery = subscription.get(timeout=0.05)
                if delivery is not None:
                    delivery.ack()
                sys.setprofile(None)
                if delivery is not None:
                    consumed.append(calls.copy())

    thread = threading.Thread(target=consume, name="consumer")
    thread.start()
    is_ready.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def least_push(counted: list[PushCalls]) -> Calls:
    """The push with the fewest calls."""
    return least([push.calls for push in counted])


def least(counted: list[Calls]) -> Calls:
    """The fewest of these calls."""
    return min(counted, key=lambda calls: calls.total())


def median(counted: list[Calls]) -> Calls:
    """The calls in the middle of these: of some bundles the arrival was handled before, while the consumer did something else."""
    return sorted(counted, key=lambda calls: calls.total())[len(counted) // 2]


def listing(calls: Calls) -> list[str]:
    """One line a function: how often it was called, and where it stands."""
    named = [
        (count, f"{Path(code.co_filename).parent.name}/{Path(code.co_filename).name}:{code.co_firstlineno}", code)
        for code, count in calls.items()
    ]
    return [
        f"{count:4} {place:44} {code.co_qualname}" for count, place, code in sorted(named, key=lambda each: each[1])
    ]


def show(report: Report, name: str, count: int) -> None:
    """Show one figure."""
    report.show(Figure(f"calls/{name}", count, "calls", "", None, "synced", 1))


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--list", action="store_true", help="the functions that are called")
    options = read_options(found, rounds=1)
    with begun(options) as (report, base):
        for side in SIDES:
            for is_live in (False, True):
                directory = Path(tempfile.mkdtemp(prefix=f"calls-{side}-", dir=base))
                counted, consumed = counts(side, directory, is_live=is_live, pushes=20 if options.quick else PUSHES)
                name, listed = f"{side}/{'live' if is_live else 'alone'}", [least_push(counted)]
                show(report, name, listed[0].total())
                show(report, f"{name}/receipt", min(push.until_receipt for push in counted))
                if consumed:
                    listed.append(median(consumed))
                    show(report, f"{name}/consumer", listed[1].total())
                if options.list:
                    print("\n".join(line for calls in listed for line in [*listing(calls), ""]), flush=True)


if __name__ == "__main__":
    main()
