"""The table of rights through the public client and the commands: another user, at a real node, with everything that the client offers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quiver_actors.base import rights
from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol import topic_requests as requests
from quiver_actors.base.protocol.messages import CheckSegment, CountPruned
from quiver_actors.base.rights import Caller, Verdict
from quiver_actors.cli.main import main
from quiver_actors.client import Client, connect
from quiver_actors.errors import NotAllowed, QuiverError, UnknownSubscriber, UnknownTopic
from tests.integration.client_node import ClientNode, client_node, numbers, take
from tests.security.guest import AS_ROOT, GUEST_UID, OTHER_UID, OWNER_UID, as_user

pytestmark = AS_ROOT

CONFIG = f"""
[segment]
max_open_duration = "50ms"

[access]
group = "nogroup"
max_topics = 1000
max_subscribers = 10000
max_durable_subscribers = 10000

[topics.open]
owner = {OWNER_UID}
allowed_uids = [{GUEST_UID}, {OTHER_UID}]
shared_subscribers = ["billing"]

[topics.open-dead]

[topics.closed]
"""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node(config=CONFIG, cores=2) as running:
        running.directories.base.chmod(0o711)
        with running.connect() as client:
            for topic in ("open", "closed"):
                client.push_many([numbers(number) for number in range(8)], topic=topic)
                client.flush(topic)
        yield running


@contextlib.contextmanager
def client_of(node: ClientNode, uid: int) -> Iterator[Client]:
    """A client of that user; everything that it does in this block is done as that user."""
    with as_user(uid, 65534), connect(node.directories.run, timeout=60) as client:
        yield client


def first_bundle(client: Client, topic: str) -> BundleId:
    return BundleId(topic, 0, client.segments(topic)[0][0].segment_seq, 0)


def consumed(client: Client, topic: str, name: str, resolve: Callable[[Any, Any], Any]) -> None:
    with client.subscribe(name, topic=topic, start="earliest") as deliveries:
        (delivery,) = take(deliveries, 1)
        resolve(deliveries, delivery)


def claimed(client: Client, topic: str, name: str) -> None:
    with client.subscribe(name, topic=topic, start="earliest", prefetch=1) as deliveries:
        (held,) = take(deliveries, 1)
        held.defer(3600)
        deliveries.flush()
        deliveries.claim(held.bundle_id).ack()


def confirmed(client: Client, topic: str, name: str) -> None:
    """Notices come to whoever is attached, and are acknowledged with what leaves then."""
    hold = client.hold(name, topic=topic)
    try:
        hold.look()
        hold.confirm(0, 0)
    finally:
        hold.close()


def deferred(deliveries: Any, delivery: Any) -> None:
    delivery.defer(0.0)
    deliveries.flush()


def staged(client: Client, topic: str, name: str) -> None:
    with client.transaction(f"txn-{name}") as transaction:
        transaction.push(numbers(1), topic=topic)


CALLS: dict[str, Callable[[Client, str, str], Any]] = {
    "Hello": lambda client, topic, name: client.topics(),
    "ListTopics": lambda client, topic, name: client.topics(),
    "AttachArena": lambda client, topic, name: client.push(numbers(1), topic=topic),
    "DeclareSchema": lambda client, topic, name: client.push(numbers(1), topic=topic),
    "Push": lambda client, topic, name: client.push(numbers(1), topic=topic),
    "Flush": lambda client, topic, name: client.flush(topic),
    "ListSegments": lambda client, topic, name: client.segments(topic),
    "ListSchemas": lambda client, topic, name: client.schemas(topic),
    "ListStatistics": lambda client, topic, name: client.statistics(topic),
    "OpenSegment": lambda client, topic, name: list(client.read(topic, 0)),
    "CheckSegment": lambda client, topic, name: client._exchange.run(
        client._requests._ask(0, lambda tag: CheckSegment(tag, topic, 0, "test"))
    ),
    "CountPruned": lambda client, topic, name: client._exchange.run(
        client._requests._ask(0, lambda tag: CountPruned(tag, topic, 1))
    ),
    "BundleTime": lambda client, topic, name: client._exchange.run(
        client._requests.starting(topic, first_bundle(client, topic))
    ),
    "ListSubscribers": lambda client, topic, name: client.subscribers(topic),
    "Register": lambda client, topic, name: client.subscribe(name, topic=topic).close(),
    "Register: destroying terms": lambda client, topic, name: client.subscribe(
        name, topic=topic, max_deliveries=1, exhausted="drop"
    ).close(),
    "Unregister": lambda client, topic, name: client.unsubscribe(name, topic=topic),
    "Seek": lambda client, topic, name: client.seek(name, "latest", topic=topic),
    "ShareSubscriber": lambda client, topic, name: client.share_subscriber(name, [GUEST_UID], topic=topic),
    "Credit": lambda client, topic, name: consumed(client, topic, name, lambda _, delivery: None),
    "ClaimRef": claimed,
    "Resolve": lambda client, topic, name: consumed(client, topic, name, lambda _, delivery: delivery.ack().wait()),
    "Extend": lambda client, topic, name: consumed(client, topic, name, lambda _, delivery: delivery.extend()),
    "Taken": lambda client, topic, name: consumed(client, topic, name, lambda _, delivery: None),
    "Unreadable": lambda client, topic, name: consumed(client, topic, name, deferred),
    "FlushProgress": lambda client, topic, name: consumed(client, topic, name, lambda all_, _: all_.flush()),
    "AckThrough": lambda client, topic, name: client.ack_through(BundleId(topic, 0, 0, 0), subscriber=name),
    "GapAck": confirmed,
    "Pending": lambda client, topic, name: consumed(client, topic, name, lambda all_, _: all_.pending_count()),
    "KeyedPush": lambda client, topic, name: client.push(numbers(1), topic=topic, producer=name, sequence=0),
    "BeginStage": staged,
    "StagePush": staged,
    "AbandonStage": staged,
    "PrepareStage": staged,
    "DropStages": lambda client, topic, name: client.drop_stages(topic, 0, client.staged_of(topic)[0][0], [], "test"),
    "PublishStages": staged,
    "ListStages": lambda client, topic, name: client.staged(topic),
    "Decide": lambda client, topic, name: client.find_decision(name),
}
BY_CONSUMER = {"Credit", "ClaimRef", "Resolve", "Extend", "Taken", "Unreadable", "FlushProgress", "GapAck", "Pending"}
"""Only a consumer that is attached sends them: the client registers a subscriber that nobody has registered."""


CELLS = [
    (name, caller)
    for name in CALLS
    for caller in (
        Caller.OPERATOR,
        Caller.OWNER,
        Caller.OWN,
        Caller.SHARED,
        Caller.ANOTHERS,
        Caller.GUEST,
        Caller.STRANGER,
    )
    if rights.verdict(name, caller) is not Verdict.NEVER
    # Messages that name no topic: those of a stranger are refused with its greeting.
    and not (caller is Caller.STRANGER and name in ("Hello", "ListTopics", "Decide"))
]


def subject(node: ClientNode, caller: Caller) -> tuple[int, str, str]:
    """User, topic and subscriber that make the user that caller."""
    name = f"c{next(_numbers)}"
    if caller is Caller.STRANGER:
        with node.connect() as operator:
            operator.subscribe(name, topic="closed", start="earliest").close()
        return GUEST_UID, "closed", name
    if caller is not Caller.GUEST:
        with client_of(node, GUEST_UID if caller is Caller.OWN else OTHER_UID) as owner:
            owner.subscribe(name, topic="open", start="earliest").close()
            if caller is Caller.SHARED:
                owner.share_subscriber(name, [GUEST_UID], topic="open")
    return {Caller.OPERATOR: 0, Caller.OWNER: OWNER_UID}.get(caller, GUEST_UID), "open", name


def owed(node: ClientNode, topic: str, name: str) -> list[int]:
    """What a subscriber is owed, core by core, as the operator hears it."""
    with node.connect() as operator:
        found = [info for infos in operator.subscribers(topic).values() for info in infos if info.subscriber == name]
    return [info.pending + info.claimed + info.deferred + info.unsealed for info in found]


@pytest.mark.parametrize(("name", "caller"), CELLS, ids=lambda value: getattr(value, "name", value))
def test_every_cell(node: ClientNode, name: str, caller: Caller) -> None:
    verdict = rights.verdict(name, caller)
    uid, topic, subscriber = subject(node, caller)
    before = owed(node, topic, subscriber)
    error: tuple[type[QuiverError], ...] = ()
    if verdict is Verdict.NO:
        # A client that was not told of a topic does not ask for it.
        error = (NotAllowed, UnknownTopic) if caller is Caller.STRANGER else (NotAllowed,)
    elif verdict is Verdict.UNKNOWN and name not in BY_CONSUMER:
        error = (UnknownSubscriber,)
    with client_of(node, uid) as client:
        if not error:
            CALLS[name](client, topic, subscriber)
        else:
            with pytest.raises(error):
                CALLS[name](client, topic, subscriber)
    if verdict is Verdict.NO:
        assert owed(node, topic, subscriber) == before


def test_every_row_is_tried() -> None:
    assert CALLS.keys() == {name for name in rights.TABLE if "." not in name}


ABOUT_TOPICS: dict[str, Callable[[str], requests.Request]] = {
    "topics.List": lambda topic: requests.List(),
    "topics.Create": lambda topic: requests.Create(topic=f"{topic}-new", values={}),
    "topics.Change": lambda topic: requests.Change(topic=topic, values={"orphan_ttl": "1h"}),
    "topics.Change: operator's settings": lambda topic: requests.Change(topic=topic, values={"priority": 1}),
    "topics.Delete": lambda topic: requests.Delete(topic=topic),
    "topics.Reload": lambda topic: requests.Reload(),
}


@pytest.mark.parametrize("caller", [Caller.OPERATOR, Caller.OWNER, Caller.GUEST, Caller.STRANGER], ids=str)
@pytest.mark.parametrize("name", ABOUT_TOPICS)
def test_every_cell_about_topics(node: ClientNode, name: str, caller: Caller) -> None:
    topic, run_dir = f"t{next(_numbers)}", str(node.directories.run)
    users = [GUEST_UID] if caller is Caller.GUEST else [OTHER_UID]
    requests.ask(run_dir, requests.Create(topic=topic, values={"owner": OWNER_UID, "allowed_uids": users}))
    uid = {Caller.OPERATOR: 0, Caller.OWNER: OWNER_UID}.get(caller, GUEST_UID)
    with as_user(uid, 65534):
        if rights.verdict(name, caller) is Verdict.NO:
            with pytest.raises(NotAllowed):
                requests.ask(run_dir, ABOUT_TOPICS[name](topic))
        elif rights.verdict(name, caller) is Verdict.SEEN:
            assert (topic in requests.list_topics(run_dir).topics) == (caller is not Caller.STRANGER)
        else:
            requests.ask(run_dir, ABOUT_TOPICS[name](topic))


def test_every_row_about_topics_is_tried() -> None:
    assert ABOUT_TOPICS.keys() == {name for name in rights.TABLE if name.startswith("topics.")}


def test_a_guest_joins_what_the_topic_shares_and_destroys_nothing(node: ClientNode) -> None:
    with client_of(node, GUEST_UID) as guest:
        with guest.subscribe("billing", topic="open", start="earliest") as deliveries:
            take(deliveries, 1)[0].ack().wait()
        with pytest.raises(NotAllowed):
            guest.unsubscribe("billing", topic="open")
    with client_of(node, OTHER_UID) as other, other.subscribe("billing", topic="open") as deliveries:
        take(deliveries, 1)[0].ack().wait()


def test_a_time_to_live_of_another_guest_drops_nobody(node: ClientNode) -> None:
    uid, topic, name = subject(node, Caller.SHARED)
    with client_of(node, uid) as guest, pytest.raises(NotAllowed, match="terms that destroy"):
        guest.subscribe(name, topic=topic, orphan_ttl=0.001)
    hold_name = subject(node, Caller.ANOTHERS)[2]
    with client_of(node, uid) as guest:
        hold = guest.hold(hold_name, topic=topic, ttl=0.001)
        with contextlib.closing(hold), pytest.raises(NotAllowed):
            hold.look()
    assert owed(node, topic, name)
    assert owed(node, topic, hold_name)


def with_letters(node: ClientNode, topic: str) -> None:
    """A topic of the guest's, and one for its dead letters that is not."""
    with node.connect() as operator:
        operator.create_topic(topic, {"allowed_uids": [GUEST_UID]})
        operator.create_topic(f"{topic}-dead", {"allowed_uids": []})


@pytest.mark.parametrize("letters", ["closed", None])
def test_dead_letters_are_refused_where_the_guest_may_not_push(node: ClientNode, letters: str | None) -> None:
    with_letters(node, topic := f"walled{next(_numbers)}")
    with client_of(node, GUEST_UID) as guest, pytest.raises(NotAllowed):
        guest.subscribe("s", topic=topic, max_deliveries=1, dead_letter_topic=letters)


def test_no_letter_is_written_once_the_guest_may_not_push_there_any_more(node: ClientNode) -> None:
    with_letters(node, topic := f"walled{next(_numbers)}")
    with node.connect() as operator:
        operator.set_topic(f"{topic}-dead", {"allowed_uids": [GUEST_UID]})
        with as_user(GUEST_UID, 65534):
            guest = connect(node.directories.run, timeout=60)
            deliveries = guest.subscribe("s", topic=topic, max_deliveries=1)
            guest.push(numbers(1), topic=topic)
        with guest:
            operator.set_topic(f"{topic}-dead", {"allowed_uids": []})
            take(deliveries, 1)[0].defer()
            deliveries.flush()
            node.process.wait_for("dead_letter.impossible", "may not push")
        assert _blocked(operator, topic) == 1
        operator.flush(f"{topic}-dead")
        assert not any(operator.segments(f"{topic}-dead").values())


def _blocked(operator: Client, topic: str) -> int:
    return sum(info.blocked for infos in operator.subscribers(topic).values() for info in infos)


def test_owners_outlive_the_worker(node: ClientNode) -> None:
    name, shared = subject(node, Caller.ANOTHERS)[2], subject(node, Caller.SHARED)[2]
    for core in range(node.cores):
        node.kill_worker(core)
    with client_of(node, GUEST_UID) as guest:
        with pytest.raises(NotAllowed, match="another user's"):
            guest.subscribe(name, topic="open")
        guest.subscribe(shared, topic="open").close()
    with client_of(node, OTHER_UID) as other:
        assert other.unsubscribe(name, topic="open") >= 0


def test_the_command_shares_and_takes_back(node: ClientNode, capsys: pytest.CaptureFixture[str]) -> None:
    name = subject(node, Caller.ANOTHERS)[2]

    def share(uid: int, *arguments: str) -> tuple[int, str]:
        with as_user(uid, 65534):
            code = main(
                ["subscribers", "share", name, "--topic", "open", *arguments, "--run-dir", str(node.directories.run)]
            )
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    assert share(GUEST_UID, "--with", str(GUEST_UID))[0] == 2
    assert share(OTHER_UID, "--with", str(GUEST_UID)) == (
        0,
        f"quiver: subscriber {name} of topic open is shared with users {GUEST_UID}\n",
    )
    with client_of(node, GUEST_UID) as guest:
        guest.subscribe(name, topic="open").close()
    assert share(OTHER_UID, "--nobody", "--json")[0] == 0
    with client_of(node, GUEST_UID) as guest, pytest.raises(NotAllowed):
        guest.subscribe(name, topic="open")
    assert "does not exist" in share(OTHER_UID, "--with", "nobody-of-that-name")[1]
