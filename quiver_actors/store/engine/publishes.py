"""Publishes of one engine that are under way: each takes its numbers, is recorded, and becomes segments, one after the other.

Owner: `Stages`, on the loop thread. A publish takes its numbers when it begins: what is open is closed first, logs that begin later get
higher numbers, and are sealed after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.staged.jobs import PublishJob
from quiver_actors.store.staged.records import PublishingRecord
from quiver_actors.store.staged.stage import Stage, number_part
from quiver_actors.store.staged.states import StageState
from quiver_actors.store.wal.log import Log


@dataclass(slots=True)
class Publish:
    """Stages that become visible together."""

    ticket: int
    stages: list[Stage]
    places: list[PublishingRecord] = field(default_factory=list)
    """Where each part goes; empty until the numbers were taken."""
    is_recorded: bool = False
    infos: dict[int, SegmentInfo] = field(default_factory=dict)

    @property
    def parts(self) -> list[tuple[Stage, int, Log]]:
        """Every part of the publish, in the order in which they become segments: stage, index in the stage, log."""
        return [(stage, index, part) for stage in self.stages for index, part in enumerate(stage.parts)]


class Publishes:
    """The publishes of one engine that are under way, oldest first."""

    def __init__(self, disk: Disk, paths: EnginePaths, numbers: Numbers, logs: LogQueue) -> None:
        self._disk = disk
        self._paths = paths
        self._numbers = numbers
        self._logs = logs
        self._under_way: deque[Publish] = deque()
        self._ticket = 0

    def begin(self, prepared: Collection[Stage]) -> int:
        """Publish these stages together, in the order of their partitions. Returns the ticket."""
        ordered = sorted(prepared, key=lambda stage: (stage.order.partition, stage.order.attempt, stage.number))
        for stage in ordered:
            stage.move(StageState.PUBLISHING)
        self._ticket += 1
        self._under_way.append(Publish(self._ticket, ordered))
        self.take_numbers()
        return self._ticket

    def ticket_of(self, stages: Collection[Stage]) -> int:
        """Ticket of the last publish under way that has one of the stages; 0 if none has."""
        return max(
            (each.ticket for each in self._under_way if any(stage in stages for stage in each.stages)), default=0
        )

    @property
    def places(self) -> list[PublishingRecord]:
        """The places of all parts that have their numbers."""
        return [place for publish in self._under_way for place in publish.places]

    @property
    def first_segment_seq(self) -> int | None:
        """The lowest segment number that a publish under way has taken; None if none has."""
        return next((publish.places[0].segment_seq for publish in self._under_way if publish.places), None)

    # --- numbers and their record ------------------------------------------------------------------------------------------

    def take_numbers(self) -> None:
        """Give publishes their places, in order, as far as numbers are reserved."""
        for publish in self._under_way:
            if publish.places:
                continue
            parts = publish.parts
            bundles = sum(part.builder.bundle_count for _, _, part in parts)
            if not self._numbers.has_many(len(parts), bundles):
                return
            self._logs.close_active()
            for stage, index, part in parts:
                publish.places.append(self._number(stage, index, part))

    def _number(self, stage: Stage, index: int, part: Log) -> PublishingRecord:
        identity, position = self._numbers.identity(), self._numbers.position
        self._numbers.take_segment_seq()
        self._numbers.advance(identity.first_sequence + part.builder.bundle_count, position + part.entry_bytes)
        number_part(part, stage.cfg_hash, position, identity)
        return PublishingRecord(stage.number, index, identity.segment_seq, identity.first_sequence, position)

    @property
    def has_unrecorded(self) -> bool:
        """Some places are not known to be durable."""
        return any(publish.places and not publish.is_recorded for publish in self._under_way)

    def note_recorded(self, places: Collection[PublishingRecord]) -> None:
        """Note that these places are durable."""
        durable = {(place.number, place.part) for place in places}
        for publish in self._under_way:
            if publish.places and all((place.number, place.part) in durable for place in publish.places):
                publish.is_recorded = True

    # --- becoming segments -------------------------------------------------------------------------------------------------

    def job(self) -> PublishJob | None:
        """The job that makes the oldest publish visible, once that is recorded and everything in front of it is sealed; else None."""
        publish = self._under_way[0] if self._under_way else None
        if publish is None or not publish.is_recorded:
            return None
        sealed_next = next((log.segment_seq for log in self._logs), None)
        if sealed_next is not None and sealed_next < publish.places[0].segment_seq:
            return None
        return PublishJob(self._disk, self._paths, publish.stages, self._numbers.incarnation, publish.infos)

    def finish(self) -> Publish:
        """Take out the oldest publish, whose parts are segments now."""
        return self._under_way.popleft()
