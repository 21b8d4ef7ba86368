"""What a worker's topics could let go for want of space, and letting it go. Owner: the loop thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from quiver_actors.retention.choice import Candidate
from quiver_actors.worker.host import EngineHost

_PAUSE_NS = 20_000
"""For each candidate, and for each host that was asked. Finding one takes a tenth of that."""
_PAUSE_OF_OTHERS_NS = 1_000
"""For each host that was not asked again."""


class Candidates:
    """What some hosts could let go; a candidate's topic is the key of its host. Those that nothing has happened to are not asked again,
    and nobody is before a pause is over that is long against the asking: there may be thousands of segments, and near the cap they are
    looked at in every turn. Who carries out a choice looks at each again, so that it may be made of old ones.

    Attributes:
        first: what goes first of what was found last.
    """

    def __init__(self, hosts: Mapping[str, EngineHost]) -> None:
        """
        Args:
            hosts: may change.
        """
        self.first: Candidate | None = None
        self._hosts = hosts
        self._of_host: dict[EngineHost, list[Candidate]] = {}
        self._moved: set[EngineHost] = set()
        """Those of them that something has happened to since they were asked."""
        self._found: Sequence[Candidate] = ()
        self._until_ns = 0

    def note(self, moved: Iterable[EngineHost]) -> None:
        """Something has happened to these."""
        self._moved.update(host for host in moved if host in self._of_host)

    def look(self, now_ns: int) -> Sequence[Candidate]:
        """The same sequence until somebody was asked again."""
        if now_ns < self._until_ns:
            return self._found
        of_host, moved = self._of_host, self._moved
        known = {host: of_host[host] for host in self._hosts.values() if host in of_host and host not in moved}
        asked = 0
        for name, host in self._hosts.items():
            if host not in known:
                asked += 1
                known[host] = [replace(each, topic=name) for each in host.engine.retention.candidates()]
        if asked or len(known) != len(of_host):
            self._found = [each for found in known.values() for each in found]
            self.first = min(self._found, default=None)
        self._of_host, self._moved = known, set()
        self._until_ns = now_ns + (len(self._found) + asked) * _PAUSE_NS + len(known) * _PAUSE_OF_OTHERS_NS
        return self._found

    def look_no_more(self) -> None:
        """Nobody wants to know it for a while."""
        self._of_host, self._moved, self._found, self.first, self._until_ns = {}, set(), (), None, 0

    def hurry(self) -> None:
        """Some of them go: look again at once."""
        self._until_ns = 0


def carry_out(hosts: Mapping[str, EngineHost], chosen: Collection[Candidate]) -> None:
    """Let go what was chosen of `Candidates`; files go once the progress that names their loss is durable."""
    for name in {each.topic for each in chosen}:
        host = hosts.get(name)
        if host is not None:
            host.engine.retention.let_go([each for each in chosen if each.topic == name])
            host.engine.flush_progress()
            host.touch()
