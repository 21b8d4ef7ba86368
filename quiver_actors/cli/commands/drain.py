"""`quiver drain`: end a node so that nothing is left to replay or to deliver.

Unlike SIGTERM, which ends a node as soon as everything is sealed, this keeps it serving subscribers until they have resolved all of it or
the time is over. Steps: stop intake on all workers, wait (on the counters page) until everything is sealed and resolved, with `--leave`
take the node out of the directory of nodes, stop the node.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import errno
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quiver_actors.base.file_systems import shown
from quiver_actors.base.units import SECOND_NS, format_duration
from quiver_actors.cli import run_dir
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.durations import duration_ns
from quiver_actors.cli.progress_bar import StatusLine
from quiver_actors.errors import ConfigError, DiskError, NotRunning
from quiver_actors.supervisor.exitcodes import ChildExit, describe_wait_status

if TYPE_CHECKING:
    from quiver_actors.cli.documents.backlog import Backlog
    from quiver_actors.flight.members import MemberDirectory

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_LOOK_INTERVAL_SECONDS = 0.05
_STOP_PATIENCE_NS = 90 * SECOND_NS
"""How long the stop may take after that: the supervisor kills workers that need more than 60 s."""
CLEAN_EXIT = describe_wait_status(ChildExit.DRAINED << 8)

_DESCRIPTION = """\
End a node for good: stop intake on all workers, seal, wait until every subscriber has resolved everything, then stop the node. A later
start finds nothing to replay and, if all were done, nothing to deliver. Pushes are refused from the first moment on, subscribers may
still come and go. The intake stays stopped if this command is interrupted: start it again, or stop the node.
"""

_EPILOG = """\
exit codes:
  0    everything was resolved by every subscriber, and the node has ended
  1    the node did not end as it should (nothing acknowledged is lost), or an unexpected error
  2    wrong arguments or configuration
  3    not running
  4    --leave: the directory of nodes cannot be written; the node goes on without intake
  5    not all was resolved in time, or --leave not done; who is behind is printed, and the node has ended (or goes on: --keep-behind)
"""


class DrainExit(enum.IntEnum):
    """Exit codes of this command alone; they agree with those of `quiver status`."""

    DRAINED = 0
    NOT_ENDED_WELL = 1
    TIMED_OUT = 5


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver drain` with its options to the command line."""
    parser = subparsers.add_parser(
        "drain",
        help="stop intake, wait for all subscribers, stop the node",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        type=duration_ns,
        default=60 * SECOND_NS,
        help="how long to wait for subscribers (60s)",
    )
    parser.add_argument(
        "--keep-behind",
        action="store_true",
        help="when the time is over, leave the node serving those who are behind (its intake stays stopped)",
    )
    parser.add_argument(
        "--leave",
        action="store_true",
        help="when everything is resolved, take the node out of the directory of nodes: readers go on without it",
    )
    parser.add_argument("--nodes", metavar="URI", help="that directory (default: $QUIVER_NODES)")
    parser.add_argument("--json", action="store_true", help="one JSON object that says how it ended and who is behind")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises NotRunning or ControlError where nobody answers, ConfigError for a bad file or duration."""
    where = run_dir.find_run_dir(arguments)
    timeout_ns = arguments.timeout
    nodes = arguments.nodes or os.environ.get("QUIVER_NODES", "")
    if arguments.leave and not nodes:
        raise ConfigError("--leave needs the directory of nodes: give --nodes")
    directory = _directory(nodes) if arguments.leave else None
    started_ns = time.monotonic_ns()
    with _telling_of_an_interrupt(), StatusLine() as line:
        _ask(where, "stop intake")
        backlog = _wait_resolved(where, started_ns + timeout_ns, line)
    waited_ns = time.monotonic_ns() - started_ns
    stages = _tell_staged(where)
    stays = arguments.keep_behind and not backlog.is_empty
    is_missed = directory is not None and not (backlog.is_empty and not stages)
    if is_missed:
        print(
            f"quiver: the node stays in the directory of nodes {shown(nodes)}, for what is left on it", file=sys.stderr
        )
    elif directory is not None:
        _leave(where, directory)
    bad_exits = [] if stays else _stop(where)
    _report(backlog, waited_ns, stays, bad_exits, as_json=arguments.json)
    if not backlog.is_empty or is_missed:
        return DrainExit.TIMED_OUT
    return DrainExit.NOT_ENDED_WELL if bad_exits else DrainExit.DRAINED


@contextlib.contextmanager
def _telling_of_an_interrupt() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(
            "quiver: interrupted: the node goes on serving subscribers and takes no bundles; run `quiver drain` again, or stop the node and"
            " start it to have it take bundles again",
            file=sys.stderr,
        )
        raise


def _ask(where: str, wish: str) -> None:
    """Have the supervisor stop intake, or drain and end.

    Raises:
        NotRunning: there is none.
        ControlError: it does not answer.
    """
    from quiver_actors.base.trust import supervisor_check
    from quiver_actors.store.status.status_view import take_status
    from quiver_actors.supervisor import control
    from quiver_actors.supervisor.errors import ControlError

    status = take_status(where)
    if not status.node.running:
        raise NotRunning(f"the supervisor of {where} (pid {status.node.pid}) is dead")
    request = control.StopIntake() if wish == "stop intake" else control.Drain()
    path = os.path.join(where, control.SOCKET_NAME)
    reply = control.request(path, request, check_peer=supervisor_check(where))
    if not isinstance(reply, control.Accepted):
        raise ControlError(f"the supervisor of {where} does not {wish}: {reply}; is it of another version?")


def _wait_resolved(where: str, deadline_ns: int, line: StatusLine) -> Backlog:
    """Wait until nothing is left to do; returns what is left when the time is over.

    Raises:
        NotRunning: the node ended meanwhile.
    """
    from quiver_actors.cli.documents.backlog import backlog_of
    from quiver_actors.store.status.status_view import take_status

    while True:
        status = take_status(where)
        if not status.node.running:
            raise NotRunning(f"the supervisor of {where} (pid {status.node.pid}) ended while it was being drained")
        backlog = backlog_of(status)
        if backlog.is_empty or time.monotonic_ns() >= deadline_ns:
            return backlog
        line.say(f"waiting for {len(backlog.lines())}: {backlog.lines()[0]}")
        time.sleep(_LOOK_INTERVAL_SECONDS)


def _tell_staged(where: str) -> int:
    """How many prepared bundles of transactions stay in the node's directories: somebody may have decided that they are to be seen."""
    from quiver_actors.store.status.status_view import take_status

    stages = sum(engine.prepared_stages for engine in take_status(where).engines)
    if stages:
        print(
            f"quiver: {stages} staged parts of undecided transactions stay on this node, and go on when it is started again; to take it "
            "away for good, end them before (`quiver transactions list`)",
            file=sys.stderr,
        )
    return stages


def _directory(nodes: str) -> MemberDirectory:
    """Raises ConfigError: it is none. To be known before the node's intake is stopped for it."""
    from quiver_actors.flight.members import MemberDirectory

    return MemberDirectory(nodes)


def _leave(where: str, directory: MemberDirectory) -> None:
    """Remove the node from the list before it ends, so that a client that misses it finds that it has left. Raises DiskError."""
    from quiver_actors.client import connect
    from quiver_actors.store.objects.errors import ArchiveError

    with connect(where) as client:
        try:
            directory.leave(client.node)
        except ArchiveError as error:
            raise DiskError("leave", shown(directory.uri), errno.EIO, str(error)) from error


def _stop(where: str) -> list[str]:
    """Have the node end and wait until it has; returns what went wrong."""
    from quiver_actors.shm.liveness import holder_alive
    from quiver_actors.store.status.node_page import SUPERVISOR_LOCK
    from quiver_actors.store.status.status_view import attach_page, worker_exits

    lock = os.path.join(where, SUPERVISOR_LOCK)
    # Attached before the end: the name goes with the node, the figures stay as long as somebody has them.
    page = attach_page(where)
    try:
        _ask(where, "end")
        deadline_ns = time.monotonic_ns() + _STOP_PATIENCE_NS
        while holder_alive(lock):
            if time.monotonic_ns() >= deadline_ns:
                return ["the supervisor has not ended yet"]
            time.sleep(_LOOK_INTERVAL_SECONDS)
        return [f"worker {name} ended with {how}" for name, how in worker_exits(page).items() if how != CLEAN_EXIT]
    finally:
        page.close()


def _report(backlog: Backlog, waited_ns: int, stays: bool, bad_exits: list[str], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        document = {
            "drained": backlog.is_empty,
            "ended": not stays,
            "waited_ns": waited_ns,
            "problems": bad_exits,
            **msgspec.to_builtins(backlog),
        }
        print_json(document)
        return
    for line in [*backlog.lines(), *backlog.advice(), *bad_exits]:
        print(f"quiver: {line}", file=sys.stderr)
    node = "the node goes on without intake" if stays else "the node has ended"
    found = "everything is resolved" if backlog.is_empty else "not everything is resolved"
    print(f"quiver drain: {found} after {format_duration(waited_ns)}; {node}", flush=True)
