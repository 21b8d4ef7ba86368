"""A head of a manifest that is lost or damaged, built again from the parts, the segments and the states that lie in the store.

Guarantees:
- Nothing is deleted here, and nothing is replaced but the damaged head itself, by compare-and-swap. A head that is whole is never touched.
- Whoever owned the archive is fenced: the new head belongs to nobody until a data directory takes over. Its epoch and its commit are
  beyond all that the store names, so no later object can be taken for an earlier one.
- What could not be found is a hole in the manifest, or named to the operator.

A node of that name may run meanwhile: it is fenced as soon as the head is there. Objects that it deletes at that moment are looked for
again before the head is written.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from quiver_actors.archive.garbage import shortened
from quiver_actors.archive.headless import is_earlier, newest_commit
from quiver_actors.archive.keys import (
    PARTS_NAME,
    STATES_NAME,
    StreamKey,
    commit_of_key,
    head_key,
    part_key,
    stream_of_key,
)
from quiver_actors.archive.manifest import (
    PACKED_VERSION,
    PLAIN_VERSION,
    Head,
    Hole,
    Owner,
    Part,
    PartRef,
    Segment,
    StateRef,
    StreamRef,
    Unswept,
    decode_head,
    decode_part,
    encode,
    key_of,
    part_ref,
)
from quiver_actors.archive.manifest_store import PART_ROWS_MAX, random_id
from quiver_actors.archive.node_state import NodeState, decode_state
from quiver_actors.archive.staged_bundles import stream_of
from quiver_actors.archive.stream_evidence import FoundStream, StreamEvidence
from quiver_actors.base.checksum import crc32
from quiver_actors.errors import FormatError, UnsupportedVersion
from quiver_actors.store.files.topic_list import CATALOGUE_NAME, decode_catalogue
from quiver_actors.store.objects.creation import create_once
from quiver_actors.store.objects.errors import ArchiveError, ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectChanged, ObjectExists, ObjectInfo, ObjectStore, Version

T = TypeVar("T")
AHEAD = 1 << 32
"""How far commit and epoch are ahead of all that is named: more than was lost with the head."""
_NUMBER = r'"%s":(\d{1,15})[,}]'


class FoundState(NamedTuple):
    """The newest state of the node that is whole."""

    ref: StateRef
    state: NodeState


class LostHead(NamedTuple):
    """Damage of a head, or its absence."""

    problem: str
    version: Version | None
    """The version that is replaced; None: there is no head."""
    remains: bytes = b""


class FoundHead(NamedTuple):
    """A head as it can be built again. Nothing is written yet."""

    node: str
    lost: LostHead
    streams: tuple[FoundStream, ...]
    state: FoundState | None
    commit: int
    epoch: int
    superseded: tuple[str, ...]
    """Parts that were read, and earlier states: the new head names others in their place, and its owner deletes these some hours later."""
    problems: tuple[str, ...]
    """What an operator should know, of all streams."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is known to be lost."""
        return self.state is not None and not self.problems and not any(each.lost_count for each in self.streams)


def lost_head(store: ObjectStore, node: str) -> LostHead | None:
    """Return what is wrong with the head of a node; None if it is whole.

    Raises:
        UnsupportedVersion: a newer program has written it. ArchiveError: the store cannot be read.
    """
    newest = newest_commit(store, node)
    for _ in range(2):  # the way may have damaged it
        found = store.get(head_key(node))
        if found is None:
            return LostHead("it is gone", None)
        try:
            commit = decode_head(found.content).commit
            if not is_earlier(commit, newest):
                return None
            problem = LostHead(
                f"it is of commit {commit}, and parts of commit {newest} lie beside it: somebody has put an earlier one back",
                found.version,
                found.content,
            )
        except UnsupportedVersion:
            raise
        except FormatError as error:
            problem = LostHead(str(error), found.version, found.content)
    return problem


def find_head(store: ObjectStore, node: str, lost: LostHead) -> FoundHead | None:
    """Look what a lost head must have named; None if the store has nothing of such a node. Changes nothing.

    Raises:
        UnsupportedVersion: a newer program has written something of it. ArchiveError: the store cannot be read.
    """
    objects = {info.key: info for info in store.objects(node)}
    problems: list[str] = []
    parts = _parts_by_stream(store, node, objects, problems)
    state = _newest_state(store, node, objects, problems)
    own: dict[StreamKey, list[str]] = {key: [] for key in parts}
    for each in objects:
        if (key := stream_of_key(node, each)) is not None:
            own.setdefault(key, []).append(each)
    if not own and state is None:
        return None
    streams = [StreamEvidence(store, node, key, objects).found(parts.get(key, ()), own[key]) for key in sorted(own)]
    streams = [_with_facts(each, state) for each in streams if each.segments or each.holes]
    named = max([*map(commit_of_key, objects), *_numbers_in(lost.remains, "commit"), 0])
    epochs = _numbers_in(lost.remains, "epoch")
    return FoundHead(
        node,
        lost,
        tuple(streams),
        state,
        named + AHEAD,
        max([named, *epochs]) + AHEAD,
        (*(key for keys in parts.values() for key in keys), *_earlier_states(objects, state)),
        (*problems, *_stream_problems(streams, state)),
    )


def write_head(store: ObjectStore, found: FoundHead) -> Head:
    """Write parts for all that was found, and the head that names them.

    Raises:
        ArchiveUnavailable: the head has changed since, or something that it would name has gone: look again.
        ArchiveError: the store did not take it. Nothing that is there was changed.
    """
    streams = tuple(_written(store, found, each) for each in found.streams)
    is_packed = any(each.unswept for each in streams) or any(
        row.pack for each in found.streams for row in each.segments
    )
    owner = Owner(
        epoch=found.epoch, directory=f"repair-{os.urandom(4).hex()}", start=random_id(), since_unix_ns=time.time_ns()
    )
    head = Head(
        version=PACKED_VERSION if is_packed else PLAIN_VERSION,
        node=found.node,
        owner=owner,
        commit=found.commit,
        commit_id=random_id(),
        streams=streams,
        garbage=shortened(store, found.node, found.commit, found.superseded),
        state=None if found.state is None else found.state.ref,
    )
    _check_there(store, found)
    _put_head(store, found.lost.version, head)
    return head


# --- looking -------------------------------------------------------------------------------------------------------------


def _newest_first(objects: Iterable[str], directory: str) -> list[str]:
    found = [key for key in objects if key.startswith(f"{directory}/") and commit_of_key(key) >= 0]
    return sorted(found, key=lambda key: (commit_of_key(key), key), reverse=True)


def _parts_by_stream(
    store: ObjectStore, node: str, objects: Mapping[str, ObjectInfo], problems: list[str]
) -> dict[StreamKey, list[str]]:
    """The keys of the parts that can be read, the newest first, by stream."""
    found: dict[StreamKey, list[str]] = {}
    for key, _, part in _readable(store, _newest_first(objects, f"{node}/{PARTS_NAME}"), decode_part, problems):
        found.setdefault(StreamKey(part.topic, part.incarnation, part.core), []).append(key)
    return found


def _readable(
    store: ObjectStore, keys: Iterable[str], decode: Callable[[bytes], T], problems: list[str]
) -> Iterator[tuple[str, bytes, T]]:
    """Yield those of some objects that are there and can be read: the key, the content, and what it says.

    Args:
        problems: gets a text for each of the others.

    Raises:
        UnsupportedVersion: a newer program has written one.
    """
    for key in keys:
        found = store.get(key)
        if found is None:
            continue
        try:
            decoded = decode(found.content)
        except UnsupportedVersion:
            raise
        except FormatError as error:
            problems.append(f"{key} is not used: {error}")
            continue
        yield key, found.content, decoded


def _newest_state(
    store: ObjectStore, node: str, objects: Mapping[str, ObjectInfo], problems: list[str]
) -> FoundState | None:
    keys = _newest_first(objects, f"{node}/{STATES_NAME}")
    for key, content, state in _readable(store, keys, decode_state, problems):
        ref = StateRef(key=key, size_bytes=len(content), crc32=crc32(content), taken_unix_ns=state.taken_unix_ns)
        return FoundState(ref, state)
    problems.append(
        "no state is there: until a node has uploaded one again, nothing can be restored (`quiver archive get` takes segments out)"
    )
    return None


def _earlier_states(objects: Iterable[str], state: FoundState | None) -> list[str]:
    keys = [] if state is None else [key for key in objects if f"/{STATES_NAME}/" in key]
    return [key for key in keys if state is not None and commit_of_key(key) < commit_of_key(state.ref.key)]


def _with_facts(stream: FoundStream, state: FoundState | None) -> FoundStream:
    """The stream with the slots and the column of event times that the state has of its topic, where no part says them."""
    content = None if state is None else state.state.files.get(CATALOGUE_NAME)
    if content is None or (stream.slots is not None and stream.event_time is not None):
        return stream
    try:
        entry = decode_catalogue(content).topics.get(stream.key.topic)
    except FormatError:
        return stream
    if entry is None:
        return stream
    slots = dict(entry.settings.slots) if stream.slots is None else stream.slots
    event_time = entry.settings.event_time if stream.event_time is None else stream.event_time
    return stream._replace(slots=slots, event_time=event_time)


def _numbers_in(remains: bytes, name: str) -> list[int]:
    """The numbers of that name in what is left of a head."""
    return [int(each) for each in re.findall((_NUMBER % name).encode(), remains)]


def _stream_problems(streams: Iterable[FoundStream], state: FoundState | None) -> Iterator[str]:
    prepared = {} if state is None else {stream_of(each): each.prepared for each in state.state.engines}
    for each in streams:
        place = f"topic {each.key.topic}, core {each.key.core}"
        yield from (f"{place}: {problem}" for problem in each.problems)
        if each.slots is None:
            yield f"{place}: nothing says which slots the topic has: read them by number"
        if each.unnamed and prepared.get(each.key):
            stages = ", ".join(str(stage.number) for stage in prepared[each.key])
            yield (
                f"{place}: segments {min(each.unnamed)} to {max(each.unnamed)} are named by no part, and may hold bundles of the stages "
                f"{stages}, which the state calls prepared: look before such a stage is published after a restore"
            )


# --- writing -------------------------------------------------------------------------------------------------------------


def _written(store: ObjectStore, found: FoundHead, stream: FoundStream) -> StreamRef:
    refs = [_put_part(store, found, part) for part in _parts_of(stream)]
    return StreamRef(
        topic=stream.key.topic,
        incarnation=stream.key.incarnation,
        core=stream.key.core,
        archived_through=max(ref.last_segment_seq for ref in refs),
        # Whoever is owed one of these would wait for it, as for a segment of another archive.
        expired_through=min(ref.first_segment_seq for ref in refs) - 1,
        parts=tuple(refs),
        slots=stream.slots,
        event_time=stream.event_time,
        unswept=tuple(
            Unswept(key=key, first_segment_seq=first, last_segment_seq=last)
            for key, first, last in stream.packs_to_sweep
        ),
    )


def _parts_of(stream: FoundStream) -> Iterator[Part]:
    """Parts of up to about `PART_ROWS_MAX` rows; all rows of one segment number are in one."""
    found: list[Segment | Hole] = [*stream.segments, *stream.holes]
    rows = sorted(found, key=lambda row: row.segment_seq)
    first = 0
    while first < len(rows):
        end = min(first + PART_ROWS_MAX, len(rows))
        while end < len(rows) and rows[end].segment_seq == rows[end - 1].segment_seq:
            end += 1
        yield _part(stream, rows[first:end])
        first = end


def _part(stream: FoundStream, rows: list[Segment | Hole]) -> Part:
    segments = tuple(row for row in rows if isinstance(row, Segment))
    named = {each for segment in segments for each in segment.schema_fingerprints or ()}
    return Part(
        version=PACKED_VERSION if any(segment.pack is not None for segment in segments) else PLAIN_VERSION,
        topic=stream.key.topic,
        incarnation=stream.key.incarnation,
        core=stream.key.core,
        segments=segments,
        holes=tuple(row for row in rows if isinstance(row, Hole)),
        schemas={name: message for name, message in stream.schemas.items() if name in named},
        slots=stream.slots,
        event_time=stream.event_time,
    )


def _put_part(store: ObjectStore, found: FoundHead, part: Part) -> PartRef:
    content = encode(part)
    key = part_key(found.node, found.commit, os.urandom(4).hex())
    create_once(store, key, content)
    return part_ref(part, key, content, crc32(content))


def _check_there(store: ObjectStore, found: FoundHead) -> None:
    """Raises ArchiveUnavailable: an object that the head would name is gone."""
    there = {info.key for info in store.objects(found.node)}
    wanted = {key_of(found.node, each.key, row) for each in found.streams for row in each.segments}
    if found.state is not None:
        wanted.add(found.state.ref.key)
    if gone := sorted(wanted - there):
        raise ArchiveUnavailable(
            f"{store.url}: {gone[0]} was deleted while the manifest was looked for ({len(gone):,} objects were): if the node runs, stop "
            "it, and run the same command again"
        )


def _put_head(store: ObjectStore, version: Version | None, head: Head) -> None:
    key, content = head_key(head.node), encode(head)
    try:
        if version is None:
            create_once(store, key, content)
        else:
            store.replace(key, content, version)
    except (ObjectExists, ObjectChanged, ArchiveUnavailable) as error:
        _raise_unless_written(store, key, content, error)


def _raise_unless_written(store: ObjectStore, key: str, content: bytes, error: ArchiveError) -> None:
    """Raise what a write that failed means, unless it has had its effect: its answer was lost then."""
    found = store.get(key)
    if found is None or found.content != content:
        raise ArchiveUnavailable(
            f"{store.url}: {key} was written by somebody else meanwhile, or the store did not take it: look again. {error}"
        ) from error
