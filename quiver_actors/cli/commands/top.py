"""`quiver top`: a node as it lives, from shared memory alone: rates, lag, pressure, each with its last minute."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from quiver_actors.base.units import format_duration, format_size
from quiver_actors.cli import run_dir
from quiver_actors.cli.durations import positive_duration_seconds
from quiver_actors.errors import NotRunning, UsageError
from quiver_actors.supervisor.exitcodes import ExitCode

if TYPE_CHECKING:
    from quiver_actors.cli.documents.load_view import NodeLoad
    from quiver_actors.cli.documents.rates import SubscriberRates, TopicRates
    from quiver_actors.store.status.status_document import StatusView

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Show a node as it lives: what comes in for each topic, how far behind each subscriber is, how hard pressed the workers are, worst first,
with their last minute as small plots, as much as fits on the screen. Reads shared memory alone: it costs the node nothing. Ends with
Ctrl-C. Needs the extra `top`.
"""
_EPILOG = """\
examples:
  quiver top
  quiver top --interval 0.2 --count 3

exit codes:
  0    interrupted, or --count has come and the node is running
  1    unexpected error
  2    wrong arguments, or the package rich is missing
  3    not running
"""
_COLUMNS_OFF_A_TERMINAL, _LINES_OFF_A_TERMINAL = 120, 60
_PROBLEMS_SHOWN = 4
_ROWS_MIN = 3
_STATE_STYLES = {
    "ready": "green",
    "degraded": "yellow",
    "draining": "yellow",
    "starting": "yellow",
    "recovering": "yellow",
}


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver top` with its options to the command line."""
    parser = subparsers.add_parser(
        "top",
        help="live view: rates, lag, pressure",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument(
        "--interval", metavar="DURATION", type=positive_duration_seconds, default=1.0, help="between two looks (1s)"
    )
    parser.add_argument("--count", metavar="N", type=int, help="end after so many looks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises NotRunning; UsageError where rich is not installed."""
    if not is_installed():
        raise UsageError(
            "quiver top needs the package rich: pip install 'quiver-actors[top]'; or use `quiver status --watch`"
        )
    return watch(run_dir.find_run_dir(arguments), arguments.interval, arguments.count)


def is_installed() -> bool:
    """Whether the package that draws the live view is there."""
    return importlib.util.find_spec("rich") is not None


def watch(where: str, interval_seconds: float, count: int | None = None) -> int:
    """Show the node of a run directory until interrupted, or `count` times. Returns the exit code.

    Raises:
        NotRunning: there is no node, or it was never started.
    """
    from rich.console import Console
    from rich.live import Live

    view = TopView(where)
    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if is_terminal else _COLUMNS_OFF_A_TERMINAL)
    try:
        if not is_terminal:
            for _ in _ticks(interval_seconds, count):
                console.print(view.look(_LINES_OFF_A_TERMINAL))
            return view.exit_code
        with Live(view.look(console.height), console=console, screen=True, auto_refresh=False) as live:
            for _ in _ticks(interval_seconds, count):
                live.update(view.look(console.height), refresh=True)
    except KeyboardInterrupt:
        return 0
    return view.exit_code


def _ticks(interval_seconds: float, count: int | None) -> Iterator[int]:
    for number in itertools.count():
        yield number
        if count is not None and number + 1 >= count:
            return
        time.sleep(interval_seconds)


class TopView:
    """Look after look at one node, each as something that rich can draw."""

    def __init__(self, where: str) -> None:
        from quiver_actors.cli.documents.rates import SAMPLES_KEPT, Rates

        self._where = where
        self._rates = Rates()
        self._pressures: dict[int, deque[float]] = {}
        self._kept = SAMPLES_KEPT
        self._has_seen = False
        self.exit_code = ExitCode.CLEAN
        """Exit code that the last look calls for."""

    def look(self, lines: int) -> Any:
        """Something of about so many lines at most.

        Raises:
            NotRunning: unless the node was there before: then it is said, as it may come back.
        """
        from rich.console import Group
        from rich.text import Text

        from quiver_actors.cli.documents.load_view import take_load
        from quiver_actors.store.status.status_view import take_status

        try:
            status, load = take_status(self._where), take_load(self._where)
        except NotRunning as error:
            if not self._has_seen:
                raise
            self.exit_code = ExitCode.ALREADY_RUNNING
            return Text(str(error))
        self._has_seen = True
        self.exit_code = ExitCode.CLEAN if status.node.running else ExitCode.ALREADY_RUNNING
        self._rates.take(status)
        parts = [_headline(status, load), self._workers(status, load)]
        # What is left after these, two headings and two lines that say how many more there are.
        room = lines - str(parts[0]).count("\n") - 1 - len(status.workers) - 1 - 4
        subscribers = self._rates.subscribers[: max(_ROWS_MIN, room // 2)]
        topics = self._rates.topics[: max(_ROWS_MIN, room - len(subscribers))]
        parts += [_topics(topics), *_more(len(self._rates.topics) - len(topics), "topics")]
        if subscribers:
            parts += [_subscribers(subscribers), *_more(len(self._rates.subscribers) - len(subscribers), "subscribers")]
        return Group(*parts)

    def _workers(self, status: StatusView, load: NodeLoad) -> Any:
        from quiver_actors.cli.documents.rates import sparkline

        table = _table("WORKER", "STATE", "CPU%", "CLIENTS", "WAITING", "DISK", "PRESSURE", "")
        loads = {each.core: each for each in load.workers}
        for worker in status.workers:
            own = loads.get(worker.core)
            pressures = self._pressures.setdefault(worker.core, deque(maxlen=self._kept))
            pressures.append(own.pressure if own is not None else 0.0)
            table.add_row(
                f"core_{worker.core}",
                _state(worker.state),
                "-" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f}",
                str(worker.sessions),
                str(worker.pushes_waiting),
                format_size(own.used_bytes) if own is not None else "-",
                f"{pressures[-1]:.0%}",
                sparkline(pressures, highest=1.0),
            )
        return table


def _headline(status: StatusView, load: NodeLoad) -> Any:
    from rich.text import Text

    node = status.node
    cap = f" of {format_size(load.cap_bytes)}" if load.cap_bytes else ""
    up = "-" if node.uptime_ns is None else format_duration(node.uptime_ns)
    state = (node.state, _STATE_STYLES.get(node.state, "red"))
    text = Text.assemble("quiver node ", state, f"  up {up}  disk {format_size(load.used_bytes)}{cap}")
    for problem in node.problems[:_PROBLEMS_SHOWN]:
        text.append(f"\n{problem}", "red")
    if (more := len(node.problems) - _PROBLEMS_SHOWN) > 0:
        text.append(f"\nand {more:,} more", "red")
    for warning in node.warnings:
        text.append(f"\n{warning}", "yellow")
    for advice in node.advice:
        text.append(f"\n-> {advice}")
    return text


def _more(count: int, what: str) -> list[Any]:
    """A line that says how many are not shown; none where all are."""
    from rich.text import Text

    return [Text(f"and {count:,} more {what}", "dim")] if count > 0 else []


def _topics(topics: Sequence[TopicRates]) -> Any:
    table = _table("TOPIC", "STATE", "BUNDLES/S", "BYTES/S", "STORED", "DISK", "")
    for each in topics:
        table.add_row(
            each.topic,
            _state(each.state),
            f"{each.bundles_per_s:,.0f}",
            f"{format_size(round(each.bytes_per_s))}/s",
            f"{each.segment_bundles:,}",
            format_size(each.disk_bytes),
            each.history,
        )
    return table


def _subscribers(subscribers: Sequence[SubscriberRates]) -> Any:
    table = _table("SUBSCRIBER", "TOPIC", "LAG", "RESOLVED/S", "OLDEST", "CLIENTS", "")
    for each in subscribers:
        table.add_row(
            each.subscriber,
            each.topic,
            f"{each.lag_bundles:,}",
            f"{each.resolved_per_s:,.0f}",
            "-" if each.oldest_age_ns is None else format_duration(each.oldest_age_ns),
            str(each.connections) if each.connections else "nobody",
            each.history,
        )
    return table


def _table(*headings: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    texts = {"WORKER", "TOPIC", "SUBSCRIBER", "STATE", ""}
    for heading in headings:
        table.add_column(heading, justify="left" if heading in texts else "right", no_wrap=True)
    return table


def _state(state: str) -> Any:
    from rich.text import Text

    return Text(state, _STATE_STYLES.get(state, "red"))
