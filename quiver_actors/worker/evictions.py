"""What a worker's topics could let go for want of space, and letting it go. Owner: the loop thread; holds nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from quiver_actors.retention.choice import Candidate
from quiver_actors.worker.host import EngineHost

PAUSE_NS = 20_000
"""For each candidate. Finding one takes a tenth of that."""


def candidates_of(hosts: Mapping[str, EngineHost]) -> list[Candidate]:
    """Of all hosts; a candidate's topic is the key of its host."""
    return [replace(each, topic=name) for name, host in hosts.items() for each in host.engine.retention.candidates()]


class Candidates:
    """What `candidates_of` says, asked again only after a pause that is long against the asking: there may be thousands of segments, and
    near the cap they are asked for in every turn. Who carries out a choice looks at each again, so that it may be made of old ones.

    Attributes:
        first: what goes first of what was found last.
    """

    def __init__(self) -> None:
        self.first: Candidate | None = None
        self._found: list[Candidate] = []
        self._until_ns = 0

    def of(self, hosts: Mapping[str, EngineHost], now_ns: int) -> list[Candidate]:
        """The same list until it is asked again."""
        if now_ns >= self._until_ns:
            self._found = candidates_of(hosts)
            self.first = min(self._found, default=None)
            self._until_ns = now_ns + len(self._found) * PAUSE_NS
        return self._found

    def forget(self) -> None:
        """Some of them go: ask again at once."""
        self._until_ns = 0


def carry_out(hosts: Mapping[str, EngineHost], chosen: Collection[Candidate]) -> None:
    """Let go what was chosen of `candidates_of`; files go once the progress that names their loss is durable."""
    for name in {each.topic for each in chosen}:
        host = hosts.get(name)
        if host is not None:
            host.engine.retention.let_go([each for each in chosen if each.topic == name])
            host.engine.flush_progress()
            host.touch()
