"""The archiving of one topic: what its workers hold goes into the store, then into the manifest, and only then is it acknowledged.

Each core of the topic is a stream. A stream is archived in the order of its segment numbers, up to the first one that is still to come:
what is behind it could be followed by a notice about it. The segments of a stage that was published are recorded in one step, however many
there are: with some of them a restore could neither publish the stage again nor go on without it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from quiver_actors.archive.descriptions import Described, Wanted, describe
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.lag import with_lag
from quiver_actors.archive.manifest import Hole, Segment
from quiver_actors.archive.manifest_store import Addition, ManifestWriter, read_part
from quiver_actors.archive.uploads import Throttle, upload
from quiver_actors.base.archive_status import ArchivedStream
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.protocol.messages import Gap, SegmentInfo
from quiver_actors.client.hold import HeldCore, Hold
from quiver_actors.errors import FormatError, NotStored, StorageUnavailable
from quiver_actors.store.objects.errors import ArchiveRefused
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.segment.mapping import SegmentMapping

logger = logging.getLogger("quiver.archive")

BATCH_SEGMENTS_MAX = 16
BATCH_BYTES_MAX = 256 << 20
"""Most segments and bytes of one stream that are uploaded before they are recorded in the manifest."""
KNOWN_RUNS_MAX = 1000
Stages = Sequence[tuple[int, int]]
"""The first and the last segment of each of some published stages."""


class Step(NamedTuple):
    """The work that one stream needs now, as `plan` returns it."""

    new: list[SegmentInfo]
    """Segments to be uploaded, oldest first."""
    known: list[SegmentInfo]
    """Segments that were recorded and not acknowledged, as after a kill."""
    gaps: list[Gap]
    """Notices to be recorded as holes."""
    missing: list[SegmentInfo]
    """All sealed segments that are not archived."""


class Behind(NamedTuple):
    """What the worker of one stream held for the archiver when it was asked last. Some of it may be archived."""

    sealed: Sequence[SegmentInfo] = ()
    unsealed: Sequence[SegmentInfo] = ()
    next_segment_seq: int = -1
    """No segment had this number or a higher one; -1: not known."""


class States(Protocol):
    """The keeper of the state of the node, as the archive of one topic needs it."""

    def covers(self, stream: StreamKey) -> bool:
        """Whether a stream of which nothing was archived yet may be begun now."""

    def record(self, writer: ManifestWriter, stream: StreamKey, addition: Addition) -> None:
        """Record segments and holes of a stream. Raises as `ManifestWriter.commit`."""

    def published(self, stream: StreamKey) -> Stages:
        """The stages of a stream that were published last. Raises DiskError."""


def plan(held: HeldCore, archived_through: int, published: Stages = ()) -> Step:
    """Decide what comes next for one stream. Pure."""
    published = [(first, last) for first, last in published if first > archived_through]
    end = min(held.unsettled, default=None)
    if end is not None:
        end = next((first for first, last in published if first <= end <= last), end)

    def is_settled(segment_seq: int) -> bool:
        return end is None or segment_seq < end

    missing = [info for info in held.segments if info.segment_seq > archived_through]
    ready = [info for info in missing if is_settled(info.segment_seq)]
    new: list[SegmentInfo] = []
    size_bytes = 0
    for info in ready[:BATCH_SEGMENTS_MAX]:
        size_bytes += info.size_bytes
        if new and size_bytes > BATCH_BYTES_MAX:
            break
        new.append(info)
    if new:
        # As a whole, or it waits for its rest.
        through = next((last for first, last in published if first <= new[-1].segment_seq <= last), -1)
        new += [info for info in ready[len(new) :] if info.segment_seq <= through]
    last = new[-1].segment_seq if len(new) < len(ready) else None
    return Step(
        new,
        [
            info
            for info in held.segments
            if held.oldest is not None and held.oldest[0] <= info.segment_seq <= archived_through
        ],
        [gap for gap in held.gaps if is_settled(gap.segment_seq) and (last is None or gap.segment_seq <= last)],
        missing,
    )


def without_half_a_stage(described: list[Described], published: Stages) -> list[Described]:
    """Segments, the last of which could not be uploaded, without those of a stage of which it is."""
    if not described:
        return described
    newest = described[-1].segment.segment_seq
    begins = next((first for first, last in published if first <= newest < last), newest + 1)
    return [each for each in described if each.segment.segment_seq < begins]


def is_late(unsealed: Iterable[SegmentInfo], max_delay_ns: int, now_unix_ns: int) -> bool:
    """Whether one of these segments is to be sealed now for its age. So is one that began later than now: the clock was set back since,
    and would say only long after that the segment is old. Pure.

    Args:
        max_delay_ns: 0: none is.
    """
    begun = [info.first_ingestion_ts_nanos for info in unsealed]
    return bool(max_delay_ns) and any(
        0 < unix_ns <= now_unix_ns - max_delay_ns or unix_ns > now_unix_ns for unix_ns in begun
    )


def hole_of(gap: Gap, noted_unix_ns: int) -> Hole:
    """The hole that a gap notice means."""
    return Hole(
        segment_seq=gap.segment_seq,
        first_bundle=gap.bundle_index_first,
        bundle_count=gap.bundle_count,
        row_count=gap.row_count,
        reason=gap.reason,
        noted_unix_ns=noted_unix_ns,
    )


class TopicArchive:
    """One enabled topic and its hold. One thread, except where a method says so.

    Args:
        slots: the topic's slots by name; a reader of the archive needs them.
        note_upload: told the size of each segment that was uploaded and recorded.
        states: keeps the state of the node beside the segments.
    """

    def __init__(
        self,
        node: str,
        topic: str,
        slots: Mapping[str, int],
        hold: Hold,
        throttle: Throttle,
        note_upload: Callable[[int], None],
        should_stop: Callable[[], bool],
        states: States,
    ) -> None:
        self.topic = topic
        self.streams: dict[int, ArchivedStream] = {}
        """The part of each core that the manifest has."""
        self.behind: dict[StreamKey, Behind] | None = None
        """What of each stream was still to be archived at the last look; None: no worker was asked yet."""
        self._node = node
        self._slots = slots
        self._hold = hold
        self._throttle = throttle
        self._note_upload = note_upload
        self._should_stop = should_stop
        self._states = states
        self._seals_next = False
        self._held: dict[int, HeldCore] = {}
        """The answers of the workers to the last look of any thread."""
        self._looked_ns = 0
        """Monotonic time of that look."""

    def step(self, store: ObjectStore, writer: ManifestWriter, settings: TopicSettings) -> bool:
        """Archive the next batch of each core. Returns whether more is ready.

        Raises:
            ArchiveError: the store or the manifest did not take it.
            QuiverError: the workers cannot be asked, or the topic is gone.
        """
        held = self._held = self._hold.look(flush=self._seals_next)
        self._looked_ns = time.monotonic_ns()
        self._seals_next = False
        for core in self.streams.keys() - held.keys():
            del self.streams[core]
        more = False
        keys = {core: StreamKey(self.topic, each.incarnation, core) for core, each in held.items() if each.incarnation}
        self.behind = {
            stream: Behind(held[core].segments, held[core].unsealed, held[core].next_segment_seq)
            for core, stream in keys.items()
        }
        for core, stream in keys.items():
            is_begun = writer.head.stream(stream) is not None or self._states.covers(stream)
            if is_begun and not self._should_stop():
                more |= self._step_core(store, writer, stream, held[core], settings)
        unsealed = [info for each in held.values() for info in each.unsealed]
        self._seals_next = is_late(unsealed, settings.archive.max_delay_ns, time.time_ns())
        return more

    def look_again(self, age_ns: int) -> None:
        """Ask the workers anew if the last look is older than that. Any thread may call. Raises QuiverError: they cannot be asked."""
        if time.monotonic_ns() - self._looked_ns > age_ns:
            self._held = self._hold.look()
            self._looked_ns = time.monotonic_ns()

    def shown(self) -> list[ArchivedStream]:
        """The state of each core, for the status. Any thread may call."""
        streams = self.streams
        return [
            with_lag(self.topic, core, held, streams.get(core)) for core, held in self._held.items() if held.incarnation
        ]

    def begin_again(self) -> None:
        """Read the manifest anew with the next step: others may have changed it."""
        self.streams = {}

    def close(self) -> None:
        """Let go of the connections; the hold's subscriber stays."""
        self._hold.close()

    def _step_core(
        self, store: ObjectStore, writer: ManifestWriter, stream: StreamKey, held: HeldCore, settings: TopicSettings
    ) -> bool:
        known = self._known(store, writer, stream)
        if 0 <= held.next_segment_seq <= known.archived_through:
            # What is stored next gets a number under which the archive has something else, and would count as archived.
            raise _put_back(store, stream, known.archived_through)
        has_new = any(info.segment_seq > known.archived_through for info in held.segments)
        published = self._states.published(stream) if has_new else ()
        step = plan(held, known.archived_through, published)
        self._check_known(store, writer, stream, step.known)
        self.streams[stream.core] = known
        if step.new:
            writer.check_owner()
        described = self._upload(store, stream, step.new, settings)
        is_cut = len(described) < len(step.new)
        described = without_half_a_stage(described, published) if is_cut else described
        segments = [each.segment for each in described]
        through = segments[-1].segment_seq if segments else known.archived_through
        gaps = [gap for gap in step.gaps if not is_cut or gap.segment_seq <= through]
        if segments or gaps:
            through = max([through, *(gap.segment_seq for gap in gaps)])
            # A notice about what is archived already is none for the archive.
            holes = [hole_of(gap, time.time_ns()) for gap in gaps if not known.is_archived(gap.segment_seq)]
            schemas = {name: message for each in described for name, message in each.schemas.items()}
            addition = Addition(segments, holes, through, self._slots, settings.event_time, schemas)
            self._states.record(writer, stream, addition)
            for segment in segments:
                self._note_upload(segment.size_bytes)
        for info in [*step.known, *step.new[: len(segments)]][-1:]:
            self._hold.ack_through(stream.core, info.segment_seq, info.bundle_count - 1)
        for gap in gaps:
            self._hold.confirm(stream.core, gap.notice)
        self._note(stream, known, segments, gaps, through)
        return bool(segments) and not is_cut and len(step.missing) > len(segments)

    def _upload(
        self, store: ObjectStore, stream: StreamKey, infos: list[SegmentInfo], settings: TopicSettings
    ) -> list[Described]:
        """Upload and describe segments up to the first one that cannot be read now."""
        done: list[Described] = []
        wanted = Wanted(settings.bounded_columns(), settings.event_time)
        for info in infos:
            if self._should_stop():
                break
            try:
                with self._mapped(stream.core, info.segment_seq) as view:
                    segment = upload(store, self._node, stream, info, view, self._throttle)
                    has_statistics = settings.segment.statistics == "auto"
                    done.append(describe(segment, view, wanted) if has_statistics else Described(segment))
            except (NotStored, StorageUnavailable) as error:
                # It was deleted, compacted or damaged since it was listed: the next look tells.
                logger.info("quiver.archive.skipped topic=%s core=%d error=%s", stream.topic, stream.core, error)
                break
            except FormatError as error:
                logger.warning("quiver.archive.damaged topic=%s core=%d error=%s", stream.topic, stream.core, error)
                self._hold.report_damage(stream.core, info.segment_seq, str(error))
                break
        return done

    @contextmanager
    def _mapped(self, core: int, segment_seq: int) -> Iterator[memoryview]:
        descriptor, size_bytes = self._hold.open_segment(core, segment_seq)
        try:
            mapping = SegmentMapping(descriptor, size_bytes, segment_seq)
        finally:
            os.close(descriptor)
        yield mapping.memory

    # --- what is known of a stream -------------------------------------------------------------------------------------------

    def _known(self, store: ObjectStore, writer: ManifestWriter, stream: StreamKey) -> ArchivedStream:
        """What the manifest has of a stream; read from the store when the stream is first met. It is shown only when it was compared with
        the disk: where the directory is not the one that was archived, equal numbers are other segments."""
        found = self.streams.get(stream.core)
        if found is None or found.incarnation != stream.incarnation:
            writer.check_owner()  # a command may have repaired it
            return read_stream(store, writer, stream)
        return found

    def _check_known(
        self, store: ObjectStore, writer: ManifestWriter, stream: StreamKey, infos: list[SegmentInfo]
    ) -> None:
        """Compare segments that are recorded already with their records.

        Raises:
            ArchiveRefused: they are others: the data directory was put back to an earlier state.
        """
        ref = writer.head.stream(stream)
        # What was archived and has expired there since has no record any more.
        infos = [] if ref is None else [each for each in infos if each.segment_seq > ref.expired_through]
        if not infos or ref is None:
            return
        first = infos[0].segment_seq
        parts = [read_part(store, each) for each in ref.parts if each.last_segment_seq >= first]
        records = {each.segment_seq: each for part in parts for each in part.segments}
        for info in infos:
            record = records.get(info.segment_seq)
            if record is None or not is_same(record, info):
                raise _put_back(store, stream, info.segment_seq)

    def _note(
        self, stream: StreamKey, known: ArchivedStream, segments: list[Segment], gaps: list[Gap], through: int
    ) -> None:
        runs = add_to_runs(known.runs, [each.segment_seq for each in segments])
        holes = [
            (each.segment_seq, each.bundle_index_first, each.bundle_count, each.reason)
            for each in gaps
            if not known.is_archived(each.segment_seq)
        ]
        self.streams[stream.core] = ArchivedStream(
            topic=stream.topic,
            core=stream.core,
            incarnation=stream.incarnation,
            archived_through=through,
            known_from=known.known_from if len(runs) <= KNOWN_RUNS_MAX else runs[-KNOWN_RUNS_MAX][0],
            runs=runs[-KNOWN_RUNS_MAX:],
            holes=(*known.holes, *holes)[-KNOWN_RUNS_MAX:],
        )


def _put_back(store: ObjectStore, stream: StreamKey, segment_seq: int) -> ArchiveRefused:
    return ArchiveRefused(
        f"{store.url}: segment {segment_seq} of topic {stream.topic}, core {stream.core}, is not the one that was archived under this "
        "number: was the data directory restored from an older copy? Give this node another name"
    )


def is_same(record: Segment, info: SegmentInfo) -> bool:
    """Whether a segment on the disk has the bundles of an archived one; compaction changes its size alone."""
    return (record.bundle_count, record.first_ingestion_unix_ns, record.last_ingestion_unix_ns) == (
        info.bundle_count,
        info.first_ingestion_ts_nanos,
        info.last_ingestion_ts_nanos,
    )


def add_to_runs(runs: tuple[tuple[int, int], ...], numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """The runs with rising numbers added behind them."""
    found = list(runs)
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


def read_stream(store: ObjectStore, writer: ManifestWriter, stream: StreamKey) -> ArchivedStream:
    """What the end of the manifest says of a stream."""
    ref = writer.head.stream(stream)
    if ref is None:
        return ArchivedStream(topic=stream.topic, core=stream.core, incarnation=stream.incarnation)
    last = ref.parts[-2:]
    parts = [read_part(store, each) for each in last]
    runs = add_to_runs((), sorted(each.segment_seq for part in parts for each in part.segments))
    holes = [
        (each.segment_seq, each.first_bundle, each.bundle_count, each.reason) for part in parts for each in part.holes
    ]
    return ArchivedStream(
        topic=stream.topic,
        core=stream.core,
        incarnation=stream.incarnation,
        archived_through=ref.archived_through,
        known_from=min((each.first_segment_seq for each in last), default=0) if len(ref.parts) > 2 else 0,
        runs=runs,
        holes=tuple(holes),
    )
