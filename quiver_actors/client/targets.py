"""The target of a Push beside its topic: a stage, or the numbers of an idempotent producer. Plain values."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from quiver_actors.base.protocol.messages import KeyedPush, Push, StagePush


class ToStage(NamedTuple):
    """The stage of this connection that the bundles go into."""

    stage: int

    def of(self, push: Push) -> Push:
        """Return the push as a push into the stage."""
        return StagePush(**msgspec.structs.asdict(push), stage=self.stage)


class Key(NamedTuple):
    """The idempotent producer of numbered bundles, and the number of the first bundle."""

    producer: str
    first_number: int

    def of(self, push: Push) -> Push:
        """Return the push as a push under the producer's key; its first bundle has number `first_number`."""
        return KeyedPush(**msgspec.structs.asdict(push), producer=self.producer, first_number=self.first_number)


Target: TypeAlias = ToStage | Key
