"""Exactly once, across nodes: what a task stages, and what the driver decides and publishes.

    task      stage (invisible) -> push -> prepare (durable, invisible) -> token to the driver
    driver    commit: the decision, made once beside the checkpoint -> publish on every node, repeated until it is done
              abort: only where no commit was decided

Attempts that lost, on whatever node, are in no decision and are never visible; their nodes drop them. A replayed micro-batch finds
its decision, stores nothing, and publishes what was decided.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from quiver_actors.base.file_systems import below
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import QuiverError, TransactionAborted, TransactionDecided, UsageError
from quiver_actors.flight.contract import DropRun, Node
from quiver_actors.flight.members import parse_static
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.options import SourceOptions
from quiver_actors.transactions import Decision, Decisions, Token
from quiver_actors.transactions.asking import OWN_LOG_NAME

T = TypeVar("T")

logger = logging.getLogger("quiver.spark")

_OTHER = re.compile(r"[^A-Za-z0-9_.-]")
_TXN_ID_MAX = 96
_PUBLISH_RETRY_SECONDS = (0.1, 5.0)
DECISIONS_DIRECTORY = "_quiver_decisions"


@dataclass(frozen=True)
class Attempt:
    """One attempt to write a transaction: what driver and tasks have to agree on."""

    txn_id: str
    epoch: int
    decisions: str


def transaction_id(*parts: object) -> str:
    """A transaction id of these parts: readable, and different for different texts `a-b-c`."""
    text = "-".join(map(str, parts))
    plain = _OTHER.sub("_", text).lstrip(".")
    if plain == text and len(text) <= _TXN_ID_MAX:
        return text
    return f"{plain[: _TXN_ID_MAX - 17]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def named_transaction(options: SourceOptions) -> str:
    """The transaction of a write that the user has named: for each topic another one."""
    # Behind a topic, in whose name a "." cannot be: "a-b" and "c" must not be "a" and "b-c".
    return transaction_id(f"{options.topic}.{options.txn_app_id}", options.txn_version)


def decisions_location(options: SourceOptions) -> str:
    """Where the decisions of a write go: where its options say, else beside its checkpoint, else into the directory of nodes, else to the
    only node.

    All processes that take part must reach it: driver, tasks, and workers (which ask after a prepared bundle's time to live).
    """
    if options.decisions is not None:
        return _as_location(options.decisions)
    if options.checkpoint is not None:
        return below(_as_location(options.checkpoint), DECISIONS_DIRECTORY)
    nodes = node_set(options)
    if nodes.where is not None and parse_static(nodes.where) is None:
        return below(_as_location(nodes.where), DECISIONS_DIRECTORY)
    # One node's own log would not be found by the workers of others.
    local = nodes.local() if nodes.where is None else None
    if local is None:
        raise UsageError(
            "there is no place for the decision of this write that all nodes reach: give option 'checkpointLocation' (any shared "
            "file system), name a directory of nodes with option 'nodes', or write with commitProtocol=task or none"
        )
    return os.path.join(local.data_dir, OWN_LOG_NAME)


def _as_location(text: str) -> str:
    """Spark and Hadoop also write `file:/path` and `hdfs:/path`; Arrow wants `file:///path` and `hdfs:///path`."""
    found = re.match(r"^([A-Za-z][A-Za-z0-9+.-]+):(?:/|///+)(?!/)(.*)$", text)
    if found is not None:
        return (f"{found[1]}://" if found[1] != "file" else "") + f"/{found[2]}".rstrip("/")
    return text if "://" in text else os.path.abspath(text)


def decide(attempt: Attempt, tokens: Sequence[Token]) -> Decision:
    """Make the decision, or find the one that stands.

    Raises:
        TransactionAborted: the attempt came too late; Spark runs the job or the micro-batch again.
    """
    late = [token for token in tokens if token.epoch != attempt.epoch]
    if late:
        raise TransactionAborted(
            f"transaction {attempt.txn_id!r}: its tasks ran in epochs {sorted({token.epoch for token in tokens})}, as one was aborted "
            "meanwhile; run it again"
        )
    return Decisions(attempt.decisions).commit(attempt.txn_id, attempt.epoch, tokens)


def publish(options: SourceOptions, tokens: Iterable[Token]) -> None:
    """Make decided bundles visible on every node, at once; a node that is away is tried until `pushTimeout`.

    Raises:
        QuiverError: a node could not be reached in time, or was taken out meanwhile; the decision stands, and publishing goes on when the
            write is repeated.
    """
    by_node = _by_node(tokens)
    node_set(options).ask(by_node, _publishing(options, by_node))


def abort(options: SourceOptions, attempt: Attempt) -> None:
    """Decide that the attempt comes to nothing, unless it was committed; then let all nodes drop what they hold of it, whatever task staged
    it.

    Spark names only the tasks that have finished. One that was cancelled sees the end of its rows, and prepares what it has.
    """
    if Decisions(attempt.decisions).abort(attempt.txn_id, attempt.epoch).is_commit:
        logger.warning("quiver.spark.abort_ignored txn=%s: it was committed", attempt.txn_id)
        return
    request = DropRun(options.topic, attempt.txn_id, attempt.epoch)
    nodes = node_set(options)

    def drop_on(node: Node) -> None:
        # A node that is not reached drops it by itself, after its time to live.
        with contextlib.suppress(QuiverError):
            node.drop_run(request)

    with contextlib.suppress(QuiverError):
        nodes.ask_all(drop_on)


def check_not_aborted(attempt: Attempt) -> None:
    """Check in a task, before it prepares, that its attempt was not aborted meanwhile; else a stage would wait for its time to live.

    Raises:
        TransactionAborted: the driver has given the attempt up.
    """
    decided = Decisions(attempt.decisions).decided(attempt.txn_id, attempt.epoch)
    if decided is not None and not decided.is_commit:
        raise TransactionAborted(f"transaction {attempt.txn_id!r}, epoch {attempt.epoch} was aborted by {decided.by}")


def open_attempt(txn_id: str, decisions: str) -> Attempt | None:
    """Return the attempt that is under way, or a new one; None: the transaction is committed already."""
    try:
        return Attempt(txn_id, Decisions(decisions).open_epoch(txn_id), decisions)
    except TransactionDecided:
        return None


def publish_again(options: SourceOptions, txn_id: str, decisions: str) -> None:
    """See to it that a committed transaction is visible everywhere.

    A node that has left is passed over with a warning: one that was drained had published all that was decided. What one that was taken
    out by force has not published, it publishes when it is back, within `stageTtl`, as the decision stands.
    """
    found = Decisions(decisions).find(txn_id)
    if found is None:
        return
    nodes = node_set(options)
    if nodes.where is None:
        publish(options, found.tokens)
        return
    nodes.look_again()  # A node may have come just before it took part.
    by_node = _by_node(found.tokens)
    published = nodes.ask_present(by_node, _publishing(options, by_node))
    for name in sorted(by_node.keys() - published.keys()):
        logger.warning(
            "quiver.spark.published_without txn=%s node=%s: it is not in the directory of nodes", txn_id, name
        )


def forget(txn_id: str, decisions: str) -> None:
    """Remove the decision of a transaction that is published everywhere and will never be run again. Losers that ask for it are dropped."""
    with contextlib.suppress(QuiverError):
        Decisions(decisions).remove(txn_id)


def _publishing(options: SourceOptions, by_node: Mapping[str, list[str]]) -> Callable[[Node], None]:
    def publish_on(node: Node) -> None:
        _patiently(lambda: node.publish(by_node[node.name]), options.push_timeout_ns)

    return publish_on


def _by_node(tokens: Iterable[Token]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for token in tokens:
        found.setdefault(token.node, []).append(token.encode())
    return found


def _patiently(action: Callable[[], T], timeout_ns: int) -> T:
    """Repeat what failed for a reason that passes."""
    deadline_ns = time.monotonic_ns() + timeout_ns
    pause_seconds, pause_max = _PUBLISH_RETRY_SECONDS
    while True:
        try:
            return action()
        except QuiverError as error:
            if not error.retriable or time.monotonic_ns() + pause_seconds * SECOND_NS > deadline_ns:
                raise
        time.sleep(pause_seconds)
        pause_seconds = min(pause_max, 2 * pause_seconds)
