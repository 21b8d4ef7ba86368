"""The outcome of a recovery, from which an engine starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.store.files.cold_list import ColdList
from quiver_actors.store.files.core_file import CoreFile
from quiver_actors.store.files.foreign_record import ForeignRecord
from quiver_actors.store.recovery.missing_logs import MissingLog
from quiver_actors.store.staged.keys import Windows
from quiver_actors.store.staged.recovery import RecoveredStages
from quiver_actors.store.subscriber.registry import SubscriberRegistry


@dataclass(slots=True)
class Recovered:
    """State on the disk from which an engine starts."""

    core: CoreFile
    """The content of `quiver.core` on disk now: numbers are reserved, and no clean shutdown is recorded."""
    next_segment_seq: int
    next_sequence: int
    position: int
    """End of everything logged so far: the next log starts here."""
    next_rotation: int
    segments: dict[int, SegmentInfo]
    registry: SubscriberRegistry
    missing: list[int] = field(default_factory=list)
    """Segments that progress waits for and whose files are gone."""
    damaged: dict[int, str] = field(default_factory=dict)
    """Segments whose footer cannot be read or believed, and why: the files are where they were, to be rescued."""
    quarantined: int = 0
    has_quarantine: bool = True
    """Something may be in quarantine, also from before."""
    notes: list[str] = field(default_factory=list)
    stages: RecoveredStages = field(default_factory=RecoveredStages)
    """The prepared stages."""
    windows: Windows = field(default_factory=Windows)
    """Windows of idempotent producers, as they are in their file."""
    foreign: ForeignRecord = field(default_factory=ForeignRecord)
    """Segments of other writers, as they are in their record."""
    cold: ColdList | None = None
    """The cold segments, each of them among `segments`; None: there never were any."""
    copied_segments: tuple[int, ...] = ()
    """Hot segments that the list of cold segments on disk names, too: there is a copy of each on the cold disk."""
    missing_logs: list[MissingLog] = field(default_factory=list)
    """Logs that are gone, whose segments there will never be: everybody is told by durable notices."""
