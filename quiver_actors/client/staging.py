"""The calls of a client for transactions: stages, tokens, decisions. `Client` inherits them."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.base.protocol.messages import DropStages, ListStages, StageInfo, StageList
from quiver_actors.client.archived import ArchiveWaiting
from quiver_actors.client.calls import Call
from quiver_actors.client.channels import ChannelSet, raise_refusals
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.producer import Producer
from quiver_actors.client.publishing import deciding, dropping, publishing
from quiver_actors.client.push_channel import PushChannel
from quiver_actors.client.requests import Requests
from quiver_actors.client.stage import Stage, StagePlan
from quiver_actors.client.transaction import Transaction
from quiver_actors.errors import UsageError
from quiver_actors.transactions.asking import FIND
from quiver_actors.transactions.model import ABORT, COMMIT, TTL_SECONDS, Decision, Token, check_txn_id

PUBLISH_TIMEOUT_SECONDS = 60.0


class StagingClient(ArchiveWaiting):
    """Methods of `Client` for transactions: stages, tokens and decisions."""

    _exchange: Exchange
    _channels: ChannelSet[PushChannel]
    _producer: Producer
    _requests: Requests
    _timeout_seconds: float

    def stage(
        self,
        txn_id: str,
        *,
        topic: str = DEFAULT_TOPIC,
        partition: int = 0,
        attempt: int = 0,
        epoch: int = 0,
        decisions: str | None = None,
        ttl: float = TTL_SECONDS,
        key: str | bytes | None = None,
        node: str | None = None,
        timeout: float = 30.0,
    ) -> Stage:
        """Open a stage: what is pushed into it is invisible until its token is decided and published.

        Args:
            txn_id: 1 to 128 characters of `A-Z a-z 0-9 _ . -`.
            partition, attempt: of the work that it is a part of. Published stages of one worker are in the order of their partitions.
            epoch: `Decisions.open_epoch` of the transaction.
            decisions: where the transaction is decided, an absolute path or a URI, which the node must be able to reach; None: in the
                node's own log (`decide`).
            ttl: seconds that a token waits before its worker asks the decision log.
            key: stages of one key go to one worker.
            node: how the token names this node; None: the host's name.

        Raises:
            UnknownTopic, InvalidId, UsageError: the call is wrong.
            WorkerUnavailable, EngineFailed, Draining: no worker takes it now.
        """
        if decisions is not None and "://" not in decisions and not decisions.startswith("/"):
            raise UsageError(f"decision log {decisions!r}: expected an absolute path or a URI")
        name = socket.gethostname() if node is None else node
        wanted = StagePlan(txn_id, topic, partition, attempt, epoch, decisions or "", ttl, name)
        stage = Stage(self._producer, self._channels, wanted, key, self.wait_archived)
        self._exchange.run(stage.beginning(timeout))
        return stage

    def transaction(self, txn_id: str, *, ttl: float = TTL_SECONDS, timeout: float = 60.0) -> Transaction:
        """A transaction of this node, as a context manager: committed when the block ends well, undone when it raises.

        Run again under the same id it does nothing, except to finish what an earlier run had decided. The node remembers its decisions
        for as long as its data directory lives.

        Args:
            ttl: seconds after which what was prepared and never decided is dropped.
            timeout: seconds that a worker may be away.
        """
        return Transaction(self, check_txn_id(txn_id), ttl=ttl, timeout=timeout)

    def publish(
        self, tokens: Iterable[Token], *, drop_others: bool = False, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        """Make the tokens of a decided transaction visible: those of this node, all that is decided for it. May be repeated for ever.

        When it returns the bundles are in sealed segments, behind everything that their workers had acknowledged before. All tokens of
        one (topic, worker) become visible in one step.

        Args:
            drop_others: these are *all* tokens that the decision has for this node: other stages of the transaction are dropped here.

        Raises:
            TransactionLost: a token was dropped, or its directory replaced.
            UnknownTransaction: a token is of another transaction.
            WorkerUnavailable, EngineFailed, Draining: call again; what is published stays so.
            StageUnreadable: the disk does not give what was prepared back; it is kept: look at the disk, then call again.
        """
        self._exchange.run(publishing(self._channels, list(tokens), drop_others=drop_others, timeout_seconds=timeout))

    def abort_tokens(self, tokens: Iterable[Token], *, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> None:
        """Drop prepared bundles that were decided not to be. May be repeated; what was published stays published.

        Raises:
            TransactionLost, WorkerUnavailable, EngineFailed: as `publish`.
        """
        self._exchange.run(dropping(self._channels, list(tokens), timeout))

    def decide(self, txn_id: str, epoch: int, tokens: Sequence[Token] | None) -> Decision:
        """Decide a transaction in the node's own log: commit these tokens, or abort the epoch (None).

        Returns:
            The decision that stands, see `Decisions.commit` and `Decisions.abort`.

        Raises:
            TransactionAborted: the epoch was aborted before.
            DecisionUnavailable: the node cannot write its log.
        """
        outcome = ABORT if tokens is None else COMMIT
        flow = deciding(self._channels, txn_id, epoch, outcome, tokens or (), self._timeout_seconds)
        decision = self._exchange.run(flow)
        assert decision is not None, "a decision was made"
        return decision

    def find_decision(self, txn_id: str) -> Decision | None:
        """The commit of a transaction in the node's own log, else its last abort, None if there is neither. Raises as `decide`."""
        return self._exchange.run(deciding(self._channels, check_txn_id(txn_id), 0, FIND, (), self._timeout_seconds))

    def staged(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[StageInfo]]:
        """The stages of a topic that are not published yet, by core.

        Raises:
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        return {core: infos for core, (_, infos) in self.staged_of(topic).items()}

    def staged_of(self, topic: str) -> dict[int, tuple[str, list[StageInfo]]]:
        """Return (incarnation of the directory, stages that are not published yet) by core."""
        calls = self._exchange.run(self._requests.ask_all(lambda tag: ListStages(tag, topic)))
        answers = {core: call.answer for core, call in calls.items()}
        return {
            core: (answer.incarnation, list(answer.stages))
            for core, answer in answers.items()
            if isinstance(answer, StageList)
        }

    def drop_stages(
        self,
        topic: str,
        core: int,
        incarnation: str,
        numbers: Sequence[int],
        reason: str,
        *,
        only_decided: bool = False,
    ) -> None:
        """Drop stages of one core by their numbers, for operators; what was published stays. Raises as `abort_tokens`.

        Args:
            only_decided: leave prepared stages of an undecided epoch; else that epoch is aborted.
        """
        call = Call(lambda tag: DropStages(tag, topic, incarnation, list(numbers), reason, only_decided))
        self._exchange.run(self._channels.completing({core: call}, self._timeout_seconds))
        raise_refusals([call])
