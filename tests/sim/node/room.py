"""How a simulated node is configured: small segments, a size cap that fits or is tight, and how many cores there may ever be."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from quiver_actors.base.config import NodeSettings, RetentionSettings, SegmentSettings, TopicSettings, WalSettings
from quiver_actors.base.units import KIB, MILLISECOND_NS
from tests.sim.node.model import FILLERS

TOPIC = "default"
CORES_MAX = 3
"""Number of disks, whatever the number of workers."""
GUEST_UID = 65534
"""Id of another user, who may use the topic."""
TIGHT_BYTES = 520 * KIB
SEGMENT_BYTES = 64 * KIB
"""Segment size of a topic created at run time, the smallest a command may set. A cap must leave room for four per worker."""


@dataclass(frozen=True)
class Room:
    """How much of the disk the node may have, and what happens at its end."""

    cap_bytes: int = 0
    """0 = no cap."""
    policy: str = "backpressure"
    share: float = 1.0
    """Part of the cap that each topic may have."""

    @property
    def topic_bytes(self) -> int:
        """Bytes that each topic may have."""
        return int(self.share * self.cap_bytes)

    @property
    def fillers(self) -> tuple[str, ...]:
        """Producers who bring the topic to its limit, where it has one of its own."""
        return FILLERS if self.share < 1 else ()

    @property
    def topic_values(self) -> dict[str, object]:
        """Settings of a topic that is made at run time."""
        return {**SMALL_SEGMENTS, "retention.cap_share": self.share} if self.is_wide else dict(SMALL_SEGMENTS)

    @property
    def is_tight(self) -> bool:
        """Only for topics with very small segments."""
        return 0 < self.cap_bytes < TIGHT_BYTES

    @property
    def is_wide(self) -> bool:
        """Whether the cap leaves room for as many workers as there are disks."""
        return not 0 < self.topic_bytes < CORES_MAX * 4 * SEGMENT_BYTES

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
        allowed_uids=(GUEST_UID,),
        segment=SegmentSettings(target_size_bytes=8 * KIB, max_open_duration_ns=20 * MILLISECOND_NS),
        wal=WalSettings(max_rotated_files=3),
        retention=RetentionSettings(size_cap_policy=room.policy, cap_share=room.share),
    )
    return NodeSettings(
        data_dir=run_dir,
        run_dir=run_dir,
        cores=cores,
        arena_bytes=64 * KIB,
        size_cap_bytes=room.cap_bytes,
        topics={TOPIC: topic},
    )


def any_room(random: Random) -> Room:
    """Return the room that a seed wants."""
    if random.random() < 0.5:
        return Room()
    cap_bytes = random.choice((152, 160, 200, TIGHT_BYTES // KIB, 1500, 6000)) * KIB
    policy = random.choices(("backpressure", "drop_oldest", "reject"), (4, 4, 2))[0]
    # The topic has as much room as without a share; others may have the same.
    return Room(2 * cap_bytes, policy, 0.5) if random.random() < 0.4 else Room(cap_bytes, policy)
