"""Table of rights: which principal may make which request, by client, command or token. Pure.

A *principal* is whoever makes a request: a user of this machine, as the kernel names it (`User`), or the holder of a token (`TokenHolder`).
For one request a principal is one `Caller`, a column of the table; the request is a row. The cell is the `Verdict`.

Everybody consults the table before a request is carried out: workers (`node.worker.access`), the supervisor (`node.topics.rights`), the
archiver (`archive.serving`), and whoever serves holders of tokens. docs/security.md shows it, `python -m quiver_actors.base.rights` prints
it, and tests/security tries each of its cells.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quiver_actors.base.config import TopicSettings
from quiver_actors.errors import NotAllowed

ROOT_UID = 0


class Caller(enum.Enum):
    """Relation of a principal to the topic and the subscriber that a request names. The order is that of the table's columns."""

    OPERATOR = "the node's user, root"
    OWNER = "the topic's owner"
    OWN = "a guest, its own subscriber"
    SHARED = "a guest, one shared with it"
    ANOTHERS = "a guest, another's subscriber"
    GUEST = "a guest, no subscriber"
    """The request names no subscriber, or one that does not exist."""
    STRANGER = "anybody else"
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


ROLES = (Caller.READ, Caller.WRITE, Caller.ADMIN)
"""Roles that a token can have; its holder is a `STRANGER` to topics that it does not name."""
USERS = tuple(caller for caller in Caller if caller not in ROLES)


class Verdict(enum.Enum):
    """Verdict in a cell. The values are the words of the table."""

    YES = "yes"
    NO = "no"
    """Refused with `NotAllowed`."""
    HELD = "held"
    """Allowed for what this connection holds: a claim under its token, a gap notice that was delivered to it."""
    SEEN = "seen"
    """The answer names only what the caller may use."""
    UNKNOWN = "unknown"
    """Nobody has registered such a subscriber, and the answer says so (`UnknownSubscriber`)."""
    NEVER = "-"
    """The case cannot come about."""


class Row(NamedTuple):
    """Row of the table of rights: what each kind of caller may do with one request."""

    name: str
    """Name of the message, with a case behind a colon where the case has its own rights; `topics.`, `flight.` and
    `archive.` mark other doors."""
    verdicts: str
    """Verdict for each `Caller`, in the order of that enum."""
    doing: str
    """The act that a refusal names, such as `push to it`."""


# The columns:           operator owner own shared another's none stranger | read write admin
_OF_WORKERS = (
    Row("Hello", "yes yes - - - yes no - - -", "use this node"),
    Row("ListTopics", "yes seen - - - seen no - - -", "list topics"),
    Row("AttachArena", "yes yes - - - yes no - - -", "have shared memory of this node"),
    Row("DeclareSchema", "yes yes - - - yes no - - -", "push to the topic"),
    Row("Push", "yes yes - - - yes no - - -", "push to the topic"),
    Row("Flush", "yes yes - - - yes no - - -", "seal what the topic holds"),
    Row("ListSegments", "yes yes - - - yes no - - -", "read the topic"),
    Row("ListSchemas", "yes yes - - - yes no - - -", "read the topic"),
    Row("ListStatistics", "yes yes - - - yes no - - -", "read the topic"),
    Row("OpenSegment", "yes yes - - - yes no - - -", "read the topic"),
    Row("CheckSegment", "yes yes - - - yes no - - -", "read the topic"),
    Row("CountPruned", "yes yes - - - yes no - - -", "read the topic"),
    Row("BundleTime", "yes yes - - - yes no - - -", "read the topic"),
    Row("ListSubscribers", "yes yes - - - seen no - - -", "list subscribers"),
    Row("Register", "yes yes yes yes no yes no - - -", "join the subscriber"),
    Row("Register: destroying terms", "yes yes yes no no yes no - - -", "set terms that destroy"),
    Row("Unregister", "yes yes yes no no unknown no - - -", "drop the subscriber"),
    Row("Seek", "yes yes yes no no unknown no - - -", "move the subscriber"),
    Row("ShareSubscriber", "yes yes yes no no unknown no - - -", "share the subscriber"),
    Row("Credit", "yes yes yes yes no unknown no - - -", "take bundles of the subscriber"),
    Row("ClaimRef", "yes yes yes yes no unknown no - - -", "take bundles of the subscriber"),
    Row("Resolve", "held held held held no unknown no - - -", "resolve bundles of the subscriber"),
    Row("Extend", "held held held held no unknown no - - -", "extend leases of the subscriber"),
    Row("Taken", "held held held held no unknown no - - -", "take bundles of the subscriber"),
    Row("Unreadable", "held held held held no unknown no - - -", "give back bundles of the subscriber"),
    Row("FlushProgress", "yes yes yes yes no yes no - - -", "flush progress of the subscriber"),
    Row("AckThrough", "yes yes yes no no unknown no - - -", "acknowledge ranges of the subscriber"),
    Row("GapAck", "yes yes yes held no unknown no - - -", "acknowledge gap notices of the subscriber"),
    Row("Pending", "yes yes yes yes no unknown no - - -", "ask how the subscriber stands"),
    Row("KeyedPush", "yes no - - - no no - - -", "push as an idempotent producer"),
    Row("BeginStage", "yes no - - - no no - - -", "use transactions"),
    Row("StagePush", "yes no - - - no no - - -", "use transactions"),
    Row("AbandonStage", "yes no - - - no no - - -", "use transactions"),
    Row("PrepareStage", "yes no - - - no no - - -", "use transactions"),
    Row("DropStages", "yes no - - - no no - - -", "use transactions"),
    Row("PublishStages", "yes no - - - no no - - -", "use transactions"),
    Row("ListStages", "yes no - - - no no - - -", "use transactions"),
    Row("Decide", "yes no - - - no no - - -", "use transactions"),
)
_OF_TOPICS = (
    Row("topics.List", "yes seen - - - seen seen - - -", "list topics"),
    Row("topics.Create", "yes yes - - - yes yes - - -", "create topics"),
    Row("topics.Change", "yes yes - - - no no - - -", "change the topic"),
    Row("topics.Change: operator's settings", "yes no - - - no no - - -", "set what is the operator's"),
    Row("topics.Delete", "yes yes - - - no no - - -", "delete the topic"),
    Row("topics.Reload", "yes no - - - no no - - -", "reload the configuration"),
)
_OF_FLIGHT = (
    Row("flight.ReadTicket", "- - - - - - no yes no yes", "read the topic"),
    Row("flight.TableTicket", "- - - - - - no yes no yes", "read the topic"),
    Row("flight.Look", "- - - - - - no yes yes yes", "look at the topic"),
    Row("flight.Look: hold", "- - - - - - no no no yes", "hold a subscriber of the topic"),
    Row("flight.AskSchemas", "- - - - - - no yes yes yes", "read schemas of the topic"),
    Row("flight.AskSlotRows", "- - - - - - no yes yes yes", "count rows of the topic"),
    Row("flight.AskWeights", "- - - - - - no yes yes yes", "weigh bundles of the topic"),
    Row("flight.Acknowledge", "- - - - - - no no no yes", "acknowledge for a subscriber of the topic"),
    Row("flight.ConfirmGap", "- - - - - - no no no yes", "acknowledge gap notices of the topic"),
    Row("flight.Greet", "- - - - - - - seen seen seen", "use this node"),
    Row("flight.OpenDataset", "- - - - - - no yes no yes", "read the topic"),
    Row("flight.ScanTicket", "- - - - - - no held no held", "read datasets"),
    Row("flight.CloseDatasets", "- - - - - - no held no held", "read datasets"),
    Row("flight.AskSubscribers", "- - - - - - no yes no yes", "list subscribers of the topic"),
    Row("flight.AskStatus", "- - - - - - - seen no seen", "see how the node is"),
    Row("flight.BundlesTicket", "- - - - - - no yes no yes", "read the topic"),
    Row("flight.Push", "- - - - - - no no yes yes", "push to the topic"),
    Row("flight.Subscribe", "- - - - - - no no no yes", "subscribe to the topic"),
    Row("flight.Consume", "- - - - - - no no no held", "use a subscription"),
    Row("flight.Publish", "- - - - - - no no yes yes", "publish transactions of the topic"),
    Row("flight.DropRun", "- - - - - - no no yes yes", "drop transactions of the topic"),
)
_OF_ARCHIVERS = (
    Row("archive.ListArchived", "yes yes - - - yes no - - -", "read the topic"),
    Row("archive.ListRetired", "yes yes - - - yes no - - -", "read the topic"),
    Row("archive.OpenArchived", "yes yes - - - yes no - - -", "read the topic"),
    Row("archive.FetchArchived", "yes yes - - - yes no - - -", "read the topic"),
)

TABLE = {row.name: row for row in (*_OF_WORKERS, *_OF_TOPICS, *_OF_FLIGHT, *_OF_ARCHIVERS)}
_VERDICTS = {
    (row.name, caller): Verdict(word)
    for row in TABLE.values()
    for caller, word in zip(Caller, row.verdicts.split(), strict=True)
}

_WHO_MAY = {
    Caller.OWNER: "only the node's own user may: run as that user",
    Caller.SHARED: "it is shared with you, and only its owner, the topic's owner and the node's user may do that",
    Caller.ANOTHERS: "it is another user's, who can share it (`quiver subscribers share`), as can the topic's owner, by shared_subscribers",
    Caller.GUEST: "only the node's own user may: run as that user",
    Caller.STRANGER: "an operator can name you in allowed_uids of a topic, or the topic in your token",
    Caller.READ: "the token is for reading: ask the node's operator for one with another role",
    Caller.WRITE: "the token is for writing: ask the node's operator for one with another role",
}


class Ownership(NamedTuple):
    """The owner of a durable subscriber, stored with its progress (docs/formats.md section 3.6, "Owner of a subscriber")."""

    owner_uid: int | None = None
    """None: the topic's owner's, whoever that is; so are all from before owners were recorded."""
    joined_uids: tuple[int, ...] = ()
    """Users that its owner shares it with, rising."""


OF_TOPICS_OWNER = Ownership()


def is_guests(ownership: Ownership, topic: TopicSettings) -> bool:
    """Whether a subscriber belongs to a user who is neither the topic's owner nor stands for it."""
    return ownership.owner_uid not in (None, topic.owner_uid)


@dataclass(frozen=True, slots=True)
class User:
    """A user of this machine, as the kernel names it (`SO_PEERCRED`)."""

    uid: int
    own_uid: int
    """The user that the node runs as."""

    def __str__(self) -> str:
        return f"user {self.uid}"

    @property
    def is_operator(self) -> bool:
        """Whether the user is the node's own or root."""
        return self.uid in (self.own_uid, ROOT_UID)

    def rules(self, topic: TopicSettings) -> bool:
        """Whether the names of the topic's subscribers are the user's: those that a guest has registered become the topic's owner's
        when the user joins them."""
        return self.is_operator or self.uid == topic.owner_uid

    def caller(
        self, topic: TopicSettings | None = None, subscriber: str = "", ownership: Ownership | None = None
    ) -> Caller:
        """Return what the user is to a topic and a subscriber of it.

        Args:
            topic: None: the request is about no topic, and the user has been let in.
            ownership: of the subscriber; None: the request names none, or one that does not exist.
        """
        if self.is_operator:
            return Caller.OPERATOR
        if topic is None:
            return Caller.GUEST
        if self.uid == topic.owner_uid:
            return Caller.OWNER
        if not topic.may_use(self.uid):
            return Caller.STRANGER
        if ownership is not None and self.uid == ownership.owner_uid:
            return Caller.OWN
        # Also one that nobody has registered yet: it will be the topic's owner's.
        if subscriber in topic.shared_subscribers:
            return Caller.SHARED
        if ownership is None:
            return Caller.GUEST
        return Caller.SHARED if self.uid in ownership.joined_uids else Caller.ANOTHERS

    def owns_when_new(self, topic: TopicSettings, subscriber: str) -> Ownership:
        """The owner of a subscriber that this user registers. A name that the topic shares belongs to the topic's owner."""
        if self.is_operator or subscriber in topic.shared_subscribers:
            return OF_TOPICS_OWNER
        return Ownership(self.uid)


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The holder of a token, which names a role and topics and says nothing of a user."""

    name: str
    role: Caller
    """One of `ROLES`."""
    topics: frozenset[str]
    """Empty: all topics."""

    def __str__(self) -> str:
        return f"the holder of token {self.name!r}"

    def caller(self, topic: str) -> Caller:
        """Return the role of the token for a topic; STRANGER if the token does not name the topic."""
        return self.role if not self.topics or topic in self.topics else Caller.STRANGER


Principal = User | TokenHolder


def verdict(request: str, caller: Caller) -> Verdict:
    """Return the verdict of the table. Raises KeyError for a request that the table does not name: such a request is not carried out."""
    return _VERDICTS[request, caller]


def require(principal: Principal, caller: Caller, request: str, where: str = "") -> Verdict:
    """Return the verdict of the table, unless the verdict is no.

    Args:
        where: the topic and subscriber, in words.

    Raises:
        NotAllowed: the caller may not.
    """
    found = verdict(request, caller)
    if found in (Verdict.NO, Verdict.NEVER):
        place = f" ({where})" if where else ""
        raise NotAllowed(f"{principal} may not {TABLE[request].doing}{place}: {_WHO_MAY[caller]}")
    return found


def markdown() -> str:
    """The table as docs/security.md has it."""
    parts = [
        _part("request to a worker", _OF_WORKERS, USERS),
        _part("request about topics", _OF_TOPICS, (Caller.OPERATOR, Caller.OWNER, Caller.GUEST, Caller.STRANGER)),
        _part("request to the archiver", _OF_ARCHIVERS, (Caller.OPERATOR, Caller.OWNER, Caller.GUEST, Caller.STRANGER)),
        _part("Flight call", _OF_FLIGHT, (*ROLES, Caller.STRANGER)),
    ]
    return "\n\n".join(parts)


def _part(title: str, rows: tuple[Row, ...], callers: tuple[Caller, ...]) -> str:
    def lines() -> Iterator[str]:
        yield f"| {title} | " + " | ".join(caller.value for caller in callers) + " |"
        yield "|" + "---|" * (len(callers) + 1)
        for row in rows:
            cells = " | ".join(verdict(row.name, caller).value for caller in callers)
            yield f"| `{row.name}` | {cells} |"

    return "\n".join(lines())


if __name__ == "__main__":
    print(markdown())
