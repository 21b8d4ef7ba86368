"""The settings of a node and of its topics as one frozen tree, with the defaults.

Sizes are integer bytes and durations integer nanoseconds here; `table` says how each is spelled in a file.
"""

from __future__ import annotations

import socket

import msgspec

from quiver_actors.default_run_dir import default_run_dir
from quiver_actors.model import DEFAULT_TOPIC, SEGMENT_BUNDLES_MAX, SlotTable
from quiver_actors.units import GIB, MIB, MILLISECOND_NS, SECOND_NS

DURABILITY_MODES = ("wal", "segment_only")
COMPACTION_MODES = ("auto", "off")
NODE_USER = -1
"""As the owner of a topic: the user that the node runs as."""


class SegmentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When an open segment is sealed."""

    target_size_bytes: int = 32 * MIB
    max_open_duration_ns: int = 5 * SECOND_NS
    max_stream_count: int = 512
    max_bundle_count: int = SEGMENT_BUNDLES_MAX
    compaction: str = "auto"
    """`auto`: sealed segments are rewritten in the background where it pays; `off`: only by `quiver compact`."""


class WalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The log of each topic and core."""

    flush_interval_ns: int = 0
    """0 = acknowledge after the covering fdatasync; above 0 = after the write, synced by a timer of that interval."""
    max_size_bytes: int = 4 * GIB
    """Of all logs of one engine that are not sealed yet, the active one included; at the limit pushes wait."""
    max_rotated_files: int = 10
    """Rotated files whose seal lags; at the limit pushes wait."""


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept free, and how long what is kept."""

    min_free_bytes: int = 64 * MIB
    """Low-water mark of the file system: no new log file is begun below it, so that everything else still has room."""
    size_cap_policy: str = "backpressure"
    """At the node's size cap: pushes wait, are refused at once, or the oldest bundles that somebody still needs go."""
    cap_share: float = 1.0
    """Part of the node's size cap that the topic may have on all cores together, above 0 and up to 1."""
    max_age_ns: int = 0
    """Segments whose newest bundle is older go, needed or not; 0 = never."""
    steady_state_headroom_bytes: int = 0
    """Of each topic and core: so much of the newest segments that nobody needs any more is kept."""
    early_seal: bool = True
    """Over the soft limit open segments are sealed, so that they can be processed or go."""
    quarantine_cap_bytes: int = GIB
    """Of damaged files that one engine keeps: over it the oldest are deleted, but never the newest."""


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that holds for one topic, on every core."""

    name: str = DEFAULT_TOPIC
    durability: str = "wal"
    slots: dict[str, int] = {}
    segment: SegmentSettings = SegmentSettings()
    wal: WalSettings = WalSettings()
    retention: RetentionSettings = RetentionSettings()
    progress_flush_interval_ns: int = 50 * MILLISECOND_NS
    orphan_ttl_ns: int = 0
    """A subscriber that no connection is attached to for so long is dropped; 0 = never."""
    owner_uid: int = NODE_USER
    """Who may change and delete the topic, beside the node's user and root."""
    allowed_uids: tuple[int, ...] = ()
    """Other users that may push to it and subscribe."""
    priority: int = 0
    """A worker serves topics of a higher priority first, turn by turn."""

    def slot_table(self) -> SlotTable:
        return SlotTable(self.slots)

    def may_use(self, uid: int) -> bool:
        """Whether a user that is neither the node's own nor root may push to the topic and subscribe."""
        return uid in self.allowed_uids or uid == self.owner_uid


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    format: str = "human"
    """One of `supervisor.log.LOG_FORMATS`."""
    level: str = "info"
    """One of `supervisor.log.LOG_LEVELS`."""


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What users other than the node's own may have; per user and, but for topics, worker."""

    group: str = ""
    """Whose members reach the sockets; empty: nobody but the node's user and root."""
    max_connections: int = 64
    max_arena_bytes: int = 512 * MIB
    max_subscribers: int = 64
    max_topics: int = 0
    """That it owns; 0: it creates none."""


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that holds for a node, and what holds for topics of which nothing else is said."""

    data_dir: str = "./quiver_data"
    run_dir: str = ""
    """Where sockets and the counters page are found; empty: `default_run_dir()`."""
    node: str = ""
    """What the node is called where there are several, for ever; empty: the host's name."""
    cores: int = 0
    """Number of workers; 0 = one per core of the affinity mask."""
    size_cap_bytes: int = 0
    """Of everything on disk below `data_dir`; 0 = none."""
    arena_bytes: int = 64 * MIB
    """Shared-memory ring per producer connection."""
    log: LogSettings = LogSettings()
    access: AccessSettings = AccessSettings()
    topics: dict[str, TopicSettings] = {}

    def resolved_run_dir(self) -> str:
        return self.run_dir or default_run_dir()

    def node_name(self) -> str:
        return self.node or socket.gethostname()

    def all_topics(self) -> dict[str, TopicSettings]:
        """The configured topics, `default` first and always there."""
        found = {DEFAULT_TOPIC: self.topics.get(DEFAULT_TOPIC, TopicSettings())}
        found.update(self.topics)
        return found
