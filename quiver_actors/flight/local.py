"""A node of this host, through its workers' sockets.

Holds of streaming readers are kept open here. One that nobody looked through for a minute is closed: its reader is gone, and the
subscriber's time to live runs from then on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import pyarrow as pa

from quiver_actors.base.config.tree import ServeSettings
from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.archive_messages import RetiredCore
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client
from quiver_actors.client.hold import HeldCore, Hold
from quiver_actors.errors import (
    ClosedError,
    QuiverError,
    TopicDeleted,
    TopicRecreated,
    UnknownCore,
    UnknownSubscriber,
    WorkerUnavailable,
)
from quiver_actors.flight.archived import (
    KnownPart,
    TicketSegments,
    archived_columns,
    archived_schemas,
    retired_contents,
    retired_cores,
    with_archive,
)
from quiver_actors.flight.contract import (
    Acknowledge,
    AskSlotRows,
    AskWeights,
    ConfirmGap,
    Contents,
    CoreContents,
    DropRun,
    HoldTerms,
    Look,
    ReadTicket,
    Schemas,
    SlotRows,
    Weights,
    schema_of,
)
from quiver_actors.flight.remote_clients import RemoteClients, TellStatus, tell_nothing
from quiver_actors.flight.rows import read_rows
from quiver_actors.flight.stored import (
    checked_contents,
    core_contents,
    held_contents,
    make_readable,
    stored_rows,
    stored_weights,
)
from quiver_actors.flight.tables import NodeTables
from quiver_actors.store.staged.states import StageState
from quiver_actors.transactions import Token

HOLD_IDLE_SECONDS = 60.0
_CHECK_LOOK_SECONDS = 0.02
_PREPARING_SECONDS = 10.0
_DEFAULTS = ServeSettings()


class LocalNode:
    """A node of this host, reached through its workers' sockets. Several threads may call its methods."""

    def __init__(
        self,
        name: str,
        client: Callable[[], Client],
        status: TellStatus = tell_nothing,
        settings: ServeSettings = _DEFAULTS,
    ) -> None:
        """
        Args:
            client: returns the client to use; asked anew for each request, so that it may be replaced.
            status: how the node is.
            settings: what statements of other hosts may use.
        """
        self.name = name
        self.tables = NodeTables(client, settings)
        self.remote_clients = RemoteClients(name, client, status)
        self._client = client
        self._holds: dict[tuple[str, str], _KeptHold] = {}
        self._lock = threading.Lock()

    @property
    def data_dir(self) -> str:
        """Data directory of the node, for files that its workers and programs of the same user are to find."""
        return self._client().data_dir

    def check_topic(self, topic: str) -> None:
        """Raise UnknownTopic where the node has no such topic."""
        _slots_of(self._client(), topic)

    def look(self, request: Look) -> Contents:
        """Answer from this host's node.

        `flush` makes readable what was acknowledged before; `hold` attaches a subscriber that keeps what it names.
        """
        client = self._client()
        if request.flush:
            make_readable(client, request)
        if request.hold is not None:
            return self._look_held(client, request, request.hold)
        cores = checked_contents(client, self.name, request)
        if request.archive is not None:
            cores = [with_archive(client, request.topic, core, request.archive) for core in cores]
        retired = retired_cores(client, request, [core.core for core in cores])
        cores += retired_contents(client, request, retired)
        return Contents(self.name, _slots_of(client, request.topic), cores)

    def _look_held(self, client: Client, request: Look, terms: HoldTerms) -> Contents:
        key = (request.topic, terms.subscriber)
        slots = _slots_of(client, request.topic)
        with self._lock:
            kept = self._holds.get(key)
            if kept is None:
                known_on = _known_on(client, request.topic, terms.subscriber)
                if terms.needs_all and (lost := _lost_for(client, request, terms, known_on)):
                    return Contents(self.name, slots, lost)
                kept = self._holds[key] = _KeptHold(client, request.topic, terms, known_on)
        with kept.lock:
            # It may have been closed as idle between the two locks: then it opens again, and must be found to be closed.
            if self._holds.setdefault(key, kept) is not kept:
                return self._look_held(client, request, terms)
            try:
                found = kept.look()
            except (UnknownSubscriber, TopicDeleted, TopicRecreated):
                # An operator has dropped it, or its topic, under the hold; what is there by now takes another one.
                self._holds.pop(key, None)
                kept.hold.close()
                raise
            cores = [
                held_contents(core, held, request, is_new=core not in kept.known_on) for core, held in found.items()
            ]
            if request.archive is not None:
                known = kept.archived
                cores = [with_archive(client, request.topic, core, request.archive, known) for core in cores]
            cores += retired_contents(client, request, kept.retired(request, found), kept.archived)
            # Not before the archive has answered: what is new is said once.
            kept.known_on.update(found)
        self.close_idle_holds()
        return Contents(self.name, slots, cores)

    def schemas(self, topic: str, *, archive: bool = False) -> Schemas:
        """Return each distinct schema of what can be read of the topic once."""
        client = self._client()
        found: dict[int, dict[bytes, None]] = {}
        for held in client.schemas(topic):
            found.setdefault(held.slot_id, {})[held.message] = None
        for slot_id, message in archived_schemas(client, topic) if archive else ():
            found.setdefault(slot_id, {})[message] = None
        return Schemas({slot_id: list(messages) for slot_id, messages in found.items()})

    def slot_rows(self, request: AskSlotRows) -> SlotRows:
        """Add up the rows of each slot, and find the sealed segments that have none of the wanted rows."""
        client = self._client()
        by_core = stored_rows(client, request).by_core
        archived = list(archived_columns(client, request.topic, request.archived))
        for each in archived:
            by_core.setdefault(each.core, {}).update(each.rows)
        if request.wanted is None:
            return SlotRows(by_core)
        # It loads pyarrow.dataset, and that pandas: more than all the rest of a process that plans a read.
        from quiver_actors.flight.pruning import unmatched

        # Where the archive has more of a segment than the disk, its word alone counts.
        on_disk = {
            core: {seq: each for seq, each in segments.items() if not _is_archived(request, core, seq)}
            for core, segments in client.statistics(request.topic).items()
        }
        left_out = unmatched(on_disk, request.wanted)
        client.tell_pruned(request.topic, {core: len(segments) for core, segments in left_out.items()})
        in_archive = {each.core: each.statistics for each in archived}
        for core, segments in unmatched(in_archive, request.wanted).items() if in_archive else ():
            left_out[core] = sorted({*left_out.get(core, ()), *segments})
        return SlotRows(by_core, left_out)

    def weights(self, request: AskWeights) -> Weights:
        """Read the row counts of one segment's bundles without checking their checksums; who reads the rows checks them."""
        return stored_weights(self._client(), request)

    def acknowledge(self, request: Acknowledge) -> None:
        """Pass the acknowledgement to the worker of the core; durable on return. Of a core that was retired nothing is owed any more."""
        client = self._client()
        bundle_id = BundleId(request.topic, request.core, request.segment_seq, request.bundle_index)
        try:
            client.ack_through(bundle_id, subscriber=request.subscriber)
        except UnknownCore:
            if not client.archived_reads.retired(request.topic, (), [request.core]):
                raise

    def confirm_gap(self, request: ConfirmGap) -> None:
        """Acknowledge the notice through the hold that received it; without such a hold nothing happens."""
        with self._lock:
            kept = self._holds.get((request.topic, request.subscriber))
        if kept is not None:
            with kept.lock:
                kept.hold.confirm(request.core, request.notice)

    def publish(self, tokens: Sequence[str]) -> None:
        """Publish the tokens, and drop the other stages of their runs on all workers.

        A stage that cannot be dropped now is dropped after its time to live.
        """
        # The decision's tokens for this node are all in one request: what else it holds of the transaction has lost.
        client, decoded = self._client(), [Token.decode(token) for token in tokens]
        client.publish(decoded, drop_others=True)
        for run in {(token.topic, token.txn_id, token.epoch) for token in decoded}:
            # Workers without a winner were not asked yet. What cannot be dropped now goes after its time to live.
            with contextlib.suppress(QuiverError):
                _drop_run_once(client, DropRun(*run), only_decided=True)

    def drop_run(self, request: DropRun) -> None:
        """Drop the run's stages, and wait for those that are still being prepared.

        Raises:
            WorkerUnavailable: a stage was still being prepared after the wait.
        """
        client = self._client()
        deadline = time.monotonic() + _PREPARING_SECONDS
        while is_preparing := _drop_run_once(client, request):
            if time.monotonic() > deadline:
                raise WorkerUnavailable(f"node {self.name}: {is_preparing} is still being prepared: try again")
            time.sleep(_CHECK_LOOK_SECONDS)

    def read(self, ticket: ReadTicket) -> Iterator[pa.RecordBatch]:
        """Yield rows of mapped segments of this host, and of archived ones, batch by batch, without a copy through a socket."""
        with contextlib.closing(TicketSegments(self._client(), ticket)) as segments:
            yield from read_rows(
                segments,
                self.name,
                ticket.topic,
                ticket.slots,
                ticket.ranges,
                schema_of(ticket.schema),
                skip_missing=ticket.skip_missing,
                required=ticket.required,
                verify_checksums=ticket.verify_checksums,
            )

    def close(self) -> None:
        """End the consumers of remote clients, and let go of all holds: their subscribers go on holding for their time to live."""
        self.remote_clients.close()
        with self._lock:
            kept_holds = list(self._holds.values())
            self._holds.clear()
        for kept in kept_holds:
            with kept.lock:
                kept.hold.close()

    def close_idle_holds(self, idle_seconds: float = HOLD_IDLE_SECONDS) -> None:
        """Let go of holds whose readers are gone."""
        limit_ns = time.monotonic_ns() - round(idle_seconds * SECOND_NS)
        closing = []
        with self._lock:
            for key, kept in list(self._holds.items()):
                # One that is being looked through is in use, however long its workers take.
                if kept.used_at_ns < limit_ns and kept.lock.acquire(blocking=False):
                    closing.append(self._holds.pop(key))
        for kept in closing:
            kept.hold.close()
            kept.lock.release()


def _drop_run_once(client: Client, request: DropRun, *, only_decided: bool = False) -> str:
    """Drop what can be dropped; names a stage that is between open and prepared, which takes one fsync."""
    preparing = ""
    for core, (incarnation, stages) in client.staged_of(request.topic).items():
        of_run = [stage for stage in stages if (stage.txn_id, stage.epoch) == (request.txn_id, request.epoch)]
        if of_run:
            numbers = [stage.number for stage in of_run]
            reason = "its run was aborted"
            client.drop_stages(request.topic, core, incarnation, numbers, reason, only_decided=only_decided)
        for stage in of_run:
            if stage.state == StageState.PREPARING.value:
                preparing = f"stage {stage.number} of worker {core}"
    return preparing


def _is_archived(request: AskSlotRows, core: int, segment_seq: int) -> bool:
    return core in request.archived and segment_seq in request.archived[core].bundle_counts


def _slots_of(client: Client, topic: str) -> dict[str, int]:
    topics = client.topics()
    if topic not in topics:
        raise unknown_topic(topic, topics)
    return dict(topics[topic].slots)


def _known_on(client: Client, topic: str, subscriber: str) -> set[int]:
    """Workers that know a subscriber."""
    found = client.subscribers(topic).items()
    return {core for core, infos in found if subscriber in {info.subscriber for info in infos}}


def _lost_for(client: Client, request: Look, terms: HoldTerms, known_on: set[int]) -> list[CoreContents]:
    """What workers that do not know the subscriber have, if one of them has lost what it needs."""
    found = client.readable(request.topic).items()
    new = [core_contents(core, each, request, is_new=True) for core, each in found if core not in known_on]
    if request.archive is not None:
        new = [with_archive(client, request.topic, core, request.archive) for core in new]
    return new if any(each.begins_behind(terms.starts.get(each.core, (0, 0))) for each in new) else []


class _KeptHold:
    """An open hold and its state. Everything but `used_at_ns` is used under `lock`."""

    def __init__(self, client: Client, topic: str, terms: HoldTerms, known_on: set[int]) -> None:
        self.lock = threading.Lock()
        self.used_at_ns = time.monotonic_ns()
        self.known_on = known_on
        """Workers that know the subscriber."""
        self.archived: dict[int, KnownPart] = {}
        """What the archive has in front of the disk, by core."""
        self._terms = client, topic, terms
        self._retired: tuple[object, list[RetiredCore]] | None = None
        """The cores that the node does not have any more, and for which question."""
        self.hold = self._attached()

    def _attached(self) -> Hold:
        client, topic, terms = self._terms
        starts = {core: BundleId(topic, core, *start) for core, start in terms.starts.items() if start != (0, 0)}
        return client.hold(terms.subscriber, topic=topic, starts=starts, ttl=terms.ttl_ns / SECOND_NS)

    def retired(self, request: Look, served: Collection[int]) -> list[RetiredCore]:
        """What `retired_cores` says. It says the same until the node has other cores: an archiver that is away then is not waited for."""
        question = sorted(served), request.retired
        if self._retired is None or self._retired[0] != question:
            self._retired = question, retired_cores(self._terms[0], request, served)
        return self._retired[1]

    def look(self) -> dict[int, HeldCore]:
        self.used_at_ns = time.monotonic_ns()
        try:
            return self.hold.look()
        except ClosedError:
            self.hold = self._attached()
            return self.hold.look()
        finally:
            self.used_at_ns = time.monotonic_ns()
