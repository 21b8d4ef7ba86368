"""`quiver status`: how a node is, from shared memory alone. Never talks to the supervisor or to a worker."""

from __future__ import annotations

import argparse
import enum
import os
import sys
import time
from typing import TYPE_CHECKING

from quiver_actors.base.units import SECOND_NS
from quiver_actors.cli import run_dir
from quiver_actors.cli.commands import top
from quiver_actors.cli.durations import duration_ns
from quiver_actors.cli.watch import add_watch, watching
from quiver_actors.errors import NotRunning, UsageError

if TYPE_CHECKING:
    from quiver_actors.store.status.status_document import StatusView

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_WAIT_INTERVAL_SECONDS = 0.05
_PROBLEMS_SHOWN = 5

_DESCRIPTION = """\
Show workers, topics, subscribers, shared memory and last errors, the worst first, and what to do about what is wrong. Reads the
counters page alone, so it answers also while workers are stopped or hang and after the supervisor has died; AGE says how old the figures
of a process are. What is well and small among many is counted only, unless --all is given. On a terminal --watch shows what `quiver top`
shows, if that is installed and neither --json nor --all is given.
"""

_EPILOG = """\
ready:   the supervisor is alive, recovery is over, and at least one worker serves
healthy: the supervisor is alive and every worker and topic is ready

exit codes:
  0    shown; or the check holds; or what was waited for has come
  1    unexpected error
  2    wrong arguments or configuration
  3    not running: no supervisor is alive in the run directory (what is left of its figures is shown all the same)
  4    --check: it does not hold
  5    --wait: it did not come in time
"""


class StatusExit(enum.IntEnum):
    """Exit codes of this command alone; they agree with `supervisor.exitcodes` up to 3."""

    OK = 0
    NOT_RUNNING = 3
    CHECK_FAILED = 4
    TIMED_OUT = 5


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver status` with its options to the command line."""
    parser = subparsers.add_parser(
        "status",
        help="show how a node is",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    run_dir.add_data_dir(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--all", action="store_true", help="a line for each topic and core, and every subscriber")
    mode = parser.add_mutually_exclusive_group()
    add_watch(mode)
    mode.add_argument(
        "--check", choices=("ready", "healthy"), help="print nothing but what is wrong; see the exit codes"
    )
    mode.add_argument("--wait", choices=("ready", "healthy"), help="wait until it is")
    parser.add_argument(
        "--timeout", metavar="DURATION", type=duration_ns, default=30 * SECOND_NS, help="how long --wait waits (30s)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises NotRunning where there is nothing to show, ConfigError for a bad file or duration."""
    if arguments.data_dir is not None:
        return _of_directory(arguments)
    where = run_dir.find_run_dir(arguments)
    if arguments.check:
        return _check(where, arguments.check, arguments.json)
    if arguments.wait:
        return _wait(where, arguments.wait, arguments.timeout, arguments.json)
    if arguments.watch is not None and _is_live_view(arguments):
        return top.watch(where, arguments.watch)
    looker = _Looker(where, arguments.json, in_full=arguments.all)
    return watching(arguments, looker.look)


def _of_directory(arguments: argparse.Namespace) -> int:
    from quiver_actors.cli.documents.store_status import status_of_directory

    if arguments.check or arguments.wait or arguments.watch is not None:
        raise UsageError("--data-dir shows a directory once: --check, --wait and --watch look at a running node")
    _show(status_of_directory(arguments.data_dir), arguments.json, in_full=arguments.all)
    return StatusExit.OK


def _is_live_view(arguments: argparse.Namespace) -> bool:
    """Whether looks go to a person at a terminal, who is shown what `quiver top` shows."""
    return sys.stdout.isatty() and not arguments.json and not arguments.all and top.is_installed()


def _take(where: str) -> StatusView:
    from quiver_actors.store.status.status_view import take_status

    return take_status(where)


def _check(where: str, wanted: str, as_json: bool) -> int:
    status = _take(where)
    if as_json:
        _show(status, as_json)
    if not status.node.running:
        raise NotRunning(f"the supervisor of {where} (pid {status.node.pid}) is dead")
    if _holds(status, wanted):
        return StatusExit.OK
    print(f"quiver: not {wanted}: {_why(status)}", file=sys.stderr)
    return StatusExit.CHECK_FAILED


def _wait(where: str, wanted: str, timeout_ns: int, as_json: bool) -> int:
    deadline_ns = time.monotonic_ns() + timeout_ns
    while True:
        try:
            status = _take(where)
            if _holds(status, wanted):
                break
            reason = _why(status)
        except NotRunning as error:
            reason = str(error)
        if time.monotonic_ns() >= deadline_ns:
            print(f"quiver: not {wanted} in time: {reason}", file=sys.stderr)
            return StatusExit.TIMED_OUT
        time.sleep(_WAIT_INTERVAL_SECONDS)
    if as_json:
        _show(status, as_json)
    return StatusExit.OK


class _Looker:
    """Look after look: each after the first says what the workers' processor time was since the one before."""

    def __init__(self, where: str, as_json: bool, *, in_full: bool) -> None:
        self._where = where
        self._as_json = as_json
        self._in_full = in_full
        self._previous: StatusView | None = None

    def look(self) -> int:
        """Raises NotRunning where there is nothing to show."""
        previous, self._previous = self._previous, None
        status = self._previous = _take(self._where)
        if previous is not None:
            _use_since(status, previous)
        _show(status, self._as_json, in_full=self._in_full)
        return StatusExit.OK if status.node.running else StatusExit.NOT_RUNNING


def _use_since(status: StatusView, previous: StatusView) -> None:
    """Replace the lifelong average of the workers' processor time by what was used since the last look."""
    former = {(worker.core, worker.pid): worker for worker in previous.workers}
    for worker in status.workers:
        then = former.get((worker.core, worker.pid))
        if then is None or None in (worker.figures_age_ns, then.figures_age_ns):
            continue
        now_ns = status.taken_unix_ns - (worker.figures_age_ns or 0)
        elapsed_ns = now_ns - (previous.taken_unix_ns - (then.figures_age_ns or 0))
        worker.cpu_percent = round(100 * (worker.cpu_ns - then.cpu_ns) / elapsed_ns, 1) if elapsed_ns > 0 else None


def _why(status: StatusView) -> str:
    """Return the problems in one line, which fits into a probe's log even if a node has hundreds of topics."""
    problems = status.node.problems
    more = [f"and {len(problems) - _PROBLEMS_SHOWN:,} more"] if len(problems) > _PROBLEMS_SHOWN else []
    return "; ".join([*problems[:_PROBLEMS_SHOWN], *more]) or status.node.state


def _holds(status: StatusView, wanted: str) -> bool:
    return status.node.ready if wanted == "ready" else status.node.healthy


def _show(status: StatusView, as_json: bool, *, in_full: bool = False) -> None:
    if as_json:
        import msgspec

        print(msgspec.json.encode(status).decode(), flush=True)
    else:
        from quiver_actors.cli.commands.status_table import render

        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(render(status, colour=colour, in_full=in_full), flush=True)
