"""The table of rights: it names every request, and a principal finds its column."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from quiver_actors.base import rights
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.protocol.archive_messages import ArchiveRequest
from quiver_actors.base.protocol.messages import ClientMessage
from quiver_actors.base.protocol.topic_requests import Request as TopicRequest
from quiver_actors.base.rights import Caller, Ownership, TokenHolder, User, Verdict
from quiver_actors.errors import NotAllowed
from quiver_actors.flight.server import REQUESTS as FLIGHT_REQUESTS

OWN, OWNER, GUEST, OTHER = 1000, 2000, 3000, 4000
TOPIC = TopicSettings(name="open", owner_uid=OWNER, allowed_uids=(GUEST, OTHER), shared_subscribers=("shared",))
SECURITY_PAGE = Path(__file__).parents[3] / "docs" / "security.md"


TICKETS = ("ReadTicket", "ScanTicket", "TableTicket", "BundlesTicket")


def names_of(union: object) -> list[str]:
    return [kind.__name__ for kind in typing.get_args(union)]


@pytest.mark.parametrize("name", names_of(ClientMessage))
def test_every_message_of_a_client_has_a_row(name: str) -> None:
    assert rights.verdict(name, Caller.OPERATOR) in (Verdict.YES, Verdict.HELD)
    assert rights.verdict(name, Caller.STRANGER) is Verdict.NO


def test_every_request_at_another_door_has_a_row() -> None:
    wanted = {f"topics.{name}" for name in names_of(TopicRequest)}
    wanted |= {f"flight.{name}" for name in [*FLIGHT_REQUESTS, *TICKETS, "Push"]}
    wanted |= {f"archive.{name}" for name in names_of(ArchiveRequest)}
    assert wanted <= rights.TABLE.keys()


def test_no_row_is_of_a_request_that_does_not_exist() -> None:
    known = {*names_of(ClientMessage), *(f"topics.{name}" for name in names_of(TopicRequest))}
    known |= {f"flight.{name}" for name in [*FLIGHT_REQUESTS, *TICKETS, "Push"]}
    known |= {f"archive.{name}" for name in names_of(ArchiveRequest)}
    assert {name.partition(":")[0] for name in rights.TABLE} <= known


def test_a_request_without_a_row_is_not_answered() -> None:
    with pytest.raises(KeyError):
        rights.verdict("DropEverything", Caller.OPERATOR)


def test_the_page_shows_the_table() -> None:
    assert rights.markdown() in SECURITY_PAGE.read_text()


CALLERS = {
    (OWN, "s", Ownership(GUEST)): Caller.OPERATOR,
    (0, "s", Ownership(GUEST)): Caller.OPERATOR,
    (OWNER, "s", Ownership(GUEST)): Caller.OWNER,
    (OWNER, "", None): Caller.OWNER,
    (GUEST, "s", Ownership(GUEST)): Caller.OWN,
    (GUEST, "s", Ownership(OTHER)): Caller.ANOTHERS,
    (GUEST, "s", Ownership()): Caller.ANOTHERS,
    (GUEST, "s", Ownership(OTHER, (GUEST,))): Caller.SHARED,
    (GUEST, "s", Ownership(None, (GUEST,))): Caller.SHARED,
    (GUEST, "shared", Ownership()): Caller.SHARED,
    (GUEST, "shared", Ownership(OTHER)): Caller.SHARED,
    (GUEST, "shared", Ownership(GUEST)): Caller.OWN,
    (GUEST, "shared", None): Caller.SHARED,
    (GUEST, "s", None): Caller.GUEST,
    (GUEST, "", None): Caller.GUEST,
    (5000, "s", Ownership(5000)): Caller.STRANGER,
    (5000, "shared", Ownership()): Caller.STRANGER,
}


@pytest.mark.parametrize(("case", "caller"), CALLERS.items(), ids=map(str, CALLERS))
def test_a_user_finds_its_column(case: tuple[int, str, Ownership | None], caller: Caller) -> None:
    uid, subscriber, ownership = case
    assert User(uid, OWN).caller(TOPIC, subscriber, ownership) is caller


def test_a_new_subscriber_is_its_makers_unless_the_topic_shares_its_name() -> None:
    assert User(GUEST, OWN).owns_when_new(TOPIC, "mine") == Ownership(GUEST)
    assert User(GUEST, OWN).owns_when_new(TOPIC, "shared") == Ownership()
    assert User(OWN, OWN).owns_when_new(TOPIC, "mine") == Ownership()


def test_a_token_speaks_for_its_topics_only() -> None:
    holder = TokenHolder("ci", Caller.READ, frozenset({"open"}))
    assert holder.caller("open") is Caller.READ
    assert holder.caller("closed") is Caller.STRANGER
    assert TokenHolder("all", Caller.ADMIN, frozenset()).caller("closed") is Caller.ADMIN


def test_a_refusal_names_who_what_and_where_and_what_to_do() -> None:
    user = User(GUEST, OWN)
    with pytest.raises(NotAllowed, match=r"user 3000 may not drop the subscriber \(topic 'open'\): .*share"):
        rights.require(user, Caller.ANOTHERS, "Unregister", "topic 'open'")
    assert rights.require(user, Caller.OWN, "Unregister") is Verdict.YES
