"""What a Push is besides a push: a part of a stage, or numbered bundles of an idempotent producer. Plain values."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from quiver_actors.protocol.messages import KeyedPush, Push, StagePush


class ToStage(NamedTuple):
    """The stage of this connection that the bundles go into."""

    stage: int

    def of(self, push: Push) -> Push:
        return StagePush(**msgspec.structs.asdict(push), stage=self.stage)


class Key(NamedTuple):
    """Who pushes them, and the number of the first."""

    producer: str
    first_number: int

    def of(self, push: Push) -> Push:
        return KeyedPush(**msgspec.structs.asdict(push), producer=self.producer, first_number=self.first_number)


Target: TypeAlias = ToStage | Key
