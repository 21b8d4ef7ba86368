"""The messages of transactions: staged bundles of one worker, and the node's own decision log. See docs/transactions.md.

A stage is bound to the connection that began it until it is prepared; what names a prepared one carries the incarnation of its
directory. Bundles are pushed into a stage by `messages.StagePush`.
"""

from __future__ import annotations

import msgspec

from quiver_actors.base.protocol.base import Message

# --- client to worker ----------------------------------------------------------------------------------------------------


class BeginStage(Message, tag=40, frozen=True):
    """Open a stage; answered by Done, whose `value` is its number."""

    tag: int
    topic: str
    txn_id: str
    epoch: int
    partition: int
    attempt: int
    decisions: str
    """Where the transaction is decided: a path or URI that this worker can reach; empty: the node's own log."""
    ttl_ns: int


class PrepareStage(Message, tag=42, frozen=True):
    """Make a stage durable; answered by StageReady. An empty one is closed instead."""

    tag: int
    topic: str
    stage: int
    is_awaited: bool = False
    """Somebody waits until its bundles are in the archive; refused where the topic is not archived."""


class AbandonStage(Message, tag=47, frozen=True):
    """Give up an open stage of this connection; not answered."""

    topic: str
    stage: int


class DropStages(Message, tag=43, frozen=True):
    """Drop stages that no commit names; answered by Done once that is durable. Those that are gone already are no error.

    Of a prepared stage whose epoch is undecided the worker first decides against the epoch, so that no commit can come to name it.
    """

    tag: int
    topic: str
    incarnation: str
    numbers: list[int]
    reason: str = "aborted"
    only_decided: bool = False
    """Whether prepared stages of an undecided epoch are left, until it is decided or their time is over."""


class PublishStages(Message, tag=44, frozen=True):
    """Make prepared stages of a decided transaction visible; answered by Done once they are sealed. The same again is no error."""

    tag: int
    topic: str
    txn_id: str
    incarnation: str
    numbers: list[int]
    drop_others: bool = False
    """Whether to drop the transaction's other stages of this topic and core, as the decision does not list them."""
    retired_core: int = -1
    """Number of a removed core that no worker adopts, which may have published the stages; -1: the stages are of a present core."""


class ListStages(Message, tag=45, frozen=True):
    """Answered by StageList."""

    tag: int
    topic: str


class Decide(Message, tag=46, frozen=True):
    """Look up or make a decision in the node's own log; answered by Decided."""

    tag: int
    txn_id: str
    epoch: int
    outcome: str
    """`commit` (with `tokens`), `abort`, or `find`: the newest decision of the transaction, of any epoch."""
    tokens: tuple[str, ...] = ()
    """Tokens of the committed stages, each encoded by `Token.encode`."""


# --- worker to client ----------------------------------------------------------------------------------------------------


class StageReady(Message, tag=90, frozen=True):
    """The stage is durable and invisible."""

    tag: int
    incarnation: str
    number: int
    bundles: int
    """0: it was empty, and is gone."""
    rows: int
    size_bytes: int
    expires_unix_ns: int


class StageInfo(msgspec.Struct, array_like=True, frozen=True):
    """One stage of a transaction on this worker: whose it is, its state, and how much it holds."""

    number: int
    txn_id: str
    epoch: int
    partition: int
    attempt: int
    state: str
    """A `store.staged.states.StageState`."""
    bundles: int
    rows: int
    size_bytes: int
    begun_unix_ns: int
    expires_unix_ns: int
    """0 until it is prepared."""
    decisions: str
    note: str = ""
    """Reason why the stage still waits, or why it is dropped."""


class StageList(Message, tag=91, frozen=True):
    """Answer to `ListStages`."""

    tag: int
    incarnation: str
    stages: list[StageInfo]


class Decided(Message, tag=92, frozen=True):
    """Answer to `Decide`."""

    tag: int
    decision: str
    """A `transactions.Decision` as JSON; empty: there is none."""
