"""A transaction of a plain producer: everything pushed inside becomes visible together, once, however often it is run again.

    with client.transaction("import-2026-11-21") as txn:
        txn.push(batch, topic="flights")

Guarantees
- Leaving the block without an error decides the transaction in the node's own log, once and for ever, and publishes it.
- Whatever fails before the decision leaves nothing visible; whatever fails after it is made good by the next run under the same id,
  or by the workers themselves when the tokens' time is over.

A transaction belongs to one thread.
"""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Protocol, Self

from quiver_actors.base.envelope import TraceContext
from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.client.slots import Bundle
from quiver_actors.client.stage import Stage
from quiver_actors.errors import UsageError
from quiver_actors.transactions.model import COMMIT, Decision, Token


class _Client(Protocol):
    """The calls of a client that a transaction needs."""

    def stage(self, txn_id: str, *, topic: str, partition: int, epoch: int, ttl: float, timeout: float) -> Stage: ...

    def find_decision(self, txn_id: str) -> Decision | None: ...

    def decide(self, txn_id: str, epoch: int, tokens: list[Token]) -> Decision: ...

    def publish(self, tokens: list[Token], *, drop_others: bool = False, timeout: float = 60.0) -> None: ...

    def abort_tokens(self, tokens: list[Token], *, timeout: float = 60.0) -> None: ...


class Transaction:
    """One transaction of a plain producer; made by `Client.transaction`, which has an example.

    Attributes:
        txn_id: what makes two runs the same transaction.
        is_done: an earlier run has committed the transaction: pushes are ignored.
        decision: the decision, once there is one.
    """

    def __init__(self, client: _Client, txn_id: str, *, ttl: float, timeout: float) -> None:
        """Use `Client.transaction`."""
        self.txn_id = txn_id
        self.is_done = False
        self.decision: Decision | None = None
        self._client = client
        self._ttl = ttl
        self._timeout = timeout
        self._epoch = 0
        self._is_entered = False
        self._stages: dict[str, Stage] = {}
        self._partitions = itertools.count()

    def push(
        self,
        bundle: Bundle,
        *,
        topic: str = DEFAULT_TOPIC,
        item_count: int | None = None,
        trace_context: TraceContext | None = None,
        timeout: float | None = None,
    ) -> None:
        """Stage one bundle. It has no id yet, and is visible once the block has been left.

        Raises:
            TransactionAborted: the worker or the connection was lost: run the transaction again.
            And as `Client.push`.
        """
        self._check_entered()
        if not self.is_done:
            stage = self._stage(topic)
            stage.push(bundle, item_count=item_count, trace_context=trace_context, timeout=timeout or self._timeout)

    def _stage(self, topic: str) -> Stage:
        found = self._stages.get(topic)
        if found is None:
            found = self._client.stage(
                self.txn_id,
                topic=topic,
                partition=next(self._partitions),
                epoch=self._epoch,
                ttl=self._ttl,
                timeout=self._timeout,
            )
            self._stages[topic] = found
        return found

    def __enter__(self) -> Self:
        found = self._client.find_decision(self.txn_id)
        self._is_entered = True
        if found is None:
            return self
        if found.is_commit:
            # The run that committed it may have been lost before it had published everything.
            self.is_done, self.decision = True, found
            self._publish(found)
        else:
            self._epoch = found.epoch + 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self.is_done:
                self._commit()
        finally:
            self._is_entered = False
            for stage in self._stages.values():
                stage.abort()

    def _commit(self) -> None:
        prepared = [stage.prepare(self._timeout) for stage in self._stages.values()]
        tokens = [token for token in prepared if token is not None]
        decision = self._client.decide(self.txn_id, self._epoch, tokens)
        self.is_done, self.decision = True, decision
        if set(decision.tokens) != set(tokens):
            self._client.abort_tokens(tokens, timeout=self._timeout)
        self._publish(decision)

    def _publish(self, decision: Decision) -> None:
        if decision.outcome == COMMIT:
            self._client.publish(list(decision.tokens), drop_others=True, timeout=self._timeout)

    def _check_entered(self) -> None:
        if not self._is_entered:
            raise UsageError(f"transaction {self.txn_id!r} is not open: use it in a with block")

    def __repr__(self) -> str:
        return f"<Transaction {self.txn_id!r} {'done' if self.is_done else 'open'}>"
