"""The worker that an idempotent producer pushes to. Pure; clients and workers call the same function.

The place of a producer follows from its name and the number of workers. Whenever a node starts with another number of workers, its data
directory begins a new generation (`node.core_generation`): what the producer has stored may lie in the directory of another core
then, and is carried to the new place before the producer stores anything there (`store.engine.carrying`).
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash


def place_of(key: bytes, count: int) -> int:
    """Which of `count` workers, from 0 on, a key belongs to."""
    return int(xxhash.xxh3_64_intdigest(key) % count)


class ProducerHomes(NamedTuple):
    """The places of one generation."""

    cores: int = 0
    """Number of workers; 0: nobody asks."""
    generation: int = 0
    """0: the data directory has never had another number of workers."""

    def is_home(self, producer: str, core: int) -> bool:
        """Whether that producer pushes to that core."""
        return not self.cores or self.home_of(producer) == core

    def home_of(self, producer: str) -> int:
        """The core that it pushes to, of nodes with workers."""
        return place_of(producer.encode(), self.cores)


STANDING_ALONE = ProducerHomes()
"""Homes of an engine without a node: every producer pushes to it, and no other core has anything."""
