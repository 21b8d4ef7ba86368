"""How a simulated node is configured: small segments, a size cap that fits or is tight, and how many cores there may ever be."""

from __future__ import annotations

from dataclasses import dataclass

from quiver_actors.config import NodeSettings, RetentionSettings, SegmentSettings, TopicSettings, WalSettings
from quiver_actors.units import KIB, MILLISECOND_NS

TOPIC = "default"
CORES_MAX = 3
"""So many disks there are, whatever the number of workers."""
TIGHT_BYTES = 520 * KIB
SEGMENT_BYTES = 64 * KIB
"""Of a topic that is created at run time: as small as a command may make them. A cap must leave room for four a worker."""


@dataclass(frozen=True)
class Room:
    """How much of the disk the node may have, and what happens at its end."""

    cap_bytes: int = 0
    """0 = no cap."""
    policy: str = "backpressure"

    @property
    def is_tight(self) -> bool:
        """Only for topics with very small segments."""
        return 0 < self.cap_bytes < TIGHT_BYTES

    @property
    def is_wide(self) -> bool:
        """As many workers as there are disks may have it."""
        return not 0 < self.cap_bytes < CORES_MAX * 4 * SEGMENT_BYTES

    @property
    def drops(self) -> bool:
        """Bundles that somebody still needs may go, with notice."""
        return self.cap_bytes > 0 and self.policy == "drop_oldest"


SMALL_SEGMENTS = {
    "segment.target_size": f"{SEGMENT_BYTES // KIB}KiB",
    "segment.max_open_duration": "20ms",
    "wal.max_rotated_files": 3,
}


def node_settings(run_dir: str, cores: int, room: Room) -> NodeSettings:
    """Small segments, so that everything happens often."""
    topic = TopicSettings(
        name=TOPIC,
        segment=SegmentSettings(target_size_bytes=8 * KIB, max_open_duration_ns=20 * MILLISECOND_NS),
        wal=WalSettings(max_rotated_files=3),
        retention=RetentionSettings(size_cap_policy=room.policy),
    )
    return NodeSettings(
        data_dir=run_dir,
        run_dir=run_dir,
        cores=cores,
        arena_bytes=64 * KIB,
        size_cap_bytes=room.cap_bytes,
        topics={TOPIC: topic},
    )
