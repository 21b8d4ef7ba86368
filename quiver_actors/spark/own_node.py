"""How long a task waits for the node of its host when that does not take its stages.

Spark runs a task again that has failed, on whatever host has room, and gives the job up when a task has failed several times. So a task
neither waits long for a node that is not to come, nor fails at once again and again on a host whose node is being drained: its first
attempt makes room for another host, where there is one, and later attempts wait for `pushTimeout`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.client import Client
from quiver_actors.errors import ClosedError, Draining, NotRunning, QuiverError, WorkerUnavailable
from quiver_actors.flight.members import Member
from quiver_actors.spark.connection import forget_client, node_client
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.options import SourceOptions

T = TypeVar("T")

FIRST_PATIENCE_NS = 2 * SECOND_NS
"""How long the first attempt waits where other hosts have nodes and this one has none: longer than a worker takes to be started again."""
_RETRY_SECONDS = 0.2


def on_own_node(options: SourceOptions, attempt_number: int, action: Callable[[Client, float], T]) -> T:
    """Return `action(client, timeout_seconds)` of this host's node; tried again while the node is away, or takes nothing as it is drained.

    What an action has begun on a connection that is dead is lost, so actions begin something.

    Args:
        attempt_number: of the task; 0: it has not failed yet.

    Raises:
        NotRunning, WorkerUnavailable, Draining: no node of this host takes it, for `pushTimeout`, or as long as the first attempt waits.
    """
    deadline_ns = time.monotonic_ns() + options.push_timeout_ns
    limit_ns = deadline_ns if attempt_number else min(deadline_ns, time.monotonic_ns() + FIRST_PATIENCE_NS)
    while True:
        left_ns = max(MILLISECOND_NS, limit_ns - time.monotonic_ns())
        try:
            client = node_client(
                options.run_dir, options.push_timeout_ns, patience_ns=left_ns, trusted_uid=options.trusted_uid
            )
            return action(client, left_ns / SECOND_NS)
        except (ClosedError, Draining, NotRunning, WorkerUnavailable) as error:
            forget_client(options.run_dir, trusted_uid=options.trusted_uid)
            is_draining, now_ns = isinstance(error, Draining), time.monotonic_ns()
            if limit_ns < deadline_ns and (is_draining or now_ns >= limit_ns):
                if is_elsewhere(options, is_draining=is_draining):
                    raise
                limit_ns = deadline_ns
            if now_ns >= deadline_ns:
                raise
        time.sleep(_RETRY_SECONDS)


def is_elsewhere(options: SourceOptions, *, is_draining: bool) -> bool:
    """Whether the directory of nodes says that a task has better chances on another host.

    Args:
        is_draining: this host's node is there and is being drained, so it may still be in the directory. Otherwise a node of this host in
            the directory is one that is to come back.
    """
    members: list[Member] = []
    with contextlib.suppress(QuiverError):
        nodes = node_set(options)
        nodes.look_again()
        members = list(nodes.members().values())
    names = {socket.gethostname(), socket.getfqdn()}
    others = [member for member in members if member.node not in names and names.isdisjoint(member.hosts)]
    return bool(others) and (is_draining or len(others) == len(members))
