"""Questions to several nodes while nodes leave, come and fall silent. The nodes are Flight servers that answer, or say nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.flight as fl
import pytest

from quiver_actors.errors import NotRunning, UsageError, WorkerUnavailable
from quiver_actors.flight.contract import Contents, Done, Look, Node, Publish
from quiver_actors.flight.members import Member, MemberDirectory
from quiver_actors.spark import commit
from quiver_actors.spark.asking import in_background
from quiver_actors.spark.nodes import NodeSet, node_set
from quiver_actors.spark.options import READ, WRITE, SourceOptions, parse_options
from quiver_actors.transactions import Decisions, Token

DEADLINE_SECONDS = 50
"""Less than a question waits for a node that says nothing."""


class Peer(fl.FlightServerBase):
    """The server of one node, as far as questions need it."""

    def __init__(self, name: str, *, is_silent: bool = False) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.name = name
        self.published: list[str] = []
        self.is_asked = threading.Event()
        self._answers = threading.Event()
        self._has_ended = False
        if not is_silent:
            self._answers.set()

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        self.is_asked.set()
        self._answers.wait(2 * DEADLINE_SECONDS)
        if action.type == Publish.__name__:
            self.published += msgspec.json.decode(action.body.to_pybytes(), type=Publish).tokens
        answer = Contents(self.name, {}, []) if action.type == Look.__name__ else Done()
        return iter([msgspec.json.encode(answer)])

    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._answers.set()
            self.shutdown()


class Nodes:
    """Nodes of one directory, and those who ask them from a host without a node."""

    def __init__(self, where: Path, ending: ExitStack) -> None:
        self.where = where
        self.directory = MemberDirectory(str(where / "nodes"))
        self._ending = ending

    def start(self, name: str, *, is_silent: bool = False) -> Peer:
        peer = Peer(name, is_silent=is_silent)
        self._ending.callback(peer.end)
        self.directory.announce(Member(peer.name, f"grpc://127.0.0.1:{peer.port}"))
        return peer

    def options(self, operation: str = READ, timeout: str = "60s") -> SourceOptions:
        given = {"topic": "t", "nodes": str(self.where / "nodes"), "runDir": str(self.where), "pushTimeout": timeout}
        return parse_options(given, operation)

    def asked(self, timeout: str = "60s") -> NodeSet:
        return node_set(self.options(timeout=timeout))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as ending:
        yield Nodes(tmp_path, ending)


def look(node: Node) -> str:
    return node.look(Look("t")).node


def while_silent(peer: Peer, question: Callable[[], Any], then: Callable[[], object]) -> Any:
    """The answer to a question during which something happens to a node that says nothing."""
    answer: Future[Any] = in_background(question)
    assert peer.is_asked.wait(DEADLINE_SECONDS)
    then()
    return answer.result(DEADLINE_SECONDS)


def test_a_node_that_leaves_is_not_waited_for(nodes: Nodes) -> None:
    """An answer of it never came, and the query stood still until its time was over."""
    nodes.start("stays")
    leaving = nodes.start("leaves", is_silent=True)
    asked = nodes.asked()
    found = while_silent(leaving, lambda: asked.ask_all(look), lambda: nodes.directory.leave("leaves"))
    assert found == {"stays": "stays"}
    assert asked.ask_all(look) == {"stays": "stays"}


def test_who_needs_the_answer_of_a_node_that_leaves_is_told_at_once(nodes: Nodes) -> None:
    nodes.start("stays")
    leaving = nodes.start("leaves", is_silent=True)
    asked = nodes.asked()
    with pytest.raises(NotRunning, match=r"^leaves: not in .*nodes' any more"):
        while_silent(leaving, lambda: asked.ask(["leaves", "stays"], look), lambda: nodes.directory.leave("leaves"))


def test_of_named_nodes_those_answer_that_are_there(nodes: Nodes) -> None:
    nodes.start("stays")
    leaving = nodes.start("leaves", is_silent=True)
    asked, names = nodes.asked(), ["leaves", "left", "stays"]
    found = while_silent(leaving, lambda: asked.ask_present(names, look), lambda: nodes.directory.leave("leaves"))
    assert found == {"stays": "stays"}


def test_a_node_that_is_down_and_has_not_left_is_not_left_out(nodes: Nodes) -> None:
    nodes.start("stays")
    nodes.start("silent", is_silent=True)
    gone = nodes.start("gone")
    with pytest.raises(WorkerUnavailable, match="silent at grpc"):
        nodes.asked("600ms").ask_all(look)
    nodes.directory.leave("silent")
    gone.end()
    with pytest.raises(WorkerUnavailable, match="gone at grpc"):
        nodes.asked().ask_all(look)


def test_a_directory_that_is_empty_all_at_once_takes_nobody_out(nodes: Nodes) -> None:
    """It may not be mounted: rows of all nodes that are late would be missing."""
    nodes.start("stays")
    silent = nodes.start("silent", is_silent=True)
    asked = nodes.asked("900ms")
    with pytest.raises(WorkerUnavailable, match="silent at grpc"):
        while_silent(silent, lambda: asked.ask_all(look), lambda: shutil.rmtree(nodes.where / "nodes"))


def test_a_node_that_comes_back_elsewhere_is_asked_there(nodes: Nodes) -> None:
    nodes.start("stays")
    silent = nodes.start("moves", is_silent=True)
    asked = nodes.asked()
    found = while_silent(silent, lambda: asked.ask_all(look), lambda: nodes.start("moves"))
    assert found == {"moves": "moves", "stays": "stays"}


def test_a_node_that_has_just_come_is_known_by_its_name(nodes: Nodes) -> None:
    nodes.start("stays")
    asked = nodes.asked()
    assert list(asked.all()) == ["stays"]
    with pytest.raises(UsageError, match="'comes' is neither"):
        asked.get("comes")
    nodes.start("comes")
    assert asked.ask(["comes"], look) == {"comes": "comes"}


def test_what_is_decided_is_published_where_it_can_be(nodes: Nodes) -> None:
    """A replayed write failed for ever after a node of it had been drained: by then that one had published it."""
    stays = nodes.start("stays")
    log = str(nodes.where / "log")
    tokens = [Token("job", 0, 0, 0, name, "t", 0, "ab", 1, 1, 1, 1, 1) for name in ("left", "stays")]
    Decisions(log).commit("job", 0, tokens)
    with pytest.raises(UsageError, match="'left' is neither"):
        commit.publish(nodes.options(WRITE), tokens)
    commit.publish_again(nodes.options(WRITE), "job", log)
    assert stays.published == [tokens[1].encode()]
