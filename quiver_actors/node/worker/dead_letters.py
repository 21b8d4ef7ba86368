"""Moves bundles that were delivered too often into a dead letter topic of the same core.

Owner: the loop thread. The slots go over as they are; slot 63 says where the bundle came from and why it is here
(`store.subscriber.dead_letters`). The original is resolved only after its dead letter is durable: a crash in between makes a second dead
letter and never loses the bundle. While the other topic has no room the bundle waits; it is nobody's meanwhile and `blocked` in status.
One that is too large for a letter, with what that adds, stays so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from quiver_actors.base.model import DEAD_LETTER_SUFFIX, ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import Push, Terms
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.base.rights import User, Verdict, verdict
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import QuiverError, UsageError
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.threads import Submit
from quiver_actors.store.encoding.entries import lay_out, plan
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.engine import Engine
from quiver_actors.store.segment.checked import open_reader
from quiver_actors.store.segment.mapping import SegmentMapping
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.subscriber.dead_letters import Origin, envelope_of
from quiver_actors.store.wal.entry_reader import EntryReader, LogEntries, Place

IN_FLIGHT_MAX = 16
"""Most bundles that are being copied at a time; each is in memory once."""
POLL_NS = 2 * MILLISECOND_NS
"""How often the other topic is asked whether a dead letter is durable."""
ROOM_POLL_NS = 100 * MILLISECOND_NS
"""The same interval while the other topic has no room, which may take long."""
RETRY_NS = SECOND_NS


class DeadLetterHost(Protocol):
    """Host of a topic of this core, as dead letters need it: an `EngineHost`."""

    @property
    def engine(self) -> Engine:
        """The engine whose bundles became dead letters, or which takes them."""

    @property
    def is_given_up(self) -> bool:
        """Whether the engine was given up, so that nothing more is done for it."""

    def touch(self) -> None:
        """Have the host looked at in this turn of the loop."""


def dead_letter_topic(topic: str, terms: Terms) -> str | None:
    """Return the topic for exhausted bundles of a subscriber with these terms; None if there is none."""
    if not terms.max_deliveries or terms.exhausted != "dead_letter":
        return None
    return terms.dead_letter_topic or topic + DEAD_LETTER_SUFFIX


class DeadLetterJob:
    """Reads a bundle and lays it out as a Push of one; takes over the segment's descriptor."""

    def __init__(
        self, origin: Origin, target_topic: str, descriptor: int, size_bytes: int, places: bytes = b""
    ) -> None:
        """
        Args:
            places: where the bundle lies in its log, if its segment is not sealed (`base.protocol.places`).
        """
        self.origin = origin
        self.error: str = ""
        self.is_impossible = False
        """No try will ever go better."""
        self.memory = memoryview(bytearray())
        self.push: Push | None = None
        self.schemas: dict[int, StreamSchema] = {}
        self._target_topic = target_topic
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._places = places

    def run(self) -> None:
        """Lay out the letter as a log entry on a thread; sets `error`, and `is_impossible` if trying again cannot help."""
        try:
            self._lay_out()
        except UsageError as error:
            self.error, self.is_impossible = str(error), True
        except (QuiverError, OSError, ValueError) as error:
            self.error = str(error)
        finally:
            os.close(self._descriptor)

    def _lay_out(self) -> None:
        index, reader = self.origin.bundle_index, self._reader()
        slots = dict(reader.bundle(index))
        origin = replace(self.origin, ingestion_ts_nanos=reader.ingestion_ts(index))
        slots[ENVELOPE_SLOT] = envelope_of(origin, slots.get(ENVELOPE_SLOT))
        planned = plan(sorted(slots.items()), StreamTable(self._target_topic), reader.item_count(index))
        self.memory = memoryview(bytearray(planned.entry_bytes))
        size_bytes = planned.entry_bytes
        rows = lay_out([planned], self.memory)
        # What was copied gets a checksum of its own: damage that has just come to the original must not be covered by it.
        reader.check(index)
        self.schemas = rows.schemas()
        self.push = rows.push(0, self._target_topic, 0, size_bytes, size_bytes)

    def _reader(self) -> SegmentReader | EntryReader:
        segment_seq = self.origin.segment_seq
        mapping = SegmentMapping(self._descriptor, self._size_bytes, segment_seq, is_log=bool(self._places))
        if not self._places:
            return open_reader(mapping, segment_seq)
        place = Place(*PLACE.unpack(self._places))
        return EntryReader(LogEntries(mapping.memory), {self.origin.bundle_index: place}, segment_seq)


class DeadLetters:
    """The exhausted bundles of one engine's subscribers. `step` is called in every turn of its host."""

    def __init__(
        self,
        engine: Engine,
        terms: dict[str, Terms],
        set_by: Mapping[str, User],
        host_of: Callable[[str], DeadLetterHost | None],
        background: Submit,
        cold: Submit,
        journal: Journal,
        wake: Callable[[str], None],
    ) -> None:
        """
        Args:
            terms: of the engine's subscribers; owned by its deliveries.
            set_by: other users who have set some terms; each may have dead letters written only to topics it may push to.
            host_of: where a topic of this core lives.
            wake: something may be claimable for a subscriber.
        """
        self._engine = engine
        self._terms = terms
        self._set_by = set_by
        self._host_of = host_of
        self._background = background
        self._cold = cold
        self._journal = journal
        self._wake = wake
        self._reading = 0
        self._laid_out: list[DeadLetterJob] = []
        self._written: list[tuple[int, DeadLetterHost, Origin]] = []
        """(sequence of the dead letter, host it was written to, origin) until the dead letter is durable."""
        self._paused_until_ns = 0

    def step(self, now_ns: int) -> int | None:
        """Go on with what can go on; returns when to be called again, None if there is nothing to do."""
        self._bury_durable()
        self._stage_laid_out(now_ns)
        if now_ns >= self._paused_until_ns:
            self._start_reading(now_ns)
        if self._reading or self._written:
            return now_ns + POLL_NS
        if self._laid_out:
            return now_ns + ROOM_POLL_NS
        return self._paused_until_ns if self._paused_until_ns > now_ns else None

    def _start_reading(self, now_ns: int) -> None:
        for subscriber, terms in self._terms.items():
            topic = dead_letter_topic(self._engine.topic, terms)
            if topic is None or self._host_of(topic) is None:
                continue
            while self._reading + len(self._laid_out) + len(self._written) < IN_FLIGHT_MAX:
                position = self._engine.claims.exhausted(subscriber)
                if position is None:
                    break
                count = self._engine.claims.delivery_count(subscriber, *position)
                origin = Origin(self._engine.topic, self._engine.core, *position, subscriber, count)
                if self._engine.registrations.is_archived(subscriber, origin.segment_seq):
                    self._block(
                        origin,
                        "the bundle is in the archive, and no dead letter is made of such a one: it is kept for `claim`",
                    )
                    continue
                if not self._read(origin, topic, now_ns):
                    return

    def _read(self, origin: Origin, topic: str, now_ns: int) -> bool:
        try:
            places = self._engine.readable_end.places(origin.segment_seq, [origin.bundle_index])
            open_file = self._engine.readable_end.open if places else self._engine.open_segment
            is_cold = not places and self._engine.storage.is_cold(origin.segment_seq)
            job = DeadLetterJob(origin, topic, *open_file(origin.segment_seq), places)
        except QuiverError as error:
            self._put_off(origin, str(error), now_ns)
            return False
        self._reading += 1
        (self._cold if is_cold else self._background)(job, lambda: self._is_read(job, now_ns))
        return True

    def _is_read(self, job: DeadLetterJob, now_ns: int) -> None:
        self._reading -= 1
        if job.is_impossible:
            self._block(job.origin, job.error)
        elif job.error:
            self._put_off(job.origin, job.error, now_ns)
            self._engine.check_segment(job.origin.segment_seq, [job.origin.bundle_index])
        else:
            self._laid_out.append(job)

    def _block(self, origin: Origin, reason: str) -> None:
        self._engine.claims.block(origin.subscriber, origin.segment_seq, origin.bundle_index)
        place = {"segment": origin.segment_seq, "bundle": origin.bundle_index}
        self._journal.error("dead_letter.impossible", reason, topic=origin.topic, subscriber=origin.subscriber, **place)

    def _put_off(self, origin: Origin, reason: str, now_ns: int) -> None:
        self._wait_again(origin)
        self._paused_until_ns = now_ns + RETRY_NS
        self._journal.error("dead_letter.put_off", reason, topic=origin.topic, segment=origin.segment_seq)

    def _wait_again(self, origin: Origin) -> None:
        self._engine.claims.exhausted_again(origin.subscriber, origin.segment_seq, origin.bundle_index)
        self._wake(origin.subscriber)

    def _is_wanted(self, job: DeadLetterJob) -> bool:
        terms = self._terms.get(job.origin.subscriber)
        wanted = dead_letter_topic(self._engine.topic, terms) if terms else None
        return job.push is not None and job.push.topic == wanted

    def _refusal(self, job: DeadLetterJob) -> str:
        """Why a letter may not be written: its subscriber's terms are of a user who may not push there (any more). Else empty."""
        user = self._set_by.get(job.origin.subscriber)
        host = self._host_of(job.push.topic) if job.push is not None else None
        if user is None or host is None:
            return ""
        topic = host.engine.settings
        if verdict("Push", user.caller(topic)) is Verdict.YES:
            return ""
        return f"{user} may not push to topic {topic.name!r}: its dead letter is kept for whoever claims it by its id"

    def _stage_laid_out(self, now_ns: int) -> None:
        waiting, self._laid_out = self._laid_out, []
        for job in waiting:
            refusal = self._refusal(job)
            if refusal:
                self._block(job.origin, refusal)
                continue
            if not self._is_wanted(job):
                # The subscriber has other terms since, or is gone.
                self._wait_again(job.origin)
                continue
            host = self._host_of(job.push.topic) if job.push else None
            if host is None or job.push is None:
                self._put_off(job.origin, "the dead letter topic is gone", now_ns)
            elif not host.engine.intake.can_stage(len(job.memory)):
                # Whether it has room shows in its own turn.
                host.touch()
                self._laid_out.append(job)
            else:
                self._stage(host, job, job.push, now_ns)

    def _stage(self, host: DeadLetterHost, job: DeadLetterJob, push: Push, now_ns: int) -> None:
        host.touch()
        try:
            run = host.engine.intake.stage(job.memory, push, job.schemas)[-1]
        except QuiverError as error:
            self._put_off(job.origin, str(error), now_ns)
        else:
            self._written.append((run.sequence, host, job.origin))

    def _bury_durable(self) -> None:
        for written in list(self._written):
            sequence, host, origin = written
            if host.is_given_up:
                self._written.remove(written)
                self._put_off(origin, "its dead letter topic was deleted", self._paused_until_ns)
            elif host.engine.group_commit.sequence_durable > sequence:
                self._written.remove(written)
                self._engine.claims.bury(origin.subscriber, origin.segment_seq, origin.bundle_index)
                self._journal.event(
                    "subscriber.dead_letter",
                    topic=origin.topic,
                    subscriber=origin.subscriber,
                    segment=origin.segment_seq,
                    bundle=origin.bundle_index,
                    deliveries=origin.delivery_count,
                )
