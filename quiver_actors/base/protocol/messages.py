"""The protocol between a client and a worker: the messages of every connection, and the two unions of everything that is sent.

The others are defined beside this one by their subject, and all are imported from here:

    module                tags of the client  tags of the worker  subject
    messages              1, 50               64, 67, 68, 120     greeting, topics, answers that say no more than yes or no
    push_messages         2-5, 41, 48         65, 66              arenas, schemas, bundles and their receipts
    segment_messages      6-7, 20, 24, 26-27, 39  69, 70, 81-83      segments, their schemas and their descriptors
    subscriber_messages   8-19, 22-23, 25     71-80               registration, claims, acknowledgements, gap notices
    stage_messages        40, 42-47           90-92               transactions

A tag is not used again when its message is gone.

A frame is a u32 length and one msgpack array whose first element is the message's tag. Every request that wants an answer
carries a `tag` that the client chose; answers and refusals repeat it. Descriptors travel as ancillary data of the frame whose
message says so (`ArenaAttached`, `SegmentOpened`: one each), in order. Clients never send descriptors.
"""

from __future__ import annotations

import msgspec

from quiver_actors.base.protocol.base import Message
from quiver_actors.base.protocol.push_messages import (
    DICTIONARY_ROW,
    ENTRY_ROW,
    SLOT_ROW,
    Acked,
    AckRun,
    ArenaAttached,
    AttachArena,
    DeclareSchema,
    Flush,
    KeyedPush,
    Push,
    StagePush,
)
from quiver_actors.base.protocol.segment_messages import (
    BundleTime,
    CheckSegment,
    CountPruned,
    ListSchemas,
    ListSegments,
    ListStatistics,
    OpenSegment,
    SchemaInfo,
    SchemaList,
    SegmentArchived,
    SegmentColumns,
    SegmentInfo,
    SegmentList,
    SegmentOpened,
    StatisticsList,
)
from quiver_actors.base.protocol.stage_messages import (
    AbandonStage,
    BeginStage,
    Decide,
    Decided,
    DropStages,
    ListStages,
    PrepareStage,
    PublishStages,
    StageInfo,
    StageList,
    StageReady,
)
from quiver_actors.base.protocol.subscriber_messages import (
    AckThrough,
    ClaimRef,
    Credit,
    Deliver,
    Extend,
    Extended,
    FlushProgress,
    Gap,
    GapAck,
    GapRange,
    GroupTerms,
    ListSubscribers,
    NotResolved,
    Pending,
    PendingInfo,
    Refusal,
    Register,
    Resolve,
    Seek,
    SegmentRetired,
    ShareSubscriber,
    Sought,
    SubscriberInfo,
    SubscriberList,
    Taken,
    Unreadable,
    Unregister,
    Withdrawn,
)
from quiver_actors.base.protocol.terms import Terms

PROTOCOL_VERSION = 4
FRAME_BYTES_MAX = 16 << 20
"""A longer frame is a protocol error: the peer is broken or hostile, the connection is closed."""
SCHEMA_MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - (4 << 10)
"""What fits a DeclareSchema."""

SCHEMA_LISTS = 1 << 2
"""Bit of `Welcome.features`: the worker answers `ListSchemas` and `ListStatistics`."""

COUNTS_PRUNED = 1 << 3
"""Bit of `Welcome.features`: the worker understands `CountPruned`."""

# --- client to worker --------------------------------------------------------------------------------------------------


class Hello(Message, tag=1, frozen=True):
    """First message of every connection."""

    version: int
    pid: int
    client: str


class ListTopics(Message, tag=50, frozen=True):
    """Answered by TopicList: topics come and go while a connection stands."""

    tag: int


# --- worker to client --------------------------------------------------------------------------------------------------


class TopicInfo(msgspec.Struct, array_like=True, frozen=True):
    """Description of a topic for a client: its slots by name, its durability, and the sync interval in nanoseconds."""

    name: str
    slots: dict[str, int]
    durability: str
    flush_interval_ns: int
    incarnation: str = ""
    """Id that differs each time a topic of that name is created; empty: the topic has none."""
    event_time: str = ""
    """The column of event times; empty: there is none, or the worker is older than the field."""
    is_archived: bool = False
    """Whether the node archives it. False also if the worker is older than the field."""


class Welcome(Message, tag=64, frozen=True):
    """Answer to `Hello`: the worker's protocol version, core, incarnation, process id and topics."""

    version: int
    core: int
    incarnation: str
    pid: int
    topics: list[TopicInfo]
    features: int = 0
    """Bits: `lone.LONE_PUSHES`, `subscriber_messages.HEARS_TAKEN`, `SCHEMA_LISTS`, `COUNTS_PRUNED`. A worker that does not know
    the field has none; a client that does not know it passes over it."""


class TopicList(Message, tag=120, frozen=True):
    """Answer to `ListTopics`: the topics that the caller may see."""

    tag: int
    topics: list[TopicInfo]


class Refused(Message, tag=67, frozen=True):
    """The request with that tag was not carried out. `code` is the `code` of an error class."""

    tag: int
    code: str
    message: str
    retry_after_ns: int = 0


class Done(Message, tag=68, frozen=True):
    """Answer to requests that return at most one number."""

    tag: int
    value: int = 0
    """A number whose meaning the request defines."""


# --- everything ----------------------------------------------------------------------------------------------------------

ClientMessage = (
    Hello
    | AttachArena
    | DeclareSchema
    | Push
    | Flush
    | ListSchemas
    | ListSegments
    | ListStatistics
    | OpenSegment
    | Register
    | Unregister
    | Credit
    | Resolve
    | FlushProgress
    | Extend
    | ClaimRef
    | AckThrough
    | GapAck
    | Pending
    | ListSubscribers
    | Unreadable
    | BundleTime
    | CheckSegment
    | CountPruned
    | Seek
    | Taken
    | ShareSubscriber
    | BeginStage
    | StagePush
    | KeyedPush
    | AbandonStage
    | PrepareStage
    | DropStages
    | PublishStages
    | ListStages
    | Decide
    | ListTopics
)

WorkerMessage = (
    Welcome
    | ArenaAttached
    | Acked
    | Refused
    | Done
    | SchemaList
    | SegmentList
    | StatisticsList
    | SegmentOpened
    | SegmentArchived
    | Deliver
    | SegmentRetired
    | GroupTerms
    | Withdrawn
    | Gap
    | NotResolved
    | Extended
    | PendingInfo
    | SubscriberList
    | Sought
    | StageReady
    | StageList
    | Decided
    | TopicList
)

DESCRIPTORS_CARRIED: dict[type[Message], int] = {ArenaAttached: 1, SegmentOpened: 1}
