"""The contents of a restored data directory: which segments come back, and what is lost with the dead node. Only reads the archive.

| a segment that the state names                       | after the restore                                                       |
|------------------------------------------------------|-------------------------------------------------------------------------|
| archived                                             | there again, if the dead node still had it on its disk                  |
| a hole in the manifest                               | lost before; its notices are in the state                               |
| sealed, not archived                                 | lost: as many bundles as the state says, told to who had not done them  |
| not sealed, not archived                             | lost: at least so many bundles, as more may have come since             |
| behind all of these                                  | nobody knows: told as a loss of unknown size, under the next number     |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from quiver_actors.archive.headless import check_newest, newest_commit, no_archive
from quiver_actors.archive.manifest import Head, Owner, Segment, StreamRef
from quiver_actors.archive.manifest_store import read_head, read_part, read_state
from quiver_actors.archive.node_state import EngineState, KnownSegment, NodeState, PreparedStage, decode_state
from quiver_actors.archive.restoring.stages import (
    LostStage,
    carried_stages,
    lost_publishes,
    lost_stages,
    staged_bytes,
    without_archived,
)
from quiver_actors.archive.staged_bundles import stream_of
from quiver_actors.base.core_dirs import RETIRED_NAME
from quiver_actors.errors import UsageError
from quiver_actors.store.files.topic_list import CATALOGUE_NAME, decode_catalogue
from quiver_actors.store.objects.object_store import ObjectStore


class Loss(NamedTuple):
    """Bundles of one segment that died with the node."""

    segment_seq: int
    bundle_count: int
    """The state knew of so many; 0: nobody knows how many, nor whether there were any."""
    is_sealed: bool
    """Whether it cannot have been more."""


class EnginePlan(NamedTuple):
    """One topic on one core."""

    state: EngineState
    segments: list[Segment]
    """Archived segments to be fetched, by rising number."""
    losses: list[Loss]
    archived_through: int
    position_end: int
    """Log position behind everything that is archived."""
    keys_from: int
    """Segments from this number on may hold keys of producers that the state does not know."""
    lost_publishes: list[int]
    """The numbers of published stages of which something is lost."""

    @property
    def is_retired(self) -> bool:
        """Whether the directory is what is left of a core that the node had no more: it holds numbers, and no bundles."""
        return f"/{RETIRED_NAME}/" in self.state.directory

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments and of the stages that come back."""
        return sum(each.size_bytes for each in self.segments) + staged_bytes(self.state)


class Plan(NamedTuple):
    """What comes back of a node: its engines, and the topics that come back empty."""

    head: Head
    state: NodeState
    engines: list[EnginePlan]
    bare_topics: list[str]
    """Topics whose bundles were not archived: they come back with their settings alone."""

    @property
    def owner(self) -> Owner:
        """The present owner of the archive."""
        return self.head.owner

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments and stages."""
        return sum(each.size_bytes for each in self.engines)

    def carried_stages_without(self, lost: Iterable[LostStage]) -> list[tuple[EngineState, PreparedStage]]:
        """Prepared stages of transactions that come back; `lost` are those of which the restore has found that they do not."""
        gone = {(each.stream, each.stage.number) for each in lost}
        found = [(each.state, stage) for each in self.engines for stage in carried_stages(each.state)]
        return [(state, stage) for state, stage in found if (stream_of(state), stage.number) not in gone]

    @property
    def lost_stages(self) -> list[LostStage]:
        """Prepared stages that do not."""
        return [lost for each in self.engines for lost in lost_stages(each.state)]


def read_plan(store: ObjectStore, node: str, directory: str) -> Plan:
    """Read from the archive of a node what a restore needs.

    Args:
        directory: identity of the directory that is restored into: it may have begun with it before.

    Raises:
        UsageError: there is no such archive, or it has no state.
        FormatError: the manifest or the state is damaged, or newer than this program. ArchiveError: the store cannot be read, or an earlier
            head was put back.
    """
    newest = newest_commit(store, node)
    head = read_head(store, node)
    if head is None:
        raise no_archive(store, node)
    check_newest(store, node, head.commit, newest)
    if head.state is None:
        raise UsageError(
            f"{store.url}: the archive of node {node!r} holds segments and no state (an older program made it): nothing says which "
            "topics and subscribers there were. `quiver archive get` takes the segments out"
        )
    state = decode_state(read_state(store, head.state))
    is_own = bool(directory) and state.restored_into == directory
    engines = [plan_engine(store, head, each, is_own=is_own) for each in state.engines]
    archived = {each.topic for each in state.engines}
    catalogue = state.files.get(CATALOGUE_NAME)
    topics = decode_catalogue(catalogue).topics if catalogue is not None else {}
    return Plan(head, state, engines, sorted(topics.keys() - archived))


def plan_engine(store: ObjectStore, head: Head, engine: EngineState, *, is_own: bool) -> EnginePlan:
    """Decide about one topic on one core. Raises as `read_plan`.

    Args:
        is_own: the state was made for this very restore, which was cut off.
    """
    stream = next((each for each in head.streams if each.key == (engine.topic, engine.incarnation, engine.core)), None)
    through = -1 if stream is None else stream.archived_through
    engine = without_archived(engine, through)
    known = {each.segment_seq: each for each in engine.unarchived}
    numbers = sorted({*_numbers(engine), *known})
    first = min([*numbers, engine.next_segment_seq if engine.next_segment_seq >= 0 else through + 1])
    segments, holes, position_end = _recorded(store, stream, first)
    there = {each.segment_seq for each in segments} | holes
    missing = [number for number in numbers if number not in there]
    losses = [_loss(number, known.get(number)) for number in missing]
    if not losses or losses[-1].bundle_count or losses[-1].segment_seq <= through:
        # Bundles may have come after the state was taken, of which nothing tells.
        end = max([engine.next_segment_seq, through + 1, *(number + 1 for number in numbers)])
        losses.append(Loss(end, 0, is_sealed=False))
    losses += [Loss(number, 0, is_sealed=False) for number in _open_ends(engine, is_own=is_own) if number > through]
    unsealed = [each.segment_seq for each in engine.unarchived if not each.is_sealed]
    keys_from = min([*unsealed, engine.next_segment_seq]) if engine.next_segment_seq >= 0 else first
    unpublished = lost_publishes(engine, through, is_own=is_own)
    return EnginePlan(engine, segments, losses, through, position_end, keys_from, unpublished)


def _loss(number: int, found: KnownSegment | None) -> Loss:
    return Loss(number, 0, is_sealed=True) if found is None else Loss(number, found.bundle_count, found.is_sealed)


def _open_ends(engine: EngineState, *, is_own: bool) -> tuple[int, ...]:
    return engine.open_ends if is_own or engine.began_at < 0 else (*engine.open_ends, engine.began_at)


def _numbers(engine: EngineState) -> Iterator[int]:
    for first, last in engine.on_disk:
        yield from range(first, last + 1)


def _recorded(store: ObjectStore, stream: StreamRef | None, first: int) -> tuple[list[Segment], set[int], int]:
    """The archived segments from a number on, the numbers of holes, and the log position behind everything that is archived."""
    segments: list[Segment] = []
    holes: set[int] = set()
    position_end = 0
    parts = () if stream is None else stream.parts
    for ref in parts:
        if ref.last_segment_seq < first and ref is not parts[-1]:
            continue
        part = read_part(store, ref)
        segments += [each for each in part.segments if each.segment_seq >= first]
        holes |= {each.segment_seq for each in part.holes}
        position_end = max([position_end, *(each.position_end for each in part.segments)])
    return segments, holes - {each.segment_seq for each in segments}, position_end
