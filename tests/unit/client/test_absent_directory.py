"""A core that takes bundles cannot open its directory now: who subscribes waits for it, and is told by name."""

from __future__ import annotations

import pytest

from quiver_actors.base.protocol.messages import ClientMessage, Credit, Register
from quiver_actors.client import connect
from quiver_actors.errors import StorageUnavailable
from tests.unit.client.peer import Background, Peer, PeerSession, refuse

AWAY = refuse("storage_unavailable", "the directory of topic 'default' on this core cannot be opened now")


def refuse_second(session: PeerSession, message: ClientMessage) -> bool:
    return session.core == 1 and AWAY(session, message)


def test_who_subscribes_meanwhile_hears_that_it_is_the_directory_and_may_try_again(two_cores: Peer) -> None:
    two_cores.handlers[Register] = refuse_second
    with connect(two_cores.run_dir, timeout=1.0) as client:
        with pytest.raises(
            StorageUnavailable, match=r"'s' .* worker 1 .*cannot be opened now.*subscribe again"
        ) as caught:
            client.subscribe("s")
        assert caught.value.retriable
    assert not two_cores.of_type(Credit), "no core may deliver before all have registered"


def test_it_is_the_directory_also_if_the_time_ends_while_the_worker_is_asked_again(two_cores: Peer) -> None:
    asked: list[ClientMessage] = []

    def refuse_once(session: PeerSession, message: ClientMessage) -> bool:
        if session.core == 1:
            asked.append(message)
        return session.core == 1 and (len(asked) > 1 or AWAY(session, message))

    two_cores.handlers[Register] = refuse_once
    with connect(two_cores.run_dir, timeout=0.5) as client, pytest.raises(StorageUnavailable, match="opened now"):
        client.subscribe("s")
    assert len(asked) == 2


def test_a_core_that_is_back_in_time_is_subscribed_too(two_cores: Peer) -> None:
    two_cores.handlers[Register] = refuse_second
    with connect(two_cores.run_dir, timeout=3600.0) as client:
        subscribing = Background(lambda: client.subscribe("s"))
        two_cores.wait_for(
            lambda: [core for core, each in two_cores.received if isinstance(each, Register)].count(1) > 1
        )
        assert subscribing.is_running
        del two_cores.handlers[Register]
        subscription = subscribing.result()
        two_cores.wait_for(lambda: {core for core, each in two_cores.received if isinstance(each, Credit)} == {0, 1})
        subscription.close()  # type: ignore[attr-defined]


def test_another_fault_is_named_as_before(two_cores: Peer) -> None:
    two_cores.kill(1)
    with connect(two_cores.run_dir, timeout=0.5) as client, pytest.raises(Exception, match="worker 1 did not answer"):
        client.subscribe("s")
