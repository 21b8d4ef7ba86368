"""The settings of a node and of its topics as one frozen tree, with the defaults.

Sizes are integer bytes and durations integer nanoseconds here; `table` says how each is spelled in a file.
"""

from __future__ import annotations

import socket

import msgspec

from quiver_actors.base.default_run_dir import default_run_dir
from quiver_actors.base.model import DEFAULT_TOPIC, SEGMENT_BUNDLES_MAX, SlotTable
from quiver_actors.base.units import GIB, MIB, MILLISECOND_NS, SECOND_NS

DURABILITY_MODES = ("wal", "segment_only", "archived")
COMPACTION_MODES = ("auto", "off")
NODE_USER = -1
"""Owner of a topic that belongs to the user the node runs as."""


class SegmentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When an open segment is sealed."""

    target_size_bytes: int = 32 * MIB
    max_open_duration_ns: int = 600 * SECOND_NS
    max_unsynced_duration_ns: int = 5 * SECOND_NS
    """The limit also holds for a topic with `durability = "segment_only"`, whose bundles are durable and delivered from the seal on."""
    max_stream_count: int = 512
    max_bundle_count: int = SEGMENT_BUNDLES_MAX
    compaction: str = "auto"
    """`auto`: sealed segments are rewritten in the background where it pays; `off`: only by `quiver compact`."""
    statistics: str = "auto"
    """Whether statistics of the columns of sealed segments are made."""
    statistics_columns: tuple[str, ...] = ()
    """The columns whose smallest and largest values are noted; empty: the first ones of each schema."""


class WalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The log of each topic and core."""

    flush_interval_ns: int = 0
    """0 = acknowledge after the covering fdatasync; above 0 = after the write, synced by a timer of that interval."""
    max_size_bytes: int = 4 * GIB
    """Upper limit for all unsealed logs of one engine together, the active one included; pushes wait once it is reached."""
    max_rotated_files: int = 10
    """Rotated files whose seal lags; at the limit pushes wait."""


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much space a node keeps free, and how long it keeps stored bundles."""

    min_free_bytes: int = 64 * MIB
    """Low-water mark of the file system: no new log file is begun below it, so that everything else still has room."""
    size_cap_policy: str = "backpressure"
    """Policy at the node's size cap: pushes wait, are refused at once, or the oldest bundles are deleted although needed."""
    cap_share: float = 1.0
    """Part of the node's size cap that the topic may have on all cores together, above 0 and up to 1."""
    max_age_ns: int = 0
    """Age of a segment's newest bundle above which the segment is deleted, needed or not; 0: never."""
    keep_for_ns: int = 0
    """How old the newest bundle of an unneeded segment must be before deletion, unless the size cap needs the space; 0: any age."""
    steady_state_headroom_bytes: int = 0
    """Bytes of the newest segments that each topic keeps on each core although no subscriber needs them."""
    early_seal: bool = True
    """Whether open segments are sealed above the soft limit, so that they can be processed or deleted."""
    quarantine_cap_bytes: int = GIB
    """Upper limit for the damaged files that one engine keeps; above it the oldest are deleted, but never the newest."""


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether sealed segments of a topic are copied into the node's archive, and what follows from that."""

    enabled: bool = False
    require: bool = False
    """Whether nothing is evicted or expires that is not in the archive."""
    commit_interval_ns: int = 250 * MILLISECOND_NS
    """How long a segment takes bundles before it is sealed and sent to the archive, where the durability is `archived`."""
    max_delay_ns: int = 5 * SECOND_NS
    """Age of the oldest bundle of an open segment at which the archiver has it sealed; 0: `segment.max_open_duration` alone decides."""
    expire_ns: int = 0
    """Age of a segment's newest bundle above which it is deleted in the archive; 0: never."""
    keep_local_age_ns: int = 0
    keep_local_size_bytes: int = 0
    """What stays on the disk of a topic without subscribers once it is archived: younger than the one and within the other; 0: no limit."""

    @property
    def lets_go(self) -> bool:
        """Whether what is archived may be deleted here although no subscriber was ever done with it."""
        return self.enabled and bool(self.keep_local_age_ns or self.keep_local_size_bytes)


class TierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where old segments of a topic lie, and how many stay on the disk of the logs."""

    cold_dir: str = ""
    """Directory on the cold disk; empty: no segment moves."""
    keep_hot_segments: int = 4
    """How many of the newest segments of a core do not move."""
    keep_hot_bytes: int = 0
    """How many bytes of the newest segments of a core do not move, if that is less; 0: as many as `keep_hot_segments` are."""
    cold_cap_bytes: int = 0
    """Most bytes of cold segments of one core; 0: no limit."""


class NodeArchiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The object store that a node archives into, and how hard it is worked."""

    url: str = ""
    """Empty: the node has no archive."""
    single_writer: bool = False
    """Whether a store without conditional puts is used: the operator promises that no other node archives under this node's name."""
    max_bandwidth_bytes: int = 0
    """Bytes of segments that are sent in a second; 0: no limit."""
    request_timeout_ns: int = 30 * SECOND_NS
    retry_interval_max_ns: int = 60 * SECOND_NS
    """The longest wait before the next attempt after a failure that may pass."""
    refused_interval_ns: int = 300 * SECOND_NS
    """The wait before the next attempt after a failure that an operator must see to."""
    cache_size_bytes: int = 256 * MIB
    """Fetched blocks of archived segments that are kept in the data directory, in files without a name."""
    progress_interval_ns: int = 60 * SECOND_NS
    """How often the state of the node is uploaded, if it has changed."""
    merge_below_bytes: int = 1 * MIB
    """Archived segments that are smaller are merged into larger objects; 0: none is."""


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one topic; they apply on every core."""

    name: str = DEFAULT_TOPIC
    durability: str = "wal"
    slots: dict[str, int] = {}
    segment: SegmentSettings = SegmentSettings()
    wal: WalSettings = WalSettings()
    retention: RetentionSettings = RetentionSettings()
    archive: ArchiveSettings = ArchiveSettings()
    tier: TierSettings = TierSettings()
    progress_flush_interval_ns: int = 50 * MILLISECOND_NS
    orphan_ttl_ns: int = 0
    """A subscriber that no connection is attached to for so long is dropped; 0 = never."""
    owner_uid: int = NODE_USER
    """User id that may change and delete the topic, beside the node's user and root."""
    allowed_uids: tuple[int, ...] = ()
    """Other users that may push to it and subscribe."""
    event_time: str = ""
    """The column that says when what a row tells of happened; empty: there is none."""
    shared_subscribers: tuple[str, ...] = ()
    """Subscribers of the topic's owner that every user of the topic may join."""
    priority: int = 0
    """A worker serves topics of a higher priority first, turn by turn."""

    @property
    def is_synced(self) -> bool:
        """Whether logs are synced before they are sealed."""
        return self.durability != "segment_only"

    @property
    def is_archived(self) -> bool:
        """Whether a push returns only when its bundle is in the archive."""
        return self.durability == "archived"

    def slot_table(self) -> SlotTable:
        """Return the declared slots as a table of names and ids; empty if the topic declares none."""
        return SlotTable(self.slots)

    def bounded_columns(self) -> frozenset[str] | None:
        """The columns whose smallest and largest values are noted; None: the first ones of each schema."""
        named = self.segment.statistics_columns
        return frozenset(name for name in (*named, self.event_time) if name) if named else None

    def may_use(self, uid: int) -> bool:
        """Whether a user that is neither the node's own nor root may push to the topic and subscribe."""
        return uid in self.allowed_uids or uid == self.owner_uid


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Form and least severity of the lines that the node's processes log."""

    format: str = "human"
    """One of `supervisor.log.LOG_FORMATS`."""
    level: str = "info"
    """One of `supervisor.log.LOG_LEVELS`."""


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas of users other than the node's own; each holds per user and worker, the quota of topics per user."""

    group: str = ""
    """Group whose members may connect to the sockets; empty: only the node's user and root."""
    max_connections: int = 64
    max_arena_bytes: int = 512 * MIB
    max_memory_bytes: int = 64 * MIB
    """Worker memory that a user may occupy: messages sent and not yet handled, schemas, answers not yet read."""
    max_subscribers: int = 64
    max_durable_subscribers: int = 64
    """Durable subscribers that a user may own in topics of other users."""
    max_topics: int = 0
    """Topics that a user may own; 0: the user may create none."""


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A token of `quiver serve`: what its holder may do, and with which topics (docs/security.md)."""

    file: str
    """Absolute path of the file that holds it."""
    role: str
    """One of `TOKEN_ROLES`."""
    topics: tuple[str, ...] = ()
    """Empty: all topics."""


TOKEN_ROLES = ("read", "write", "admin")


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `quiver serve`."""

    tokens: dict[str, TokenSettings] = {}
    """Tokens by name."""
    memory_bytes: int = 0
    """Most memory for Arrow data; 0: a quarter of the machine's, at least 1 GiB."""
    sql_memory_bytes: int = 0
    """Most memory of all SQL statements together; 0: a quarter of the machine's."""
    sql_statements: int = 4
    """SQL statements at a time; each may use an equal share of their memory."""
    sql_timeout_ns: int = 300 * SECOND_NS
    """Most time of one statement, from its start until its last row was read; 0: no limit."""


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a node, and the settings of topics that the configuration does not name."""

    data_dir: str = "./quiver_data"
    run_dir: str = ""
    """Where sockets and the counters page are found; empty: `default_run_dir()`."""
    node: str = ""
    """Name of the node among several nodes, for ever; empty: the host's name."""
    cores: int = 0
    """Number of workers; 0 = one per core of the affinity mask."""
    size_cap_bytes: int = 0
    """Upper limit for everything on disk below `data_dir`; 0: no limit."""
    arena_bytes: int = 64 * MIB
    """Shared-memory ring per producer connection."""
    log: LogSettings = LogSettings()
    access: AccessSettings = AccessSettings()
    serve: ServeSettings = ServeSettings()
    archive: NodeArchiveSettings = NodeArchiveSettings()
    topics: dict[str, TopicSettings] = {}

    def resolved_run_dir(self) -> str:
        """Return the configured run directory, else the default one of the current user."""
        return self.run_dir or default_run_dir()

    def node_name(self) -> str:
        """Return the configured name of the node, else the name of the host."""
        return self.node or socket.gethostname()

    def all_topics(self) -> dict[str, TopicSettings]:
        """The configured topics, `default` first and always there."""
        found = {DEFAULT_TOPIC: self.topics.get(DEFAULT_TOPIC, TopicSettings())}
        found.update(self.topics)
        return found
