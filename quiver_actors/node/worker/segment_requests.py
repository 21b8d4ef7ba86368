"""The requests of those who read stored segments: which there are, what is known of them, and their files. Owner: the loop thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quiver_actors.base.protocol.messages import (
    BundleTime,
    CheckSegment,
    CountPruned,
    Done,
    ListSchemas,
    ListSegments,
    ListStatistics,
    Message,
    OpenSegment,
)
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.session import Session

_Handler = Callable[[Session, Any, int], None]


class SegmentRequests:
    """Handles the messages of clients about segments."""

    def __init__(self, host_of: Callable[[str, Session], EngineHost], count_pruned: Callable[[int], None]) -> None:
        """
        Args:
            host_of: that of a topic for a connection; the topic is touched by it. Raises UnknownTopic, TopicRecreated.
            count_pruned: counts the segments that readers leave out.
        """
        self._host_of = host_of
        self._count = count_pruned

    def handlers(self) -> dict[type[Message], _Handler]:
        """Return the handlers by message, for the table of `Requests`."""
        return {
            ListSegments: self._list_segments,
            ListSchemas: self._list_schemas,
            ListStatistics: self._list_statistics,
            OpenSegment: self._open_segment,
            BundleTime: self._bundle_time,
            CheckSegment: self._check_segment,
            CountPruned: self._count_pruned,
        }

    def _list_segments(self, session: Session, message: ListSegments, now_ns: int) -> None:
        self._host_of(message.topic, session).readers.lists.answer(session, message, now_ns)

    def _list_schemas(self, session: Session, message: ListSchemas, now_ns: int) -> None:
        session.send(self._host_of(message.topic, session).engine.owed.schemas(message.tag))

    def _list_statistics(self, session: Session, message: ListStatistics, now_ns: int) -> None:
        session.send(self._host_of(message.topic, session).engine.owed.statistics(message.tag, message.first))

    def _open_segment(self, session: Session, message: OpenSegment, now_ns: int) -> None:
        host = self._host_of(message.topic, session)
        host.readers.files.answer(session, message)
        host.touch()  # a file on the cold disk is opened by a job

    def _bundle_time(self, session: Session, message: BundleTime, now_ns: int) -> None:
        engine = self._host_of(message.topic, session).engine
        session.send(Done(message.tag, engine.owed.bundle_time(message.segment_seq, message.bundle_index)))

    def _check_segment(self, session: Session, message: CheckSegment, now_ns: int) -> None:
        """Queue a check of a segment. Every reader may ask; the engine checks one segment at a time and trusts only its own check."""
        self._host_of(message.topic, session).deliveries.check_segment(
            message.segment_seq, message.reason, message.bundle_index
        )
        session.send(Done(message.tag))

    def _count_pruned(self, session: Session, message: CountPruned, now_ns: int) -> None:
        """Believe a reader no more segments than there are."""
        stored = self._host_of(message.topic, session).engine.figures().segments
        self._count(max(0, min(message.segment_count, stored)))
        session.send(Done(message.tag))
