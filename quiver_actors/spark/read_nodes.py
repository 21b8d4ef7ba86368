"""What a read asks: the nodes of its options, or with option `archive` the archives of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from quiver_actors.flight.contract import Node
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.options import SourceOptions

T = TypeVar("T")


class ReadNodes(Protocol):
    """Nodes by their names; see `NodeSet`."""

    def get(self, name: str, location: str | None = None) -> Node:
        """One node. Raises UsageError: it is not known."""

    def location(self, name: str) -> str | None:
        """Where another host finds a node; None: it needs no such thing."""

    def ask(self, names: Iterable[str], question: Callable[[Node], T]) -> dict[str, T]:
        """Put a question to some nodes."""

    def ask_all(self, question: Callable[[Node], T]) -> dict[str, T]:
        """Put a question to every node."""


def read_nodes(options: SourceOptions) -> ReadNodes:
    """Where these options read from."""
    if options.archive is None:
        return node_set(options)
    from quiver_actors.spark.archived import archived_nodes

    return archived_nodes(options.archive)
