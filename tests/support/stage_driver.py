"""Drives the staged bundles of one engine in a test, on top of `engine_driver`."""

from __future__ import annotations

import pyarrow as pa

from quiver_actors.store.engine.events import StageDropped, StagePrepared, StagesPublished
from quiver_actors.store.staged.records import StageOrder
from quiver_actors.store.staged.stage import Stage
from tests.support.engine_driver import EngineDriver, numbered_batch

OWNER = "connection"
HOUR_NS = 3600 * 10**9


def order(txn_id: str = "t", partition: int = 0, attempt: int = 0, ttl_ns: int = HOUR_NS) -> StageOrder:
    return StageOrder(txn_id, 0, partition, attempt, "", ttl_ns)


class StageDriver(EngineDriver):
    """An engine whose transactions are driven too."""

    def restart(self) -> None:
        """Reopen the engine as after a kill: what is open is closed without a word."""
        self.engine.close()
        self.reopen()

    def begin(self, wanted: StageOrder | None = None, owner: object = OWNER) -> int:
        return self.engine.stages.begin(wanted or order(), owner)

    def push_staged(self, number: int, *bundles: int, owner: object = OWNER, rows: int = 5) -> None:
        """Push numbered bundles into a stage, one message each; written, not synced."""
        for bundle in bundles:
            self._push_staged(number, [{0: numbered_batch(bundle, rows)}], owner, item_count=bundle)

    def push_staged_together(self, number: int, *bundles: int, owner: object = OWNER) -> None:
        """Push the bundles into a stage, with one message for all of them."""
        self._push_staged(number, [{0: numbered_batch(bundle)} for bundle in bundles], owner, item_count=None)

    def push_staged_batches(self, number: int, *batches: pa.RecordBatch) -> None:
        """Push any batches into a stage."""
        self._push_staged(number, [{0: batch} for batch in batches], OWNER, item_count=None)

    def _push_staged(
        self, number: int, bundles: list[dict[int, pa.RecordBatch]], owner: object, item_count: int | None
    ) -> None:
        memory, push, schemas = self.layout(bundles, item_count=item_count)
        stages = self.engine.stages
        stage = stages.get(number, owner)
        if not stages.can_stage(stage, len(memory)):
            self.run_background()
        stages.stage(stage, memory, push, schemas)
        stages.write(stage)

    def prepare(self, number: int, owner: object = OWNER) -> Stage:
        """Prepare a stage and wait until it is."""
        stage = self.engine.stages.get(number, owner)
        self.engine.stages.prepare(stage)
        self.settle()
        assert StagePrepared(number) in self.events
        return stage

    def prepared(self, *bundles: int, wanted: StageOrder | None = None) -> int:
        """A prepared stage of numbered bundles."""
        number = self.begin(wanted)
        self.push_staged(number, *bundles)
        self.prepare(number)
        return number

    def publish(self, *numbers: int, txn_id: str = "t", drop_others: bool = False) -> int:
        """Publish and wait until it is done."""
        ticket = self.engine.stages.publish(txn_id, self.engine.incarnation, numbers, drop_others=drop_others)
        self.settle()
        assert not ticket or StagesPublished(ticket) in self.events
        return ticket

    def drop(self, *numbers: int, reason: str = "aborted") -> None:
        """Drop and wait until it is recorded."""
        self.engine.stages.drop(numbers, self.engine.incarnation, reason)
        self.settle()
        assert all(any(event == StageDropped(number, reason) for event in self.events) for number in numbers)

    def stored(self) -> list[int]:
        """The numbers of all bundles in sealed segments, in order."""
        found = []
        for info in self.engine.segments():
            reader = self.read(info.segment_seq)
            found += [reader.bundle(index)[0].column(0)[0].as_py() for index in range(info.bundle_count)]
        return found
