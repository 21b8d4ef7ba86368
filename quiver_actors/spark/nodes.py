"""The nodes that a query reads from or commits to: this host's by its run directory, others by their announcement.

Without `nodes` (option, or `QUIVER_NODES`) there is one: the node of the process that asks. Kept per process, so that connections and
holds last from one micro-batch to the next.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from quiver_actors.base.file_systems import shown
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.errors import NotRunning, QuiverError, UsageError
from quiver_actors.flight.contract import Look, Node
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.members import NODES_VARIABLE, Member, members_of
from quiver_actors.spark.asking import Watch, ask_at_once
from quiver_actors.spark.connection import forget_client, node_client
from quiver_actors.spark.options import SourceOptions

T = TypeVar("T")

_MEMBERS_FRESH_NS = 5 * SECOND_NS

_Key = tuple[int, str | None, int | None, str | None, str | None, str | None, int]
_sets: dict[_Key, NodeSet] = {}


def node_set(options: SourceOptions) -> NodeSet:
    """The nodes of these options, as this process knows them."""
    where = options.nodes or os.environ.get(NODES_VARIABLE) or None
    reached = options.run_dir, options.trusted_uid, where, options.token, options.tls_roots
    key = (os.getpid(), *reached, options.push_timeout_ns)
    found = _sets.get(key)
    if found is None:
        found = _sets[key] = NodeSet(options, where)
    return found


class NodeSet:
    """The nodes that one process of a query talks to."""

    def __init__(self, options: SourceOptions, where: str | None) -> None:
        self._options = options
        self._where = where
        self._nodes: dict[str, tuple[str, Node]] = {}
        """(location, connection) by name of the node."""
        self._members: dict[str, Member] = {}
        self._members_at_ns = 0
        self._local: LocalNode | None = None

    @property
    def where(self) -> str | None:
        """The list or directory of nodes."""
        return self._where

    def look_again(self) -> None:
        """Forget what the directory said before: the next question reads it anew."""
        self._members_at_ns = 0

    def members(self) -> Mapping[str, Member]:
        """Return the nodes in the directory, at most a few seconds old."""
        if self._where is not None and time.monotonic_ns() - self._members_at_ns > _MEMBERS_FRESH_NS:
            self._members = members_of(self._where)
            self._members_at_ns = time.monotonic_ns()
        return self._members

    def all(self) -> dict[str, Node]:
        """Every node by name: this host's, and all that are announced.

        Raises:
            NotRunning: there is none.
        """
        local = self.local()
        found: dict[str, Node] = {} if local is None else {local.name: local}
        for name, member in self.members().items():
            if name not in found:
                found[name] = self._remote(name, member.location)
        if not found:
            where = shown(self._where or "")
            raise NotRunning(
                f"no node is announced in {where!r} and none runs here: start `quiver up` and `quiver serve --nodes` on the nodes"
            )
        return dict(sorted(found.items()))

    def get(self, name: str, location: str | None = None) -> Node:
        """One node.

        Raises:
            UsageError: it is neither this host's nor announced.
        """
        local = self.local()
        if local is not None and local.name == name:
            return local
        location = self.location(name) or location
        if not location and self._where is not None:
            # It may have come since: its tokens can be faster than the next look at the directory.
            self.look_again()
            location = self.location(name)
        if not location:
            raise UsageError(
                f"node {name!r} is neither the one of this host{'' if local is None else f' ({local.name!r})'} nor announced: "
                "run `quiver serve` on it, and name the directory or list of nodes with option 'nodes' or QUIVER_NODES"
            )
        return self._remote(name, location)

    def location(self, name: str) -> str | None:
        """Return the Flight location of a node by its name, or None if no node of that name is announced."""
        member = self.members().get(name)
        return None if member is None else member.location

    def local(self) -> LocalNode | None:
        """This host's node. Without others it is waited for; with others it may be missing: drivers often have none.

        Raises:
            NotRunning: it is the only one, and did not come in time.
        """
        options = self._options
        patience_ns = options.push_timeout_ns if self._where is None else 0
        try:
            client = _client_of(options, patience_ns)
        except NotRunning:
            if self._where is None:
                raise
            return None
        if self._local is None or self._local.name != client.node:
            self._local = LocalNode(client.node, partial(_client_of, options))
        return self._local

    def check_topic(self, topic: str) -> None:
        """Ask this host's node, or where none runs here one that is announced, whether it has the topic.

        Raises:
            UnknownTopic: it has not.
            NotRunning, WorkerUnavailable: no node can be asked, or the first that is there does not answer.
        """
        local = self.local()
        if local is not None:
            local.check_topic(topic)
            return
        for name in self.all():
            if self.ask_present([name], lambda node: node.look(Look(topic))):
                return
        raise NotRunning(f"all nodes have left {shown(self._where or '')!r} meanwhile: start the job again")

    def ask(self, names: Iterable[str], question: Callable[[Node], T]) -> dict[str, T]:
        """Put a question to several nodes at once. The first error is raised when all have answered.

        Raises:
            NotRunning: a node has left meanwhile.
        """
        nodes = {name: self.get(name) for name in names}
        answers = self._put(nodes, question)
        left = ", ".join(sorted(nodes.keys() - answers.keys()))
        if left:
            raise NotRunning(
                f"{left}: not in {shown(self._where or '')!r} any more, the directory of nodes, and does not answer: it was drained, or "
                "taken out by force. Start the job again, which goes on with the other nodes"
            )
        return answers

    def ask_present(self, names: Iterable[str], question: Callable[[Node], T]) -> dict[str, T]:
        """Put the question to those of the nodes that are there; one that has left, or leaves meanwhile, has no answer."""
        present = self.all()
        return self._put({name: present[name] for name in names if name in present}, question)

    def ask_all(self, question: Callable[[Node], T]) -> dict[str, T]:
        """Put the question to every node, in the order of their names. A node that has left meanwhile is left out: it was drained.

        Raises:
            NotRunning: none is left.
        """
        # Where all have left, those that have come meanwhile are asked.
        return self._put(self.all(), question) or self._put(self.all(), question)

    def _put(self, nodes: Mapping[str, Node], question: Callable[[Node], T]) -> dict[str, T]:
        """Answers of the nodes that have not left. One that was announced anew meanwhile is asked again, where it is now."""
        if self._where is None:
            return {name: question(node) for name, node in nodes.items()}
        answers: dict[str, T] = {}
        asked = nodes
        while asked:
            # The directory as it was when these were asked.
            watch = Watch(partial(members_of, self._where), partial(self._gone, asked, dict(self._members)))
            found = ask_at_once(asked, question, watch)
            answers |= found.found
            gone = found.gone
            if found.errors:
                gone |= self._gone_by_now(watch, found.errors)
                failed = [name for name in asked if name in found.errors.keys() - gone]
                if failed:
                    raise found.errors[failed[0]]
            asked = {name: self._remote(name, self._members[name].location) for name in gone if name in self._members}
        return {name: answers[name] for name in nodes if name in answers}

    def _gone(self, asked: Mapping[str, Node], members: Mapping[str, Member], found: dict[str, Member]) -> set[str]:
        """The nodes that are not where they were asked.

        Args:
            members: the directory when they were asked.
            found: the directory now. An empty one says nothing: it may be another one's place, or not mounted.
        """
        if not found:
            return set()
        self._members, self._members_at_ns = found, time.monotonic_ns()
        gone = {name for name in asked if name not in found or found[name] != members.get(name)}
        local = self._local
        if local is not None and local.name in gone and asked[local.name] is local:
            if local.name not in members or self._is_running_here():
                gone.discard(local.name)
            else:
                self._forget_client()
        return gone

    def _gone_by_now(self, watch: Watch[dict[str, Member]], errors: Mapping[str, QuiverError]) -> set[str]:
        """The nodes that have failed because they are gone. Where the directory cannot be read, what they said is all that is known."""
        gone: set[str] = set()
        with contextlib.suppress(QuiverError):
            gone |= set(watch.gone(watch.look()))
        for name, error in errors.items():
            if isinstance(error, NotRunning):
                self._forget_client()
                if name not in self._members:
                    gone.add(name)
        return gone

    def _forget_client(self) -> None:
        forget_client(self._options.run_dir, trusted_uid=self._options.trusted_uid)

    def _is_running_here(self) -> bool:
        """Whether this host's node says that it runs: one that was drained or stopped does not."""
        try:
            NodeDirectory(self._options.run_dir, self._options.trusted_uid)
        except NotRunning:
            return False
        return True

    def _remote(self, name: str, location: str) -> Node:
        known = self._nodes.get(name)
        if known is not None and known[0] == location:
            return known[1]
        from quiver_actors.flight.remote import RemoteNode

        options = self._options
        node = RemoteNode(
            name,
            location,
            token=options.token,
            tls_roots=options.tls_roots,
            timeout_seconds=options.push_timeout_ns / SECOND_NS,
        )
        self._nodes[name] = location, node
        return node


def _client_of(options: SourceOptions, patience_ns: int | None = None) -> Client:
    return node_client(
        options.run_dir, options.push_timeout_ns, patience_ns=patience_ns, trusted_uid=options.trusted_uid
    )
