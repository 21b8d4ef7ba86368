"""Publishing and dropping stages, and deciding transactions: flows that ask every worker that has a part of a stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from quiver_actors.base.protocol.base import Message
from quiver_actors.base.protocol.messages import (
    Decide,
    Decided,
    DropStages,
    PublishStages,
)
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.calls import Call
from quiver_actors.client.channels import ChannelSet, raise_refusals
from quiver_actors.client.exchange import Flow, deadline_after
from quiver_actors.client.push_channel import PushChannel
from quiver_actors.client.retry import is_retried, retry_at_ns
from quiver_actors.errors import (
    DecisionUnavailable,
    UnknownCore,
    UsageError,
)
from quiver_actors.transactions.model import Decision, Token


def _publish_message(
    topic: str, tokens: list[Token], *, drop_others: bool, retired_core: int = -1
) -> Callable[[int], PublishStages]:
    first, numbers = tokens[0], [token.number for token in tokens]
    if len({(token.txn_id, token.incarnation) for token in tokens}) > 1:
        raise UsageError(
            "tokens of several transactions, or of several lives of one directory, cannot be published together"
        )
    return lambda tag: PublishStages(tag, topic, first.txn_id, first.incarnation, numbers, drop_others, retired_core)


def _drop_message(topic: str, tokens: list[Token]) -> Callable[[int], DropStages]:
    incarnation, numbers = tokens[0].incarnation, [token.number for token in tokens]
    return lambda tag: DropStages(tag, topic, incarnation, numbers)


def publishing(
    channels: ChannelSet[PushChannel], tokens: Sequence[Token], *, drop_others: bool, timeout_seconds: float
) -> Flow[None]:
    """Make all tokens visible: workers in parallel, topics one after the other."""
    deadline_ns = deadline_after(timeout_seconds)
    for topic, of_cores in _by_place(tokens).items():
        try:
            yield from _publishing_topic(channels, topic, of_cores, drop_others, timeout_seconds)
        except UnknownCore:
            # The node came back with fewer cores while one of them was asked. To publish again does no harm.
            left_seconds = max(0, deadline_ns - time.monotonic_ns()) / SECOND_NS
            yield from _publishing_topic(channels, topic, of_cores, drop_others, left_seconds)


def _publishing_topic(
    channels: ChannelSet[PushChannel],
    topic: str,
    of_cores: Mapping[int, list[Token]],
    drop_others: bool,
    timeout_seconds: float,
) -> Flow[None]:
    channels.directory.refresh()
    cores = channels.directory.cores
    for core in of_cores.keys() - set(cores):
        # All of it was delivered, so nothing is left to publish: any worker can tell.
        make = _publish_message(topic, of_cores[core], drop_others=False, retired_core=core)
        yield from _insisting(channels, {cores[0]: make}, timeout_seconds)
    makes = {
        core: _publish_message(topic, of_core, drop_others=drop_others)
        for core, of_core in of_cores.items()
        if core in cores
    }
    yield from _insisting(channels, makes, timeout_seconds)


def dropping(channels: ChannelSet[PushChannel], tokens: Sequence[Token], timeout_seconds: float) -> Flow[None]:
    """Drop the stages of these tokens on every worker that holds one, and repeat lost requests until the timeout."""
    for topic, of_cores in _by_place(tokens).items():
        makes = {core: _drop_message(topic, of_core) for core, of_core in of_cores.items()}
        yield from _insisting(channels, makes, timeout_seconds)


def _insisting(
    channels: ChannelSet[PushChannel], makes: Mapping[int, Callable[[int], Message]], timeout_seconds: float
) -> Flow[None]:
    """Repeat the request to each core until the core has carried it out; a worker that is being restarted is asked again."""
    deadline_ns = deadline_after(timeout_seconds)
    while makes:
        calls = {core: Call(make) for core, make in makes.items()}
        yield from channels.completing(calls, timeout_seconds)
        refusals = {core: call.error for core, call in calls.items() if is_retried(call.error)}
        makes = {core: makes[core] for core in refusals}
        raise_refusals(call for core, call in calls.items() if core not in makes or time.monotonic_ns() >= deadline_ns)
        if makes:
            yield min(deadline_ns, max(map(retry_at_ns, refusals.values())))


def deciding(
    channels: ChannelSet[PushChannel], txn_id: str, epoch: int, outcome: str, tokens: Sequence[Token], timeout: float
) -> Flow[Decision | None]:
    """Ask the node's own decision log; any worker will do.

    Raises:
        TransactionAborted, DecisionUnavailable, InvalidId: see `Decisions`.
    """
    encoded = tuple(token.encode() for token in tokens)
    call = Call(lambda tag: Decide(tag, txn_id, epoch, outcome, encoded))
    yield from channels.asking_any(call, timeout)
    raise_refusals([call])
    assert isinstance(call.answer, Decided), "only this answers Decide"
    if not call.answer.decision:
        return None
    try:
        return msgspec.json.decode(call.answer.decision, type=Decision)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecisionUnavailable(f"the worker's answer is not a decision: {error}") from error


def _by_place(tokens: Iterable[Token]) -> dict[str, dict[int, list[Token]]]:
    found: dict[str, dict[int, list[Token]]] = {}
    for token in tokens:
        found.setdefault(token.topic, {}).setdefault(token.core, []).append(token)
    return found
