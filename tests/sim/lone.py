"""Pushes that travel alone in a simulated run: the short way through the engine, taken where nothing else is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiver_actors.store.encoding.lone import LoneEntry, lone_entry
from quiver_actors.store.encoding.streams import EncodedStream, StreamTable
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.lone import LoneStream
from tests.sim.bundles import plain

if TYPE_CHECKING:
    from tests.sim.world import World


class LonePushes:
    """Owner: one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._streams = StreamTable(world.settings.name)
        self._number = 0
        """The number of the last bundle. These numbers go down, because those of other pushes go up."""

    def push(self) -> None:
        """Push one bundle alone, or some to a subscriber that waits for each of them."""
        world = self._world
        self._push()
        for _ in range(world.random.choice((0, 0, 4))):
            world.jobs.finish_commits()
            if world.has_ended or not world.subscribing.catch_up():
                return
            self._push()

    def _push(self) -> None:
        """Push one bundle, after the commits that are under way; nothing happens if the engine sends it the general way."""
        world = self._world
        world.jobs.finish_commits()
        if world.has_ended or not world.takes_bundles:
            return
        self._number -= 1
        slots = plain(self._number, world.random)
        lone = lone_entry(slots[0], 0, self._streams, None)
        assert lone is not None
        intake = world.engine.intake
        commit = intake.take_lone(memoryview(lone.entry), _stream(lone.stream), *_claims(lone))
        if commit is None:
            return
        world.note_pushed((intake.segment_seq, intake.bundle_index), intake.sequence, slots)
        if commit.error is None:
            world.jobs.take_commit(commit)
        else:
            assert world.has_faults


def _stream(stream: EncodedStream) -> LoneStream:
    return LoneStream(StreamSchema(0, stream.fingerprint, stream.message))


def _claims(lone: LoneEntry) -> tuple[int, int, int, int, int]:
    return lone.crc, lone.row_count, lone.metadata_bytes, lone.body_bytes, lone.item_count
