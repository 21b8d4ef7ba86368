"""Every setting, once: its key, kind, range, whether it can change while the node runs, and what it is for.

Reading, checking, `quiver config`, `quiver topics set` and docs/configuration.md are all made from this table; a test checks the
document against it. A new setting is a field in `tree` and a row here. Defaults are those of the tree.
"""

from __future__ import annotations

import enum
from functools import cache
from typing import Any

import msgspec

from quiver_actors.base.config.kinds import (
    BOOLEAN,
    COLUMNS,
    DURATION,
    INTEGER,
    OWNER,
    PART,
    SIZE,
    SLOTS,
    SUBSCRIBERS,
    TEXT,
    TOKENS,
    USERS,
    Kind,
)
from quiver_actors.base.config.tree import COMPACTION_MODES, DURABILITY_MODES, NodeSettings, TopicSettings
from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.base.policies import POLICIES
from quiver_actors.base.units import GIB, KIB, MIB, MILLISECOND_NS, SECOND_NS
from quiver_actors.supervisor.log import LOG_FORMATS, LOG_LEVELS


class Scope(enum.Enum):
    """Where a setting can stand."""

    NODE = "node"
    """Set once for the node, at the top of the file."""
    TOPIC = "topic"
    """Set at the top of the file for all topics, or below [topics.NAME] for one."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A row: all that reading, checking, showing and documenting a setting need."""

    key: str
    """Name of the setting in the file, with its section: `segment.target_size`."""
    field: str
    """Where it is in `NodeSettings` or `TopicSettings`: `segment.target_size_bytes`."""
    kind: Kind
    about: str
    scope: Scope = Scope.TOPIC
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    live: bool = True
    """Can change while the node runs; otherwise it holds from the next start on, or, where `fixed`, never changes."""
    fixed: bool = False
    """Part of what a topic is: cannot change once the topic exists."""
    operators: bool = False
    """Whether only the node's own user may set it, as it takes from other topics or gives the topic away. Owners set all others."""
    also: str = ""
    """Second key under which the setting is accepted too; empty if there is none."""

    @property
    def default(self) -> Any:
        """Value of the field in fresh settings of its scope, in the unit of the field."""
        return value_at(NodeSettings() if self.scope is Scope.NODE else TopicSettings(), self.field)

    @property
    def default_text(self) -> str:
        """The default as TOML."""
        return self.kind.write(self.default)

    @property
    def expected(self) -> str:
        """The expected values, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        low, high = (None if bound is None else self.kind.write(bound) for bound in (self.minimum, self.maximum))
        if low is not None and high is not None:
            return f"{self.kind.expected}, from {low} to {high}"
        return self.kind.expected + (
            f", at least {low}" if low is not None else f", at most {high}" if high is not None else ""
        )


def value_at(tree: Any, field: str) -> Any:
    """The value of a dotted field of a settings tree."""
    for name in field.split("."):
        tree = getattr(tree, name)
    return tree


_NODE = (
    Setting(
        key="data_dir", field="data_dir", kind=TEXT, scope=Scope.NODE, live=False, also="path",
        about="Where bundles are kept. Created with mode 0700 if it is missing.",
    ),
    Setting(
        key="run_dir", field="run_dir", kind=TEXT, scope=Scope.NODE, live=False,
        about="Where clients find the node: sockets and node.json. Empty: $XDG_RUNTIME_DIR/quiver, else $TMPDIR/quiver-UID.",
    ),
    Setting(
        key="node", field="node", kind=TEXT, scope=Scope.NODE, live=False,
        about="Its name where several are, for ever: up to 64 of A-Z a-z 0-9 _ . -, first a letter or digit. Empty: the host's.",
    ),
    Setting(
        key="cores", field="cores", kind=INTEGER, scope=Scope.NODE, live=False, minimum=0, maximum=1024,
        about="Number of workers, each pinned to a core. 0: one for each core that the process may use.",
    ),
    Setting(
        key="arena_size", field="arena_bytes", kind=SIZE, scope=Scope.NODE, minimum=MIB, maximum=GIB,
        about="Shared memory of each producer connection: how much it can have under way. Holds for connections made after a change.",
    ),
    Setting(
        key="access.group", field="access.group", kind=TEXT, scope=Scope.NODE, live=False,
        about="Members of this group reach the sockets, and so the topics that name them in allowed_uids. Empty: only the node's user.",
    ),
    Setting(
        key="access.max_connections", field="access.max_connections", kind=INTEGER, scope=Scope.NODE, live=False, minimum=1,
        about="Connections of one other user to one worker.",
    ),
    Setting(
        key="access.max_arena", field="access.max_arena_bytes", kind=SIZE, scope=Scope.NODE, live=False, minimum=MIB,
        about="Shared memory of all connections of one other user to one worker: how much it can have under way.",
    ),
    Setting(
        key="access.max_memory", field="access.max_memory_bytes", kind=SIZE, scope=Scope.NODE, live=False, minimum=MIB,
        about="A worker's own memory for all connections of one other user: unfinished frames, schemas, and answers that are not read.",
    ),
    Setting(
        key="access.max_subscribers", field="access.max_subscribers", kind=INTEGER, scope=Scope.NODE, live=False, minimum=1,
        about="Subscribers that one other user can be attached to on one worker.",
    ),
    Setting(
        key="access.max_durable_subscribers", field="access.max_durable_subscribers", kind=INTEGER, scope=Scope.NODE, live=False, minimum=1,
        about="Subscribers that one other user may own on one worker, in topics of others: each is kept until it is dropped.",
    ),
    Setting(
        key="access.max_topics", field="access.max_topics", kind=INTEGER, scope=Scope.NODE, minimum=0, maximum=10_000,
        about="Topics that one other user may own when it creates another one. 0: other users create none.",
    ),
    Setting(
        key="serve.tokens", field="serve.tokens", kind=TOKENS, scope=Scope.NODE, live=False,
        about="Tokens of `quiver serve --config`: for each a file that holds it, the role of who sends it (read, write or admin) and the "
        "topics that it is for, none for all of them. docs/security.md says what each role may do.",
    ),
    Setting(
        key="serve.memory", field="serve.memory_bytes", kind=SIZE, scope=Scope.NODE, live=False, minimum=0,
        about="Most memory that `quiver serve --config` uses for Arrow data, above all for what pushes become when they are decompressed. "
        "0: a quarter of the machine's memory, at least 1 GiB.",
    ),
    Setting(
        key="serve.sql_memory", field="serve.sql_memory_bytes", kind=SIZE, scope=Scope.NODE, live=False, minimum=0,
        about="Most memory that the SQL statements of other hosts use together. 0: a quarter of the machine's memory.",
    ),
    Setting(
        key="serve.sql_statements", field="serve.sql_statements", kind=INTEGER, scope=Scope.NODE, live=False, minimum=1, maximum=64,
        about="SQL statements of other hosts that run at a time, each with an equal share of serve.sql_memory; others wait. Of more than "
        "one, a token may have all but one.",
    ),
    Setting(
        key="serve.sql_timeout", field="serve.sql_timeout_ns", kind=DURATION, scope=Scope.NODE, live=False, minimum=0,
        about="Most time of a SQL statement of another host, from its start until its last row has been read. 0: no limit.",
    ),
    Setting(
        key="archive.url", field="archive.url", kind=TEXT, scope=Scope.NODE, live=False,
        about="Object store that sealed segments are copied into: s3://, gs://, az:// with bucket and prefix, or file:///directory. Empty: "
        "none. Credentials are found where the provider's tools look (docs/archive.md).",
    ),
    Setting(
        key="archive.single_writer", field="archive.single_writer", kind=BOOLEAN, scope=Scope.NODE, live=False,
        about="true: the store may lack conditional puts. You promise that no other node archives under this node's name: nothing else "
        "keeps two from overwriting each other's manifest.",
    ),
    Setting(
        key="archive.max_bandwidth", field="archive.max_bandwidth_bytes", kind=SIZE, scope=Scope.NODE, live=False,
        about="Most bytes of segments that the archiver sends in a second. 0: no limit.",
    ),
    Setting(
        key="archive.progress_interval", field="archive.progress_interval_ns", kind=DURATION, scope=Scope.NODE, live=False,
        minimum=100 * MILLISECOND_NS,
        about="How often the archiver uploads what `quiver restore` needs beside the segments, if it has changed: subscribers' progress, "
        "topics and so on.",
    ),
    Setting(
        key="archive.merge_below", field="archive.merge_below_bytes", kind=SIZE, scope=Scope.NODE, live=False,
        about="Archived segments that are smaller than this are merged into larger objects later, in the background. 0: none is.",
    ),
    Setting(
        key="archive.request_timeout", field="archive.request_timeout_ns", kind=DURATION, scope=Scope.NODE, live=False,
        minimum=100 * MILLISECOND_NS,
        about="How long one request to the object store may take.",
    ),
    Setting(
        key="archive.retry_interval", field="archive.retry_interval_max_ns", kind=DURATION, scope=Scope.NODE, live=False,
        minimum=100 * MILLISECOND_NS,
        about="Longest wait before the next attempt while the object store does not answer; waits grow up to it.",
    ),
    Setting(
        key="archive.refused_interval", field="archive.refused_interval_ns", kind=DURATION, scope=Scope.NODE, live=False,
        minimum=100 * MILLISECOND_NS,
        about="Wait before the next attempt after an error that stays until somebody acts, such as a missing bucket or permission.",
    ),
    Setting(
        key="archive.cache_size", field="archive.cache_size_bytes", kind=SIZE, scope=Scope.NODE, live=False, minimum=MIB,
        about="Most bytes of archived segments that the archiver keeps in the data directory for clients that read them; size_cap does not "
        "count them.",
    ),
    Setting(
        key="log.format", field="log.format", kind=TEXT, scope=Scope.NODE, live=False, choices=LOG_FORMATS,
        about="How log lines are written to stderr: human (key=value) or json (an object a line).",
    ),
    Setting(
        key="log.level", field="log.level", kind=TEXT, scope=Scope.NODE, live=False, choices=LOG_LEVELS,
        about="The least important lines that are logged.",
    ),
)  # fmt: skip

_NODE_RETENTION = (
    Setting(
        key="retention.size_cap", field="size_cap_bytes", kind=SIZE, scope=Scope.NODE,
        about="Most bytes of everything below data_dir, shared by all workers and topics. 0: no cap.",
    ),
)  # fmt: skip

_TOPIC = (
    Setting(
        key="durability", field="durability", kind=TEXT, choices=DURABILITY_MODES,
        about="wal: a push returns when the bundle is in the log. segment_only: when it is in the open segment, which a crash loses. "
        "archived: when its segment is in the archive (docs/archive.md).",
    ),
    Setting(
        key="slots", field="slots", kind=SLOTS, live=False, fixed=True,
        about="Names of a bundle's slots and their ids. A push that does not fit is refused by name. Empty: the OTAP names, and any id.",
    ),
    Setting(
        key="owner", field="owner_uid", kind=OWNER, operators=True,
        about="Who may use, change and delete the topic and drop or move its subscribers, beside the node's user and root.",
    ),
    Setting(
        key="allowed_uids", field="allowed_uids", kind=USERS,
        about="Other users that may push to the topic and subscribe to it.",
    ),
    Setting(
        key="event_time", field="event_time", kind=TEXT,
        about="The column of times or dates by which `dataset(event_start=, event_end=)` chooses rows. Empty: none.",
    ),
    Setting(
        key="shared_subscribers", field="shared_subscribers", kind=SUBSCRIBERS,
        about="Subscribers that every user of the topic may join. They are the topic's owner's, whoever joins them first.",
    ),
    Setting(
        key="priority", field="priority", kind=INTEGER, minimum=-100, maximum=100, operators=True,
        about="Topics of a higher priority are written, synced and delivered first in each turn of a worker.",
    ),
    Setting(
        key="progress_flush_interval", field="progress_flush_interval_ns", kind=DURATION, maximum=60 * SECOND_NS,
        about="How long acknowledgements of subscribers are gathered before they are made durable together.",
    ),
    Setting(
        key="orphan_ttl", field="orphan_ttl_ns", kind=DURATION,
        about="A subscriber that no consumer is attached to for so long is dropped. 0ms: never.",
    ),
    Setting(
        key="segment.target_size", field="segment.target_size_bytes", kind=SIZE, minimum=64 * KIB, maximum=GIB,
        about="An open segment is sealed before it grows beyond this size; a larger message has a segment of its own.",
    ),
    Setting(
        key="segment.max_open_duration", field="segment.max_open_duration_ns", kind=DURATION, minimum=MILLISECOND_NS,
        about="An open segment is sealed at this age, also when nothing more arrives. Its bundles are delivered before.",
    ),
    Setting(
        key="segment.max_unsynced_duration", field="segment.max_unsynced_duration_ns", kind=DURATION, minimum=MILLISECOND_NS,
        about="With segment_only an open segment is sealed at this age: its bundles are durable, and delivered, from then on.",
    ),
    Setting(
        key="segment.max_stream_count", field="segment.max_stream_count", kind=INTEGER, minimum=1,
        about="An open segment is sealed when it has so many streams (a slot with one schema is a stream).",
    ),
    Setting(
        key="segment.max_bundle_count", field="segment.max_bundle_count", kind=INTEGER, minimum=1, maximum=SEGMENT_BUNDLES_MAX,
        about="An open segment is sealed when it has so many bundles.",
    ),
    Setting(
        key="segment.compaction", field="segment.compaction", kind=TEXT, choices=COMPACTION_MODES,
        about="auto: segments of many small bundles are rewritten in the background where that pays. off: only by `quiver compact`.",
    ),
    Setting(
        key="segment.statistics", field="segment.statistics", kind=TEXT, choices=COMPACTION_MODES,
        about="auto: smallest and largest values of columns are noted in the background, so that readers can leave out segments. off: not.",
    ),
    Setting(
        key="segment.statistics_columns", field="segment.statistics_columns", kind=COLUMNS,
        about="The columns whose smallest and largest values are noted, in all slots. Empty: the first 64 of each schema.",
    ),
    Setting(
        key="wal.flush_interval", field="wal.flush_interval_ns", kind=DURATION, maximum=60 * SECOND_NS,
        about="0ms: a push returns after its fdatasync. Longer: after the write, and a crash of the machine may lose one interval.",
    ),
    Setting(
        key="wal.max_size", field="wal.max_size_bytes", kind=SIZE, minimum=MIB,
        about="Most bytes in logs of one topic and core that are not sealed yet; pushes wait at it.",
    ),
    Setting(
        key="wal.max_rotated_files", field="wal.max_rotated_files", kind=INTEGER, minimum=1,
        about="Most log files of one topic and core whose seal lags; pushes wait at it.",
    ),
    Setting(
        key="retention.min_free", field="retention.min_free_bytes", kind=SIZE, operators=True,
        about="Kept free on the file system: below it no new log is begun, pushes wait, everything else goes on.",
    ),
    Setting(
        key="retention.size_cap_policy", field="retention.size_cap_policy", kind=TEXT, choices=POLICIES,
        about="At the size cap pushes wait (backpressure), are refused at once (reject), or the oldest bundles go (drop_oldest).",
    ),
    Setting(
        key="retention.cap_share", field="retention.cap_share", kind=PART, operators=True,
        about="The topic may have so much of size_cap, on all cores together; at it its own policy applies. Without a cap: no limit.",
    ),
    Setting(
        key="retention.max_age", field="retention.max_age_ns", kind=DURATION,
        about="Segments whose newest bundle was ingested longer ago go, needed or not; whoever needed them is told. 0ms: never.",
    ),
    Setting(
        key="retention.keep_for", field="retention.keep_for_ns", kind=DURATION,
        about="Segments that nobody needs any more stay until their newest bundle is so old, or the cap wants their room. 0ms: not.",
    ),
    Setting(
        key="retention.steady_state_headroom", field="retention.steady_state_headroom_bytes", kind=SIZE,
        about="So much of the newest segments that nobody needs any more is kept, for each topic and core, until the cap wants it.",
    ),
    Setting(
        key="retention.early_seal", field="retention.early_seal", kind=BOOLEAN,
        about="Near the size cap open segments are sealed early, so that they can be processed, or go.",
    ),
    Setting(
        key="archive.enabled", field="archive.enabled", kind=BOOLEAN, operators=True,
        about="Sealed segments are copied into the object store of archive.url, and none is deleted as processed before.",
    ),
    Setting(
        key="archive.require", field="archive.require", kind=BOOLEAN, operators=True,
        about="Nothing is evicted or expires that is not archived: with the store away the size cap holds pushes back.",
    ),
    Setting(
        key="archive.commit_interval", field="archive.commit_interval_ns", kind=DURATION, operators=True,
        minimum=10 * MILLISECOND_NS, maximum=60 * SECOND_NS,
        about='With durability = "archived" a segment is sealed and archived so long after its first bundle.',
    ),
    Setting(
        key="archive.max_delay", field="archive.max_delay_ns", kind=DURATION, operators=True,
        about="The archiver seals an open segment whose first bundle is older. 0ms: it waits for segment.max_open_duration.",
    ),
    Setting(
        key="archive.expire", field="archive.expire_ns", kind=DURATION, operators=True,
        about="Segments whose newest bundle was ingested longer ago are deleted in the archive. 0ms: never.",
    ),
    Setting(
        key="archive.keep_local", field="archive.keep_local_age_ns", kind=DURATION,
        about="In a topic without subscribers archived segments go from the disk at this age. 0ms: not by age.",
    ),
    Setting(
        key="archive.keep_local_size", field="archive.keep_local_size_bytes", kind=SIZE,
        about="In a topic without subscribers so much of the newest archived segments stays, for each core. 0: not by size.",
    ),
    Setting(
        key="tier.cold_dir", field="tier.cold_dir", kind=TEXT, operators=True,
        about="The oldest sealed segments move into this directory, on a larger disk (docs/tiers.md). Not set: none moves.",
    ),
    Setting(
        key="tier.keep_hot", field="tier.keep_hot_segments", kind=INTEGER, operators=True, minimum=0,
        about="So many of the newest sealed segments of each core stay on the disk of the logs.",
    ),
    Setting(
        key="tier.keep_hot_size", field="tier.keep_hot_bytes", kind=SIZE, operators=True,
        about="At most so much of the newest sealed segments of each core stays on the disk of the logs. 0: tier.keep_hot alone counts.",
    ),
    Setting(
        key="tier.cold_cap", field="tier.cold_cap_bytes", kind=SIZE, operators=True,
        about="Most bytes of cold segments of a topic and core: above it retention.size_cap_policy lets the oldest go, or none moves.",
    ),
    Setting(
        key="retention.quarantine_cap", field="retention.quarantine_cap_bytes", kind=SIZE, operators=True,
        about="Most bytes of damaged files that one topic and core keeps in quarantine/: over it the oldest go, never the newest.",
    ),
)  # fmt: skip

SETTINGS: tuple[Setting, ...] = (*_NODE, *_NODE_RETENTION, *_TOPIC)


@cache
def settings_of(scope: Scope) -> dict[str, Setting]:
    """The settings of a scope by key, in the table's order."""
    return {setting.key: setting for setting in SETTINGS if setting.scope is scope}
