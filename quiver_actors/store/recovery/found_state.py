"""What one recovery has found in a directory, by part: every step of it reads and changes the same objects."""

from __future__ import annotations

from dataclasses import dataclass

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.recovery.findings import Findings
from quiver_actors.store.recovery.foreign import FoundForeign
from quiver_actors.store.recovery.found_segments import FoundSegments
from quiver_actors.store.recovery.numbers import NumbersUsed
from quiver_actors.store.recovery.producers import FoundProducers
from quiver_actors.store.recovery.subscribers import FoundSubscribers


@dataclass(frozen=True, slots=True)
class FoundState:
    """The parts of one recovery. Owner: the `Recovery` that made it."""

    disk: Disk
    paths: EnginePaths
    findings: Findings
    numbers: NumbersUsed
    sealed_segments: FoundSegments
    subscribers: FoundSubscribers
    producers: FoundProducers
    foreign: FoundForeign
