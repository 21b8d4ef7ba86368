"""What a SQL statement is about, as far as its text and what a client takes for it say. Loads no engine and no `pyarrow.dataset`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo, TopicInfo
from quiver_actors.errors import UsageError
from quiver_actors.query.snapshot import Snapshot
from quiver_actors.query.span import Span

NODE_SCHEMA = "quiver"
"""The schema of the tables that describe a node."""


class Material(NamedTuple):
    """All data that answers a statement, collected before the statement runs."""

    topics: Mapping[str, TopicInfo]
    snapshots: Mapping[str, Snapshot]
    """The stored data of the topics that the statement names."""
    segments: Mapping[str, Mapping[int, list[SegmentInfo]]] = {}
    """All segments by topic and core; empty where the statement does not ask about them."""
    subscribers: Mapping[str, Mapping[int, list[SubscriberInfo]]] = {}
    span: Span = Span()
    """The bounds for which the snapshots were taken."""


class Mentions:
    """The names in the text of a statement, comments and literals included."""

    def __init__(self, statement: str) -> None:
        self._words = set(re.findall(r"[\w-]+", statement))
        # Names of topics may have hyphens, which are operators, too.
        self._words |= {part for word in self._words for part in word.split("-")}
        self._folded = {word.casefold() for word in self._words}

    def __contains__(self, name: str) -> bool:
        """Whether a name occurs, in upper or lower case: SQL ignores the case of names without quotes."""
        return name.casefold() in self._folded

    def topics(self, known: Mapping[str, TopicInfo]) -> list[str]:
        """The topics that the statement names.

        Raises:
            UsageError: two of them differ in the case of letters only.
        """
        found = [topic for topic in known if topic in self]
        exact = {topic.casefold(): topic for topic in found if topic in self._words}
        named = [topic for topic in found if exact.get(topic.casefold(), topic) == topic]
        if len({topic.casefold() for topic in named}) < len(named):
            raise UsageError(
                f"topics {', '.join(named)} differ in the case of letters only: write the one that is meant"
            )
        return named

    def asks_about(self, table: str) -> bool:
        """Whether the statement names a table of the node."""
        return NODE_SCHEMA in self and table in self
