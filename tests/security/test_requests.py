"""Requests of another user that are not its to make, or that make no sense."""

from __future__ import annotations

import array
import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

from quiver_actors.base.model import ARCHIVE_SUBSCRIBER, ARCHIVER_CLIENT
from quiver_actors.base.protocol import messages as m
from quiver_actors.node.worker import subscriber_quota
from quiver_actors.node.worker.session import SCHEMAS_MAX
from quiver_actors.store.wal.foreign import FIELDS_MAX
from tests.security.guest import AS_ROOT, OWNER_UID, Besieged, besieged
from tests.unit.node.worker.harness import WireClient, table
from tests.unit.node.worker.spans import fingerprint_of

SCHEMA = table().schema
PRINT, MESSAGE = fingerprint_of(SCHEMA), SCHEMA.serialize().to_pybytes()


@pytest.fixture(scope="module")
def node() -> Iterator[Besieged]:
    with besieged(max_connections=900, max_arena_bytes=2 << 30, max_subscribers=10_000) as started:
        yield started


def refused(guest: WireClient, *messages: m.Message) -> m.Refused:
    with contextlib.suppress(BrokenPipeError):
        # The worker may cut the connection before it has read all of it.
        guest.send(*messages)
    return guest.expect(m.Refused)


OF_A_TOPIC = {
    "flush": lambda topic: m.Flush(1, topic),
    "list segments": lambda topic: m.ListSegments(1, topic),
    "list schemas": lambda topic: m.ListSchemas(1, topic),
    "list statistics": lambda topic: m.ListStatistics(1, topic),
    "count pruned": lambda topic: m.CountPruned(1, topic, 1 << 62),
    "open segment": lambda topic: m.OpenSegment(1, topic, 0),
    "register": lambda topic: m.Register(1, topic, "spy", "earliest"),
    "unregister": lambda topic: m.Unregister(1, topic, "spy"),
    "list subscribers": lambda topic: m.ListSubscribers(1, topic),
    "pending": lambda topic: m.Pending(1, topic, "spy"),
    "flush progress": lambda topic: m.FlushProgress(1, topic, "spy"),
    "push": lambda topic: m.Push(1, topic, 0, 64, 64, b"", b"", b""),
    "declare": lambda topic: m.DeclareSchema(1, topic, 0, PRINT, MESSAGE),
}


@AS_ROOT
@pytest.mark.parametrize("request_of", OF_A_TOPIC.values(), ids=OF_A_TOPIC)
@pytest.mark.parametrize("topic", ["closed", "default"])
def test_topics_of_others_are_closed(node: Besieged, topic: str, request_of: object) -> None:
    guest = node.guest()
    guest.attach_arena()
    assert refused(guest, request_of(topic)).code == "not_allowed"  # type: ignore[operator]
    node.check_undisturbed()


@AS_ROOT
def test_only_the_own_topics_are_named(node: Besieged) -> None:
    guest = node.guest()
    assert guest.welcome is not None
    assert [info.name for info in guest.welcome.topics] == ["open"]
    assert "closed" not in refused(guest, m.Flush(1, "nothing")).message


@AS_ROOT
def test_subscribers_are_dropped_by_the_owner_only(node: Besieged) -> None:
    node.honest.register("theirs", topic="open")
    assert refused(node.guest(), m.Unregister(7, "open", "theirs")).code == "not_allowed"
    owner = node.guest(uid=OWNER_UID)
    owner.send(m.Unregister(8, "open", "theirs"))
    owner.done(8)
    assert node.honest.expect(m.Refused).code == "unknown_subscriber"


@AS_ROOT
def test_what_is_not_archived_does_not_count_as_archived_because_the_topics_owner_says_so(node: Besieged) -> None:
    named = "open", ARCHIVE_SUBSCRIBER
    owner = node.guest(uid=OWNER_UID)
    assert refused(node.guest(name=ARCHIVER_CLIENT), m.Register(1, *named, "latest")).code == "not_allowed"
    for early in (m.Register(1, *named, "latest"), m.Seek(1, *named, "latest"), m.Unregister(1, *named)):
        assert refused(owner, early).code == "not_allowed"
    with node.worker.connect(name=ARCHIVER_CLIENT) as archiver:
        archiver.register(ARCHIVE_SUBSCRIBER, topic="open")
    for late in (m.AckThrough(1, *named, 0, 0), m.GapAck(1, *named, 1), m.ShareSubscriber(1, *named, [OWNER_UID])):
        assert refused(owner, late).code == "not_allowed"
    owner.send(m.Pending(1, *named))
    assert owner.expect(m.PendingInfo)


@AS_ROOT
def test_no_topic_is_made_for_another_users_dead_letters(node: Besieged) -> None:
    terms = m.Terms(max_deliveries=1)
    assert refused(node.guest(), m.Register(1, "open", "s", "earliest", terms)).code == "not_allowed"


@AS_ROOT
def test_subscribers_of_one_user_are_limited() -> None:
    with besieged(max_subscribers=3) as node:
        guest = node.guest()
        for number in range(3):
            guest.register(f"s{number}", topic="open")
        guest.register("s0", topic="open")
        assert refused(guest, m.Register(1, "open", "s3", "earliest")).code == "quota_exceeded"


@AS_ROOT
def test_durable_subscribers_of_one_user_are_limited() -> None:
    """The quota counts subscribers that it is not attached to, on every connection, and after a restart of its connections."""
    with besieged(max_durable_subscribers=3) as node:
        for number in range(3):
            with node.guest() as guest:
                guest.register(f"s{number}", topic="open")
        guest = node.guest()
        refusal = refused(guest, m.Register(1, "open", "s3", "earliest"))
        assert refusal.code == "too_many_subscribers"
        assert "may own 3" in refusal.message
        guest.register("s1", topic="open")
        owner = node.guest(uid=OWNER_UID)
        for number in range(4):
            owner.register(f"owners{number}", topic="open")
            node.honest.register(f"own{number}", topic="open")


@AS_ROOT
def test_there_is_room_for_the_owner_whatever_others_have_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One guest took all 1,024, and then the operator was refused."""
    monkeypatch.setattr(subscriber_quota, "GUESTS_SUBSCRIBERS_MAX", 3)
    monkeypatch.setattr(subscriber_quota, "SUBSCRIBERS_MAX", 5)
    with besieged(max_durable_subscribers=100, max_subscribers=100) as node:
        guest = node.guest()
        for number in range(3):
            guest.register(f"s{number}", topic="open")
        assert refused(guest, m.Register(1, "open", "s3", "earliest")).code == "too_many_subscribers"
        node.guest(uid=OWNER_UID).register("owners", topic="open")
        node.honest.register("operators", topic="open")
        refusal = refused(node.honest, m.Register(2, "open", "one-more", "earliest"))
        assert refusal.code == "too_many_subscribers"
        assert "5 subscribers" in refusal.message


@AS_ROOT
def test_shared_memory_of_one_user_is_limited() -> None:
    with besieged(max_arena_bytes=3 << 20) as node:
        first, second = node.guest(), node.guest()
        first.attach_arena(2 << 20)
        assert refused(second, m.AttachArena(1, 2 << 20)).code == "quota_exceeded"
        second.attach_arena(1 << 20)
        first.close()
        third = node.guest()
        third.attach_arena(1 << 20)


STAGES = {
    "begin": m.BeginStage(1, "open", "txn", 0, 0, 0, "", 1),
    "list": m.ListStages(1, "open"),
}


@AS_ROOT
@pytest.mark.parametrize("message", STAGES.values(), ids=STAGES)
def test_transactions_are_the_own_users(node: Besieged, message: m.Message) -> None:
    assert refused(node.guest(), message).code == "not_allowed"


BAD_IDS = ["", ".", "..", "../../etc/passwd", "a/b", "a\0b", "x" * 65, "ä", "a b", "-" * 65, "CON\n"]


@pytest.mark.parametrize("name", BAD_IDS)
def test_names_that_could_lead_elsewhere(node: Besieged, name: str) -> None:
    guest = node.guest()
    assert refused(guest, m.Register(1, "open", name, "earliest")).tag == 1
    assert refused(guest, m.Register(2, name, "s", "earliest")).tag == 2
    assert refused(guest, m.Flush(3, name)).tag == 3
    node.check_undisturbed()


def deep_schema() -> bytes:
    kind: pa.DataType = pa.int8()
    for _ in range(300):
        kind = pa.list_(kind)
    return pa.schema([pa.field("x", kind)]).serialize().to_pybytes()


WIDE = pa.schema([pa.field(f"f{number}", pa.int8()) for number in range(FIELDS_MAX + 1)]).serialize().to_pybytes()
EXTENSION = pa.schema([pa.field("x", pa.uuid())]).serialize().to_pybytes()
SCHEMAS = {
    "no Arrow": m.DeclareSchema(5, "open", 0, PRINT, b"not a schema"),
    "empty": m.DeclareSchema(5, "open", 0, PRINT, b""),
    "cut": m.DeclareSchema(5, "open", 0, PRINT, MESSAGE[:40]),
    "a batch": m.DeclareSchema(5, "open", 0, PRINT, table(1).serialize().to_pybytes()),
    "short fingerprint": m.DeclareSchema(5, "open", 0, PRINT[:31], MESSAGE),
    "slot 64": m.DeclareSchema(5, "open", 64, PRINT, MESSAGE),
    "negative slot": m.DeclareSchema(5, "open", -1, PRINT, MESSAGE),
    "handle of 33 bits": m.DeclareSchema(1 << 32, "open", 0, PRINT, MESSAGE),
    "negative handle": m.DeclareSchema(-1, "open", 0, PRINT, MESSAGE),
    "deep": m.DeclareSchema(5, "open", 0, PRINT, deep_schema()),
}
SCHEMAS_OF_GUESTS = {
    "wide": m.DeclareSchema(5, "open", 0, PRINT, WIDE),
    "extension type": m.DeclareSchema(5, "open", 0, PRINT, EXTENSION),
}


@pytest.mark.parametrize("message", SCHEMAS.values(), ids=SCHEMAS)
def test_bad_schemas_end_the_connection(node: Besieged, message: m.Message) -> None:
    guest = node.guest()
    refused(guest, message)
    assert guest.receive() is None
    node.check_undisturbed()


@AS_ROOT
@pytest.mark.parametrize("message", SCHEMAS_OF_GUESTS.values(), ids=SCHEMAS_OF_GUESTS)
def test_schemas_that_other_users_may_not_declare(node: Besieged, message: m.Message) -> None:
    guest = node.guest()
    refused(guest, message)
    assert guest.receive() is None


def test_a_handle_is_declared_once(node: Besieged) -> None:
    guest = node.guest()
    twice = m.DeclareSchema(5, "open", 0, PRINT, MESSAGE)
    refused(guest, twice, twice)
    assert guest.receive() is None


def test_a_flood_of_schemas_ends_the_connection(node: Besieged) -> None:
    guest = node.guest()
    refused(guest, *[m.DeclareSchema(handle, "open", 0, PRINT, MESSAGE) for handle in range(SCHEMAS_MAX + 1)])
    assert guest.receive() is None
    node.check_undisturbed()


def test_a_flood_of_large_schemas_ends_the_connection(node: Besieged) -> None:
    large = pa.schema([pa.field("x", pa.int8())], metadata={b"x": bytes(8 << 20)}).serialize().to_pybytes()
    guest = node.guest()
    refused(guest, *[m.DeclareSchema(handle, "open", 0, PRINT, large) for handle in range(9)])
    assert guest.receive() is None
    node.check_undisturbed()


def packed(*indexes: int) -> bytes:
    return array.array("I", indexes).tobytes()


NONSENSE = {
    "start": m.Register(1, "open", "s", "yesterday"),
    "start far away": m.Register(1, "open", "s", f"time:{1 << 70}"),
    "start that is negative": m.Register(1, "open", "s", "bundle:-1/-1/-1"),
    "lease": m.Register(1, "open", "s", "earliest", m.Terms(lease_ns=-1)),
    "order": m.Register(1, "open", "s", "earliest", m.Terms(order="random")),
    "ratio": m.Register(1, "open", "s", "earliest", m.Terms(backfill_ratio=1 << 40)),
    "window": m.Register(1, "open", "s", "earliest", m.Terms(max_in_flight_bundles=-5)),
    "exhausted": m.Register(1, "open", "s", "earliest", m.Terms(exhausted="explode")),
    "segment": m.OpenSegment(1, "open", 1 << 62),
    "negative segment": m.OpenSegment(1, "open", -1),
    "claim": m.ClaimRef(1, "open", "mine", -1, 1 << 40),
    "acknowledge what is not there": m.AckThrough(1, "open", "mine", 1 << 40, 0),
    "outcome": m.Resolve(1, "open", "mine", 0, 1, "explode", packed(0), 0),
    "indexes": m.Resolve(1, "open", "mine", 0, 1, "ack", b"abc", 0),
    "taken": m.Taken("open", "mine", 0, 1, b"abc"),
    "taken of nobody": m.Taken("open", "nobody", 0, 1, packed(0)),
    "arena": m.AttachArena(1, 1 << 62),
    "pending of nobody": m.Pending(1, "open", "nobody"),
}


@pytest.mark.parametrize("message", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_or_ends_the_connection(node: Besieged, message: m.Message) -> None:
    guest = node.guest()
    guest.register("mine", topic="open")
    refused(guest, message)
    node.check_undisturbed()


def test_claims_of_others_cannot_be_resolved(node: Besieged) -> None:
    node.check_undisturbed()
    node.honest.flush("open")
    node.honest.register("shared", topic="open", credit=1)
    deliver, indexes = node.honest.delivered("shared")
    thief = node.guest()
    thief.register("shared", topic="open")
    tag = thief.resolve(deliver, indexes)
    not_resolved = thief.expect(m.NotResolved)
    assert not_resolved.tag == tag
    node.honest.resolve(deliver, indexes, "defer")
    node.honest.flush_progress("shared", "open")
