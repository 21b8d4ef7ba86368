"""Another user at the control socket: it does what it may to its own topics, and nothing to anybody else's.

The node is a real one; a second user asks where the tests run as root.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol import topic_requests as requests
from quiver_actors.cli.main import main
from quiver_actors.cli.web.server import MetricsServer, parse_address
from quiver_actors.errors import NotAllowed, NotRunning, QuotaExceeded, UsageError
from quiver_actors.store.status.status_view import take_status
from quiver_actors.supervisor import control
from quiver_actors.supervisor.errors import ControlError
from tests.integration.client_node import ClientNode, client_node, numbers
from tests.security.guest import AS_ROOT, GUEST_UID, IS_ROOT, OWNER_UID, Besieged, as_user, besieged

pytestmark = AS_ROOT

CONFIG = f"""
[access]
group = "nogroup"
max_topics = 3

[topics.configured]
owner = {OWNER_UID}

[topics.open]
allowed_uids = [{GUEST_UID}]

[topics.closed]
"""


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node(config=CONFIG) as running:
        running.directories.base.chmod(0o711)
        yield running


def ask(node: ClientNode, uid: int, request: requests.Request) -> requests.TopicReply:
    with as_user(uid, 65534) if IS_ROOT else contextlib.nullcontext():
        return requests.ask(str(node.directories.run), request)


def tell(node: ClientNode, uid: int, message: control.Request) -> control.Reply:
    with as_user(uid, 65534):
        return control.request(str(node.directories.run / control.SOCKET_NAME), message)


def operator(node: ClientNode, request: requests.Request) -> requests.TopicReply:
    return requests.ask(str(node.directories.run), request)


def owned(node: ClientNode, topic: str, **values: Any) -> None:
    """A topic of the owner, made by the operator."""
    operator(node, requests.Create(topic=topic, values={"owner": OWNER_UID, "allowed_uids": [GUEST_UID], **values}))


def test_the_owner_changes_and_deletes_its_topic(node: ClientNode) -> None:
    owned(node, "mine")
    changed = ask(node, OWNER_UID, requests.Change(topic="mine", values={"wal.flush_interval": "25ms"}))
    assert changed.topics["mine"].settings.wal.flush_interval_ns == 25_000_000
    ask(node, OWNER_UID, requests.Change(topic="mine", unset=["wal.flush_interval"]))
    deleted = ask(node, OWNER_UID, requests.Delete(topic="mine"))
    requests.until_applied(str(node.directories.run), deleted, 30.0, gone="mine")
    assert "mine" not in requests.list_topics(str(node.directories.run)).topics


@pytest.mark.parametrize("uid", [GUEST_UID, OWNER_UID])
@pytest.mark.parametrize("topic", ["default", "open", "closed", "not there"])
def test_whoever_does_not_own_a_topic_changes_and_deletes_nothing(node: ClientNode, uid: int, topic: str) -> None:
    before = operator(node, requests.List(limit=100)).topics
    for request in (
        requests.Change(topic=topic, values={"durability": "segment_only"}),
        requests.Change(topic=topic, unset=["durability"]),
        requests.Delete(topic=topic),
    ):
        with pytest.raises(NotAllowed, match="owns no topic"):
            ask(node, uid, request)
    assert operator(node, requests.List(limit=100)).topics == before


def test_users_see_the_topics_that_name_them_and_no_others(node: ClientNode) -> None:
    assert list(ask(node, GUEST_UID, requests.List(limit=100)).topics) == ["open"]
    assert list(ask(node, OWNER_UID, requests.List(limit=100)).topics) == ["configured"]
    assert ask(node, 60_000, requests.List(limit=100)).topics == {}
    assert ask(node, GUEST_UID, requests.List(limit=-1)).topics == {}


@pytest.mark.parametrize(
    "values",
    [
        {"owner": GUEST_UID},
        {"priority": 100},
        {"retention.min_free": 0},
        {"retention.quarantine_cap": "1TiB"},
        {"durability": "wal", "priority": 1},
        {str(number): 1 for number in range(1000)},
    ],
    ids=str,
)
def test_what_takes_from_others_is_not_the_owners_to_set(node: ClientNode, values: dict[str, Any]) -> None:
    with pytest.raises(NotAllowed):
        ask(node, OWNER_UID, requests.Change(topic="configured", values=values))


def test_what_the_configuration_says_is_not_the_owners_to_change_or_delete(node: ClientNode) -> None:
    with pytest.raises(UsageError, match="configuration"):
        ask(node, OWNER_UID, requests.Delete(topic="configured"))


def test_topics_of_one_user_are_limited_and_its_own(node: ClientNode) -> None:
    for number in range(3):
        reply = ask(node, GUEST_UID, requests.Create(topic=f"g{number}", values={"segment.target_size": "1MiB"}))
        assert reply.topics[f"g{number}"].settings.owner_uid == GUEST_UID
    with pytest.raises(QuotaExceeded):
        ask(node, GUEST_UID, requests.Create(topic="g3"))
    for wrong in ("closed-dead", "../../etc", "", "x" * 65):
        with pytest.raises(UsageError):
            ask(node, OWNER_UID, requests.Create(topic=wrong))
    with pytest.raises(NotAllowed):
        ask(node, OWNER_UID, requests.Delete(topic="g0"))
    for number in range(3):
        ask(node, GUEST_UID, requests.Delete(topic=f"g{number}"))


def test_the_node_is_the_operators(node: ClientNode) -> None:
    for message in (control.Ping(), control.Status(), control.Drain(), control.StopIntake(), control.Stop()):
        assert isinstance(tell(node, OWNER_UID, message), control.Refused)
    with pytest.raises(NotAllowed):
        ask(node, OWNER_UID, requests.Reload())
    assert node.process.status().state == "ready"


def test_lingering_users_shut_nobody_out(node: ClientNode) -> None:
    path = str(node.directories.run / control.SOCKET_NAME)
    with contextlib.ExitStack() as lingering:
        own = lingering.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        own.connect(path)
        with as_user(GUEST_UID, 65534):
            for _ in range(control.SESSIONS_MAX * 2):
                guest = lingering.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                guest.connect(path)
        assert node.process.status().state == "ready"
        own.sendall(control.encode_frame(control.Ping()))
        assert own.recv(100), "the operator's own connection was ended for those of a guest"


def test_a_user_has_one_request_a_connection(node: ClientNode) -> None:
    body = msgspec.msgpack.encode(requests.List(limit=0))
    frame = control.encode_frame(control.Ask(subject=requests.SUBJECT, body=body))
    with as_user(GUEST_UID, 65534), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guest:
        guest.connect(str(node.directories.run / control.SOCKET_NAME))
        guest.settimeout(30)
        guest.sendall(frame * 50)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while arrived := guest.recv(1 << 16):
                received += arrived
    assert len(control.FrameSplitter().feed(received)) == 1


WRONG_BODIES = [
    b"",
    b"\xc1",
    b"\x93\x01\x02\x03",
    msgspec.msgpack.encode({"op": "change", "topic": 7}),
    msgspec.msgpack.encode({"op": "nothing"}),
    b"\x91" * 50_000,
]


@pytest.mark.parametrize("body", WRONG_BODIES, ids=range(len(WRONG_BODIES)))
def test_what_is_no_request_is_refused(node: ClientNode, body: bytes) -> None:
    assert isinstance(tell(node, GUEST_UID, control.Ask(subject=requests.SUBJECT, body=body)), control.Refused)
    assert isinstance(tell(node, GUEST_UID, control.Ask(subject="?", body=body)), control.Refused)


def test_frames_over_the_limit_of_a_user_end_its_connection(node: ClientNode) -> None:
    with as_user(GUEST_UID, 65534), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guest:
        guest.connect(str(node.directories.run / control.SOCKET_NAME))
        guest.settimeout(30)
        guest.sendall(struct.pack("<I", control.GUEST_FRAME_BYTES_MAX + 1))
        assert guest.recv(1) == b""
    assert node.process.status().state == "ready"


ODD_VALUES: list[Any] = [None, True, -1, 1 << 70, 1.5, "", "x" * 5000, b"\xff"]
ODD_VALUES += [[], {}, [[]], {"a": {"b": []}}, [1] * 300, {1: 2}]
KEYS = [
    "durability",
    "slots",
    "allowed_uids",
    "wal.flush_interval",
    "segment.target_size",
    "retention.early_seal",
    "x" * 9000,
    ".",
]


def test_odd_and_mutated_requests_end_in_a_refusal_and_the_node_goes_on(node: ClientNode) -> None:
    owned(node, "odd")
    chance = random.Random(7)
    good = msgspec.msgpack.encode(requests.Change(topic="odd", values={"durability": "wal", "slots": {"a": 1}}))
    bodies = [
        msgspec.msgpack.encode({"op": "change", "topic": "odd", "values": {key: value}})
        for key in KEYS
        for value in ODD_VALUES
        if value != 1 << 70
    ]
    for _ in range(300):
        mutated = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        bodies.append(bytes(mutated))
    for body in bodies:
        with contextlib.suppress(ControlError):
            tell(node, OWNER_UID, control.Ask(subject=requests.SUBJECT, body=body))
    assert node.process.status().state == "ready"
    assert list(requests.list_topics(str(node.directories.run)).topics)[:1] == ["closed"]
    with node.connect() as client:
        client.push(numbers(1))


def test_the_figures_of_the_node_are_not_for_others_who_are_told_so(node: ClientNode) -> None:
    with as_user(GUEST_UID, 65534), pytest.raises(NotAllowed, match="for its own user"):
        take_status(str(node.directories.run))
    server = MetricsServer(str(node.directories.run), parse_address("127.0.0.1:0"))
    with as_user(GUEST_UID, 65534):
        pages = [server.page(path) for path in ("/status.json", "/ready", "/metrics")]
    server.release()
    assert [page.status for page in pages] == [503, 503, 503]
    assert all(b"for its own user" in page.body for page in pages)


def test_the_owner_looks_at_its_topic_and_drops_its_subscribers(
    node: ClientNode, capsys: pytest.CaptureFixture[str]
) -> None:
    def quiver(uid: int, *arguments: str) -> tuple[int, str]:
        with as_user(uid, 65534):
            code = main([*arguments, "--run-dir", str(node.directories.run)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    with node.connect() as client:
        client.create_topic("watched", {"owner": OWNER_UID, "allowed_uids": [GUEST_UID]})
        client.subscribe("late", topic="watched").close()
        client.push_many([numbers(number) for number in range(3)], topic="watched")
    drop = ("subscribers", "drop", "late", "--topic", "watched")
    assert quiver(OWNER_UID, "topics", "show", "watched")[0] == 0
    assert quiver(OWNER_UID, *drop, "--dry-run") == (
        0,
        "quiver: would drop subscriber late of topic watched and 3 bundles it is owed; this frees nothing, because it is the topic's last "
        "subscriber and a topic without subscribers keeps everything\n",
    )
    code, said = quiver(GUEST_UID, *drop, "--yes")
    assert code == 2
    assert "no subscriber 'late'" in said, "a guest does not see another's subscriber"
    assert quiver(OWNER_UID, *drop, "--yes")[0] == 0
    assert "no subscriber 'late'" in quiver(OWNER_UID, "subscribers", "drop", "late", "--yes")[1]


def test_without_a_group_nobody_else_reaches_the_socket() -> None:
    with client_node(config="") as closed:
        closed.directories.base.chmod(0o711)
        with pytest.raises(NotRunning):
            ask(closed, GUEST_UID, requests.List())
        assert os.stat(closed.directories.run / control.SOCKET_NAME).st_mode & 0o777 == 0o600


def test_subscribers_are_moved_by_the_owner_only() -> None:
    with besieged() as worker:
        worker.honest.register("theirs", topic="open")
        guest = worker.guest()
        guest.send(m.Seek(7, "open", "theirs", "latest"))
        assert guest.expect(m.Refused).code == "not_allowed"
        check_owner_seeks(worker)


def check_owner_seeks(worker: Besieged) -> None:
    owner = worker.guest(uid=OWNER_UID)
    owner.send(m.Seek(8, "open", "theirs", "latest"))
    assert owner.expect(m.Sought, lambda found: found.tag == 8)
