"""Every cell of the table of rights that is about workers, by raw frames: a request is carried out, or refused, as the cell says."""

from __future__ import annotations

import array
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from quiver_actors.base import rights
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.rights import USERS, Caller, Verdict
from tests.security.guest import AS_ROOT, GUEST_UID, OTHER_UID, OWNER_UID, STRANGER_UID, Besieged, besieged
from tests.unit.node.worker.harness import WireClient, table
from tests.unit.node.worker.spans import fingerprint_of

pytestmark = AS_ROOT

SCHEMA = table().schema
TAG = 7
PROBE = 99
NOT_ALLOWED, UNKNOWN, NOT_CLAIMED = "not_allowed", "unknown_subscriber", "not_claimed"
NO_TOKEN = 1
"""A token that nobody was given."""


def indexes(*numbers: int) -> bytes:
    return array.array("I", numbers).tobytes()


def tokens(*numbers: int) -> bytes:
    return array.array("Q", numbers).tobytes()


MESSAGES: dict[str, Callable[[str, str], m.Message]] = {
    "ListTopics": lambda topic, name: m.ListTopics(TAG),
    "AttachArena": lambda topic, name: m.AttachArena(TAG, 1 << 20),
    "DeclareSchema": lambda topic, name: m.DeclareSchema(
        0, topic, 0, fingerprint_of(SCHEMA), SCHEMA.serialize().to_pybytes()
    ),
    "Push": lambda topic, name: m.Push(TAG, topic, 0, 0, 0, b"", b"", b""),
    "Flush": lambda topic, name: m.Flush(TAG, topic),
    "ListSegments": lambda topic, name: m.ListSegments(TAG, topic),
    "ListSchemas": lambda topic, name: m.ListSchemas(TAG, topic),
    "ListStatistics": lambda topic, name: m.ListStatistics(TAG, topic),
    "OpenSegment": lambda topic, name: m.OpenSegment(TAG, topic, 0),
    "CheckSegment": lambda topic, name: m.CheckSegment(TAG, topic, 0, "test"),
    "CountPruned": lambda topic, name: m.CountPruned(TAG, topic, 1),
    "BundleTime": lambda topic, name: m.BundleTime(TAG, topic, 0, 0),
    "ListSubscribers": lambda topic, name: m.ListSubscribers(TAG, topic),
    "Register": lambda topic, name: m.Register(TAG, topic, name, "latest"),
    "Register: destroying terms": lambda topic, name: m.Register(
        TAG, topic, name, "latest", m.Terms(max_deliveries=1, exhausted="drop")
    ),
    "Unregister": lambda topic, name: m.Unregister(TAG, topic, name),
    "Seek": lambda topic, name: m.Seek(TAG, topic, name, "latest"),
    "ShareSubscriber": lambda topic, name: m.ShareSubscriber(TAG, topic, name, [GUEST_UID]),
    "Credit": lambda topic, name: m.Credit(topic, name, 1),
    "ClaimRef": lambda topic, name: m.ClaimRef(TAG, topic, name, 0, 0),
    "Resolve": lambda topic, name: m.Resolve(TAG, topic, name, 0, NO_TOKEN, "ack", indexes(0), 0),
    "Extend": lambda topic, name: m.Extend(TAG, topic, name, tokens(NO_TOKEN)),
    "Unreadable": lambda topic, name: m.Unreadable(TAG, topic, name, 0, NO_TOKEN, indexes(0), "test"),
    "Taken": lambda topic, name: m.Taken(topic, name, 0, NO_TOKEN, indexes(0)),
    "FlushProgress": lambda topic, name: m.FlushProgress(TAG, topic, name),
    "AckThrough": lambda topic, name: m.AckThrough(TAG, topic, name, 0, 0),
    "GapAck": lambda topic, name: m.GapAck(TAG, topic, name, 0),
    "Pending": lambda topic, name: m.Pending(TAG, topic, name),
    "KeyedPush": lambda topic, name: m.KeyedPush(TAG, topic, 0, 0, 0, b"", b"", b"", producer="p"),
    "BeginStage": lambda topic, name: m.BeginStage(TAG, topic, "txn", 0, 0, 0, "", 1),
    "StagePush": lambda topic, name: m.StagePush(TAG, topic, 0, 0, 0, b"", b"", b"", stage=1),
    "AbandonStage": lambda topic, name: m.AbandonStage(topic, 1),
    "PrepareStage": lambda topic, name: m.PrepareStage(TAG, topic, 1),
    "DropStages": lambda topic, name: m.DropStages(TAG, topic, "0" * 32, [1]),
    "PublishStages": lambda topic, name: m.PublishStages(TAG, topic, "txn", "0" * 32, [1]),
    "ListStages": lambda topic, name: m.ListStages(TAG, topic),
    "Decide": lambda topic, name: m.Decide(TAG, "txn", 0, "find"),
}
HARMFUL = (
    "Register: destroying terms",
    "Unregister",
    "Seek",
    "AckThrough",
    "ClaimRef",
    "Resolve",
    "Taken",
    "Unreadable",
)
"""What must not touch another's subscriber where it is refused."""
CELLS = [
    (name, caller)
    for name in rights.TABLE
    if "." not in name and name != "Hello"
    for caller in USERS
    if rights.verdict(name, caller) is not Verdict.NEVER
    # Whom no topic names is not greeted, and sends nothing else: a test of its own.
    and not (caller is Caller.STRANGER and not hasattr(MESSAGES[name]("closed", ""), "topic"))
]


_numbers = itertools.count()
"""Numbers for the names of subscribers made in this module."""


@dataclass
class Stage:
    """A besieged worker, and subscribers of topic `open` for each column."""

    node: Besieged
    clients: list[WireClient] = field(default_factory=list)

    def connect(self, uid: int) -> WireClient:
        client = self.node.guest(uid)
        self.clients.append(client)
        return client

    def caller(self, caller: Caller) -> tuple[WireClient, str, str]:
        """A connection that is that caller to a topic and a subscriber, both named."""
        name = f"s{next(_numbers)}"
        if caller is Caller.STRANGER:
            self.node.honest.register(name, topic="closed")
            return self.connect(GUEST_UID), "closed", name
        if caller is not Caller.GUEST:
            owner = self.connect(GUEST_UID if caller is Caller.OWN else OTHER_UID)
            owner.register(name, topic="open")
            if caller is Caller.SHARED:
                owner.send(m.ShareSubscriber(TAG, "open", name, [GUEST_UID]))
                owner.done(TAG)
        uid = {Caller.OPERATOR: 0, Caller.OWNER: OWNER_UID}.get(caller, GUEST_UID)
        return self.connect(uid), "open", name

    def pending(self, topic: str, name: str) -> m.PendingInfo | str:
        """Return how the subscriber stands, as the operator hears it."""
        operator = self.connect(0)
        operator.send(m.Pending(TAG, topic, name))
        answer = operator.receive()
        return answer.code if isinstance(answer, m.Refused) else answer  # type: ignore[return-value]

    def close(self) -> None:
        for client in self.clients:
            client.close()
            self.node._guests.remove(client)
        self.clients.clear()


@pytest.fixture(scope="module")
def node() -> Iterator[Besieged]:
    with besieged(max_connections=900, max_subscribers=10_000, max_durable_subscribers=10_000) as started:
        for _ in range(3):
            started.check_undisturbed()
        started.honest.flush("open")
        yield started


@pytest.fixture
def stage(node: Besieged) -> Iterator[Stage]:
    made = Stage(node)
    yield made
    made.close()


def answer_to(client: WireClient, message: m.Message) -> m.Message | None:
    """The answer; of a message that has none, what came before the answer to a question behind it. None: nothing but the connection's
    going on."""
    tag = getattr(message, "tag", None)
    client.send(message, m.ListTopics(PROBE))
    first: m.Message | None = None
    while (received := client.receive()) is not None:
        if isinstance(received, m.Refused) and received.tag in (tag, 0):
            return received
        if tag is not None and getattr(received, "tag", None) == tag:
            return received
        if tag is None and isinstance(received, m.TopicList) and received.tag == PROBE:
            return first
    raise AssertionError(f"the connection ended without an answer to {message}")


@pytest.mark.parametrize(("name", "caller"), CELLS, ids=lambda value: getattr(value, "name", value))
def test_every_cell(stage: Stage, name: str, caller: Caller) -> None:
    verdict = rights.verdict(name, caller)
    client, topic, subscriber = stage.caller(caller)
    if name == "Credit" and verdict is Verdict.YES:
        client.register(subscriber, topic=topic)
    before = stage.pending(topic, subscriber)
    answer = answer_to(client, MESSAGES[name](topic, subscriber))
    code = answer.code if isinstance(answer, m.Refused) else ""
    if verdict is Verdict.NO:
        assert code == NOT_ALLOWED
    elif verdict is Verdict.UNKNOWN:
        assert code == UNKNOWN
    else:
        assert code not in (NOT_ALLOWED, UNKNOWN)
    if verdict is Verdict.HELD:
        is_silent = name in ("GapAck", "Taken")
        assert isinstance(answer, m.NotResolved) or code == NOT_CLAIMED or _has_ended(answer) or is_silent
    if verdict in (Verdict.NO, Verdict.HELD) and name in HARMFUL:
        assert stage.pending(topic, subscriber) == before
    stage.node.check_undisturbed()


def _has_ended(answer: m.Message | None) -> bool:
    return isinstance(answer, m.Extended) and answer.ended == tokens(NO_TOKEN)


def test_every_row_is_tried() -> None:
    assert MESSAGES.keys() == {name for name in rights.TABLE if "." not in name} - {"Hello"}


def test_a_user_whom_no_topic_names_is_not_greeted(node: Besieged) -> None:
    stranger = node.guest(STRANGER_UID, greet=False)
    assert stranger.expect(m.Refused).code == NOT_ALLOWED
    assert stranger.receive() is None


@pytest.mark.parametrize("caller", [Caller.OPERATOR, Caller.OWNER, Caller.OWN, Caller.SHARED])
def test_what_a_connection_holds_is_its_to_resolve(stage: Stage, caller: Caller) -> None:
    client, topic, subscriber = stage.caller(caller)
    client.register(subscriber, topic=topic, credit=2)
    deliver, held = client.delivered(subscriber)
    before = stage.pending(topic, subscriber)
    answer = answer_to(client, m.Extend(TAG, topic, subscriber, tokens(deliver.token)))
    assert isinstance(answer, m.Extended)
    assert not answer.ended
    client.credit(subscriber, -2, topic=topic)
    client.resolve(deliver, held)
    client.flush_progress(subscriber, topic)
    counts = stage.pending(topic, subscriber)
    assert isinstance(before, m.PendingInfo)
    assert isinstance(counts, m.PendingInfo)
    assert counts.in_range == before.in_range - len(held)


def test_what_another_connection_holds_is_not_marked_as_seen(stage: Stage) -> None:
    """A mark makes a bundle count as delivered, and by that an exhausted one."""
    name = f"s{next(_numbers)}"
    owner, joiner = stage.connect(OTHER_UID), stage.connect(GUEST_UID)
    terms = m.Terms(max_deliveries=1, exhausted="drop")
    owner.send(m.Register(TAG, "open", name, "earliest", terms, tells_taken=True))
    owner.done(TAG)
    owner.send(m.ShareSubscriber(TAG, "open", name, [GUEST_UID]))
    owner.done(TAG)
    owner.credit(name, 2, topic="open")
    deliver, held = owner.delivered(name)
    joiner.register(name, topic="open")
    before = stage.pending("open", name)
    answer_to(joiner, m.Taken("open", name, deliver.segment_seq, deliver.token, indexes(*held)))
    stage.clients.remove(owner)
    owner.close()
    stage.node._guests.remove(owner)
    after = stage.pending("open", name)
    assert isinstance(before, m.PendingInfo)
    assert isinstance(after, m.PendingInfo)
    assert after.in_range == before.in_range, "nothing was dropped"


def test_lists_name_what_the_caller_may_use(stage: Stage) -> None:
    names = {}
    for caller in (Caller.OWN, Caller.SHARED, Caller.ANOTHERS):
        names[caller] = stage.caller(caller)[2]
    listed = {}
    for uid in (GUEST_UID, OWNER_UID, 0):
        answer = answer_to(stage.connect(uid), m.ListSubscribers(TAG, "open"))
        assert isinstance(answer, m.SubscriberList)
        listed[uid] = {info.subscriber for info in answer.subscribers} & set(names.values())
    assert listed[GUEST_UID] == {names[Caller.OWN], names[Caller.SHARED]}
    assert listed[OWNER_UID] == listed[0] == set(names.values())
    topics = answer_to(stage.connect(GUEST_UID), m.ListTopics(TAG))
    assert isinstance(topics, m.TopicList)
    assert [info.name for info in topics.topics] == ["open"]


def test_the_last_owners_terms_hold_and_a_joiner_changes_none(stage: Stage) -> None:
    """A tiny lease of a joiner would make `max_deliveries` of the owner drop what nobody has looked at."""
    name = f"s{next(_numbers)}"
    owner, joiner = stage.connect(OTHER_UID), stage.connect(GUEST_UID)
    owner.register(name, topic="open", terms=m.Terms(max_deliveries=1, exhausted="drop"))
    owner.send(m.ShareSubscriber(TAG, "open", name, [GUEST_UID]))
    owner.done(TAG)
    joiner.register(name, topic="open", terms=m.Terms(lease_ns=1_000), credit=1)
    deliver, held = joiner.delivered(name)
    answer = answer_to(joiner, m.Extend(TAG, "open", name, tokens(deliver.token)))
    assert isinstance(answer, m.Extended)
    assert not answer.ended, "the joiner's lease of a microsecond does not hold"
    joiner.resolve(deliver, held, "return")


def test_the_share_ends_at_once(stage: Stage) -> None:
    client, topic, name = stage.caller(Caller.SHARED)
    client.register(name, topic=topic, credit=1)
    client.delivered(name)
    operator = stage.connect(0)
    operator.send(m.ShareSubscriber(TAG, topic, name, []))
    operator.done(TAG)
    refused = client.expect(m.Refused)
    assert (refused.tag, refused.code) == (0, NOT_ALLOWED)
    counts = stage.pending(topic, name)
    assert isinstance(counts, m.PendingInfo)
    assert counts.claimed == 0, "what it held can be claimed by others"
    answer = answer_to(client, m.Credit(topic, name, 5))
    assert isinstance(answer, m.Refused)
    assert answer.code == NOT_ALLOWED


@pytest.mark.parametrize("caller", [Caller.OPERATOR, Caller.OWNER])
def test_a_name_that_a_guest_registered_first_is_the_topics_owners_once_that_joins(
    stage: Stage, caller: Caller
) -> None:
    """Else whoever guesses a name, or is quicker on one of the cores, moves and empties a subscriber of the topic's owner."""
    name = f"s{next(_numbers)}"
    guest, owner = stage.connect(GUEST_UID), stage.connect(0 if caller is Caller.OPERATOR else OWNER_UID)
    # The guest holds a bundle, and its own terms would drop that bundle when the guest loses it.
    guest.register(name, topic="open", credit=1, terms=m.Terms(max_deliveries=1, exhausted="drop"))
    guest.delivered(name)
    before = stage.pending("open", name)
    owner.register(name, topic="open")
    refused = guest.expect(m.Refused)
    assert (refused.tag, refused.code) == (0, NOT_ALLOWED)
    for request in (*HARMFUL, "Register", "Credit", "GapAck", "ShareSubscriber"):
        answer = answer_to(stage.connect(GUEST_UID), MESSAGES[request]("open", name))
        assert isinstance(answer, m.Refused), request
        assert answer.code == NOT_ALLOWED, request
    counts = stage.pending("open", name)
    assert isinstance(before, m.PendingInfo)
    assert isinstance(counts, m.PendingInfo)
    assert (counts.claimed, counts.in_range) == (0, before.in_range), "nothing of it is lost"


def test_another_guest_takes_no_name_over(stage: Stage) -> None:
    owner, _, name = stage.caller(Caller.OWN)
    joiner = stage.connect(OTHER_UID)
    answer = answer_to(joiner, MESSAGES["Register"]("open", name))
    assert isinstance(answer, m.Refused)
    assert not isinstance(answer_to(owner, MESSAGES["Seek"]("open", name)), m.Refused)


@pytest.mark.parametrize("uids", [[-1], [1 << 32], list(range(2_000))], ids=["negative", "too large", "too many"])
def test_nonsense_in_a_share_is_refused(stage: Stage, uids: list[int]) -> None:
    client, topic, name = stage.caller(Caller.OWN)
    answer = answer_to(client, m.ShareSubscriber(TAG, topic, name, uids))
    assert isinstance(answer, m.Refused)
    assert answer.code == "usage"


@pytest.mark.parametrize("letters", ["closed", "default"])
def test_dead_letters_go_only_where_the_caller_may_push(stage: Stage, letters: str) -> None:
    client, topic, name = stage.caller(Caller.OWN)
    terms = m.Terms(max_deliveries=1, dead_letter_topic=letters)
    answer = answer_to(client, m.Register(TAG, topic, name, "latest", terms))
    assert isinstance(answer, m.Refused)
    assert answer.code == NOT_ALLOWED
