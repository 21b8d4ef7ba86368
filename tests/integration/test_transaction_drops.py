"""Whoever drops prepared bundles races the commit of their transaction, through the public client and through Flight, with workers killed
in between: what was committed is published once, and what was dropped is committed by nobody."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import pytest

from quiver_actors.client import Client
from quiver_actors.errors import QuiverError, TransactionAborted, TransactionLost
from quiver_actors.flight.contract import DropRun
from quiver_actors.flight.remote import RemoteNode
from quiver_actors.transactions import Decision, Token
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, numbers

ROUNDS = 12
KILLED_EVERY = 4
TOPICS = ("default", "other")
CONFIG = """
[segment]
max_open_duration = "50ms"

[topics.other]
"""

Drop = Callable[[list[Token]], None]


@contextmanager
def flight(node: ClientNode) -> Iterator[RemoteNode]:
    command = [sys.executable, "-m", "quiver_actors.cli.main", "serve", "--run-dir", str(node.directories.run)]
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield RemoteNode("node", process.stdout.readline().split("location=")[1].split()[0])
        finally:
            process.terminate()


@contextmanager
def through_client(node: ClientNode) -> Iterator[Drop]:
    with node.connect() as client:
        yield client.abort_tokens


@contextmanager
def through_flight(node: ClientNode) -> Iterator[Drop]:
    with flight(node) as remote:

        def drop(tokens: list[Token]) -> None:
            for topic in TOPICS:
                remote.drop_run(DropRun(topic, tokens[0].txn_id, 0))

        yield drop


def prepared(client: Client, number: int) -> list[Token]:
    """Two parts of a transaction, in two topics."""
    found = []
    for partition, topic in enumerate(TOPICS):
        with client.stage(f"t-{number}", topic=topic, partition=partition) as staged:
            staged.push(numbers(number))
            token = staged.prepare()
        assert token is not None
        found.append(token)
    return found


def committed(client: Client, tokens: list[Token]) -> Decision | None:
    """The decision, until it is known; None for an abort."""
    while True:
        try:
            return client.decide(tokens[0].txn_id, 0, tokens)
        except TransactionAborted:
            return None
        except QuiverError as error:
            if not error.retriable:
                raise


def raced(drop: Drop, tokens: list[Token], act: Callable[[], None]) -> None:
    """Drop beside `act`; a drop may be refused, and may be cut off."""
    start = threading.Barrier(2)

    def dropping() -> None:
        start.wait()
        drop(tokens)

    with ThreadPoolExecutor(1) as pool:
        dropped = pool.submit(dropping)
        start.wait()
        act()
        with contextlib.suppress(QuiverError):
            dropped.result(120)


def visible(client: Client, topic: str) -> list[int]:
    client.flush(topic)
    bundles = [bundle for core in client.segments(topic) for bundle in client.read(topic, core)]
    return sorted(bundle.batch.column("id")[0].as_py() for bundle in bundles)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("through", [through_client, through_flight])
def test_of_a_drop_and_a_commit_one_comes_to_be(through: Callable[[ClientNode], AbstractContextManager[Drop]]) -> None:
    with client_node(config=CONFIG) as node, node.connect() as client, through(node) as drop:
        won: list[int] = []
        for number in range(ROUNDS):
            tokens = prepared(client, number)
            found: list[Decision | None] = []

            def act(tokens: list[Token] = tokens, number: int = number, found: list[Decision | None] = found) -> None:
                if number % KILLED_EVERY == 0:
                    node.kill_worker(0)
                found.append(committed(client, tokens))

            raced(drop, tokens, act)
            if found[0] is None:
                drop(tokens)  # a kill may have cut it off
                with pytest.raises(TransactionLost):
                    client.publish(tokens)
                continue
            client.publish(tokens)
            won.append(number)
        wait_until(lambda: not any(client.staged(topic).get(0) for topic in TOPICS), "nothing is staged any more")
        for topic in TOPICS:
            assert visible(client, topic) == won
