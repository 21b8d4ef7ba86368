"""The questions to an archive, as datasets and in SQL. Mixed into `Archive`.

`pyarrow.dataset` and the SQL engines are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.base.protocol.messages import SegmentInfo, TopicInfo

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from quiver_actors.query.dataset import TopicDataset
    from quiver_actors.query.event_times import EventBound
    from quiver_actors.query.snapshot import Progress, Snapshot
    from quiver_actors.query.span import Bound, Span


class QueryingArchive:
    """Methods of `Archive` that ask. They are about the state that the archive shows; `refresh` looks at it anew."""

    def dataset(
        self,
        topic: str = DEFAULT_TOPIC,
        slot: str | int | None = None,
        *,
        start: Bound = None,
        end: Bound = None,
        where: str | pc.Expression | None = None,
        event_start: EventBound = None,
        event_end: EventBound = None,
        metadata: bool | Iterable[str] = False,
        skip_damaged: bool = False,
    ) -> TopicDataset:
        """Return what is archived of a slot of a topic as a `pyarrow.dataset.Dataset`; see `Client.dataset`.

        A scan fetches what it reads. Segments that by the manifest have no row of `where`, of the event times or of the scan's filter
        are left out without a request. What the archive will never have raises DataLost, which says why, or is left out with
        `skip_damaged`.

        Raises:
            UnknownTopic, UnknownSlot, UsageError, ConfigError, SchemaConflict: as `Client.dataset`.
            ChecksumMismatch, FormatError, ArchiveError: what is archived is damaged or cannot be read, also while rows are read.
        """
        from quiver_actors.query.dataset import dataset_of
        from quiver_actors.query.span import Span

        span = Span.parse(topic, start, end)
        choice = {"slot": slot, "where": where, "event_start": event_start, "event_end": event_end}
        choice |= {"metadata": metadata, "skip_damaged": skip_damaged}
        return dataset_of(self._snapshot(topic, span), span, **choice)  # type: ignore[arg-type]

    def sql(
        self,
        statement: str,
        *,
        engine: str = "duckdb",
        start: Bound = None,
        end: Bound = None,
        skip_damaged: bool = False,
        progress: Progress | None = None,
    ) -> pa.RecordBatchReader:
        """Run one reading SQL statement over what is archived; see `Client.sql`.

        `quiver.topics` and `quiver.segments` describe the archive, the other tables of `quiver` have no rows.

        Raises:
            As `Client.sql` and `dataset`.
        """
        from quiver_actors.query.answering import answer_of
        from quiver_actors.query.material import Material, Mentions
        from quiver_actors.query.span import Span

        span, mentions, topics = Span.parse_times(start, end), Mentions(statement), self.topics()
        snapshots = {topic: self._snapshot(topic, span) for topic in mentions.topics(topics)}
        segments = {topic: self.segments(topic) for topic in topics} if mentions.asks_about("segments") else {}
        material = Material(topics, snapshots, segments, span=span)
        return answer_of(engine, statement, material, skip_damaged=skip_damaged, progress=progress)

    def topics(self) -> Mapping[str, TopicInfo]:
        """See `Archive`."""
        raise NotImplementedError

    def segments(self, topic: str = DEFAULT_TOPIC) -> Mapping[int, list[SegmentInfo]]:
        """See `Archive`."""
        raise NotImplementedError

    def _snapshot(self, topic: str, span: Span) -> Snapshot:
        """What a topic has in a span."""
        raise NotImplementedError
