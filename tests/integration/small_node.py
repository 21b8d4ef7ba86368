"""A real node with small workers: everything of `quiver up` except the engines.

    python -m tests.integration.small_node DATA_DIR RUN_DIR CORES WORKER PATIENCE_JSON

Runs in its own process, as the supervisor must: one thread, neither pyarrow nor numpy.
"""

from __future__ import annotations

import enum
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from quiver_actors.base.config import NodeSettings, TopicSettings
from quiver_actors.base.metrics.figures import (
    EngineFigure,
    ErrorFigure,
    RowKind,
    SubscriberFigure,
    WorkerFigure,
    WorkerState,
)
from quiver_actors.cli.main import exit_code_of
from quiver_actors.errors import QuiverError
from quiver_actors.node.composition import run_node
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.shm.counters import RowWriter
from quiver_actors.supervisor.errors import SupervisorError
from quiver_actors.supervisor.log import configure_logging
from quiver_actors.supervisor.spec import Patience

HEARTBEAT_SECONDS = 0.02


def serve(context: WorkerContext) -> int:
    """Ready, alive, and done when told to."""
    told = _told_to_stop()
    _listen(context)
    _become_ready(context)
    return _beat_until(told, context)


def serve_with_figures(context: WorkerContext) -> int:
    told = _told_to_stop()
    _publish_figures(context)
    _become_ready(context)
    return _beat_until(told, context)


def first_core_crashes(context: WorkerContext) -> int:
    return 1 if context.core == 0 else serve(context)


def crash(context: WorkerContext) -> int:
    raise RuntimeError(f"worker {context.core} cannot live")


def cannot_open(context: WorkerContext) -> int:
    return 4


def hang_once(context: WorkerContext) -> int:
    """The first life of core 0 stops beating."""
    if context.core == 0 and context.region.generation == 1:
        return hang(context)
    return serve(context)


def hang(context: WorkerContext) -> int:
    _become_ready(context)
    while True:
        signal.pause()


def hang_deaf_to_abort(context: WorkerContext) -> int:
    if context.region.generation > 1:
        return serve(context)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGABRT})
    return hang(context)


def never_drain(context: WorkerContext) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    never, _writer = os.pipe()
    _become_ready(context)
    return _beat_until(never, context)


def crash_while_draining(context: WorkerContext) -> int:
    serve(context)
    return 6


def last_core_waits(context: WorkerContext) -> int:
    """The last core recovers until somebody writes to the FIFO `go` in the data directory."""
    if context.core == context.cores - 1:
        context.region.set_state(WorkerState.RECOVERING)
        with open(os.path.join(context.data_dir, "go"), "rb") as go:
            go.read(1)
    return serve(context)


WORKERS: dict[str, Callable[[WorkerContext], int]] = {
    worker.__name__: worker
    for worker in (
        serve,
        serve_with_figures,
        first_core_crashes,
        crash,
        cannot_open,
        hang_once,
        hang_deaf_to_abort,
        never_drain,
        crash_while_draining,
        last_core_waits,
    )
}


def _told_to_stop() -> int:
    """A descriptor that becomes readable at SIGTERM."""
    told, tell = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(tell, b"."))
    return told


def _listen(context: WorkerContext) -> None:
    path = os.path.join(context.run_dir, f"core_{context.core}.sock")
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    _kept_open.append(listener)


_kept_open: list[socket.socket] = []


def _become_ready(context: WorkerContext) -> None:
    context.region.heartbeat(time.monotonic_ns())
    context.region.set_state(WorkerState.READY)
    os.write(context.wakeup_fd, b".")


def _beat_until(told: int, context: WorkerContext) -> int:
    while not select.select([told], [], [], HEARTBEAT_SECONDS)[0]:
        context.region.heartbeat(time.monotonic_ns())
    context.region.set_state(WorkerState.DRAINING)
    return 0


def _publish_figures(context: WorkerContext) -> None:
    """Figures that differ from core to core and from word to word."""
    core = context.core
    _fill(context, RowKind.WORKER, f"core_{core}", WorkerFigure, 1000 * (core + 1))
    for topic in context.settings.all_topics():
        engine = _fill(context, RowKind.ENGINE, topic, EngineFigure, 100 * (core + 1))
        engine.set(EngineFigure.SEGMENTS_DELETED_BY_OTHERS, 0)
        engine.set(EngineFigure.LIMIT, 0)
        engine.set(EngineFigure.STATE, 3 if (topic, core) == ("clicks", 1) else 2)
        subscriber = _fill(context, RowKind.SUBSCRIBER, f"{topic}/exporter", SubscriberFigure, 10 * (core + 1))
        subscriber.set(SubscriberFigure.OLDEST_UNIX_NS, time.time_ns() - 5_000_000_000 * (core + 1))
    context.region.row(RowKind.SUBSCRIBER, "clicks/done").set(SubscriberFigure.ACKED, 7)
    error = context.region.row(RowKind.ERROR, f"disk of core {core} is slow")
    error.set(ErrorFigure.UNIX_NS, time.time_ns())
    error.set(ErrorFigure.COUNT, core + 1)


def _fill(context: WorkerContext, kind: RowKind, label: str, figures: type[enum.IntEnum], base: int) -> RowWriter:
    row = context.region.row(kind, label)
    for figure in figures:
        row.set(figure, base + figure)
    return row


def main(data_dir: str, run_dir: str, cores: str, worker: str, patience: str) -> int:
    configure_logging(sys.stderr)
    settings = NodeSettings(
        data_dir=data_dir, run_dir=run_dir, cores=int(cores), topics={"clicks": TopicSettings(name="clicks")}
    )
    try:
        return run_node(settings, worker=WORKERS[worker], patience=msgspec.json.decode(patience, type=Patience))
    except (QuiverError, SupervisorError) as error:
        print(f"quiver: {error}", file=sys.stderr)
        return int(exit_code_of(error))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
