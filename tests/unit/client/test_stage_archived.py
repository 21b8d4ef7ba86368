"""Stages whose producer waits until the archive has what was prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from quiver_actors.base.archive_status import ARCHIVE_STATUS_FILE, ArchivedStream, ArchiveStatus
from quiver_actors.base.protocol.messages import AbandonStage, BeginStage, ClientMessage, Done, PrepareStage, StageReady
from quiver_actors.client import Client, NotArchived
from quiver_actors.client.stage import Stage
from quiver_actors.errors import UsageError
from tests.unit.client.feeding import batch
from tests.unit.client.peer import Handler, Peer, PeerSession, refuse

INCARNATION = "ab" * 16


def begin(session: PeerSession, message: ClientMessage) -> bool:
    assert isinstance(message, BeginStage)
    session.send(Done(message.tag, 7))
    return True


def ready(before: Callable[[], object] = lambda: None, bundles: int = 1) -> Handler:
    """Answer that the stage is prepared."""

    def handler(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, PrepareStage)
        before()
        session.send(StageReady(message.tag, INCARNATION, 7, bundles, rows=2, size_bytes=3, expires_unix_ns=4))
        return True

    return handler


def say(peer: Peer, *stages: int) -> None:
    """Write the archiver's account of itself."""
    stream = ArchivedStream(topic="default", core=0, incarnation=INCARNATION, stages=stages)
    status = ArchiveStatus(url="s3://bucket", state="archiving", streams=(stream,))
    Path(peer.run_dir, ARCHIVE_STATUS_FILE).write_bytes(msgspec.json.encode(status))


@pytest.fixture
def stage(peer: Peer, client: Client) -> Stage:
    peer.handlers[BeginStage] = begin
    stage = client.stage("t")
    stage.push(batch(1))
    return stage


def test_it_returns_when_the_archiver_says_that_it_has_the_stage(peer: Peer, stage: Stage) -> None:
    peer.handlers[PrepareStage] = ready(lambda: say(peer, 6, 7))
    token = stage.prepare(until="archived")
    assert token is not None
    assert token.number == 7
    (asked,) = peer.of_type(PrepareStage)
    assert isinstance(asked, PrepareStage)
    assert asked.is_awaited


def test_after_its_timeout_the_stage_is_prepared_and_its_token_is_known(
    peer: Peer, client: Client, stage: Stage
) -> None:
    say(peer, 6)
    peer.handlers[PrepareStage] = ready()
    with pytest.raises(NotArchived, match=r"durable here, not archived.*has not uploaded stage 7 yet"):
        stage.prepare(until="archived", timeout=0.1)
    assert stage.token is not None
    stage.abort()
    assert not peer.of_type(AbandonStage), "it is prepared"
    say(peer, 7)
    client.wait_archived([stage.token], timeout=0)


def test_an_empty_stage_waits_for_nothing(peer: Peer, stage: Stage) -> None:
    peer.handlers[PrepareStage] = ready(bundles=0)
    assert stage.prepare(until="archived", timeout=30) is None


def test_where_a_topic_is_not_archived_the_stage_stays_open(peer: Peer, client: Client, stage: Stage) -> None:
    peer.handlers[PrepareStage] = refuse("usage", "not archived (archive.enabled)")
    with pytest.raises(UsageError, match=r"archive\.enabled"):
        stage.prepare(until="archived")
    with pytest.raises(UsageError, match="tomorrow"):
        stage.prepare(until="tomorrow")
    assert stage.is_open
    stage.abort()
    client.push(batch(2))
    assert peer.of_type(AbandonStage)
