"""The schemas of what a topic has stored, and the one to which all of a slot conform."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import SchemaInfo
from quiver_actors.base.widening import widen
from quiver_actors.client.segments import BundleReader
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import FormatError, InvalidBundle, NotStored
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal.entry_reader import EntryReader


class HeldSchema(NamedTuple):
    """One schema of a slot, and who has it on one core."""

    slot_id: int
    message: bytes
    """The encapsulated Arrow schema message."""
    where: str
    """The segments that have it, for people."""

    @property
    def schema(self) -> pa.Schema:
        """The schema. Raises FormatError: the message cannot be decoded."""
        try:
            return pa.ipc.read_schema(pa.py_buffer(self.message))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"a schema in {self.where} cannot be decoded: {error}") from error


def held_schema(core: int, info: SchemaInfo) -> HeldSchema:
    """What a worker says of a schema."""
    some = [*info.some_segments, *info.open_segments]
    count = info.segment_count + len(info.open_segments)
    rest = f" and {count - len(some):,} more" if count > len(some) else ""
    where = f"segment{'s' * (count > 1)} {', '.join(map(str, some))}{rest} of core {core}"
    return HeldSchema(info.slot_id, info.message, where)


def schemas_in(core: int, segment_seq: int, reader: BundleReader) -> Iterator[HeldSchema]:
    """The schemas of one segment, by a look at it; of one that is damaged what can be read."""
    where = f"segment {segment_seq} of core {core}"
    for slot_id, message in _messages_in(reader):
        yield HeldSchema(slot_id, message, where)


def _messages_in(reader: BundleReader) -> Iterator[tuple[int, bytes]]:
    if isinstance(reader, SegmentReader):
        for stream in reader.streams:
            with contextlib.suppress(FormatError):
                yield stream.slot_id, bytes(reader.schema(stream.stream_id).serialize())
        return
    for index in range(reader.bundle_count):
        # What is damaged is told to whoever reads its rows.
        with contextlib.suppress(FormatError):
            if isinstance(reader, EntryReader):
                yield from reader.schema_messages(index).items()


def by_slot(found: Iterable[HeldSchema]) -> dict[int, list[HeldSchema]]:
    """The schemas of each slot, without the envelope."""
    slots: dict[int, list[HeldSchema]] = {}
    for held in found:
        if held.slot_id != ENVELOPE_SLOT:
            slots.setdefault(held.slot_id, []).append(held)
    return dict(sorted(slots.items()))


def widened(found: Iterable[HeldSchema]) -> pa.Schema:
    """The one schema to which all of these conform. Raises SchemaConflict, which says who has what."""
    held = list(found)
    return widen([each.schema for each in held], [each.where for each in held])


def of_slot(found: Iterable[HeldSchema], slots: TopicSlots, slot: str | int | None) -> pa.Schema:
    """The one schema of a slot; None: the only one that there is. Raises as `Client.schema`."""
    held = by_slot(found)
    if slot is not None:
        slot_id = slots.table.resolve(slot)
        held = {slot_id: held[slot_id]} if slot_id in held else {}
    if not held:
        what = "nothing" if slot is None else f"nothing in slot {slot!r}"
        raise NotStored(f"topic {slots.topic!r} has {what} stored: its columns are not known")
    if len(held) > 1:
        raise InvalidBundle(
            f"topic {slots.topic!r} has bundles with the slots {list(held)}: name one, schema(topic, slot)"
        )
    (schemas,) = held.values()
    return widened(schemas)
