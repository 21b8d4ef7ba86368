"""Evicts bundles of a worker's topics to make room on the disk. Owner: the loop thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from quiver_actors.node.worker.host import EngineHost
from quiver_actors.store.retention.choice import Candidate

_PAUSE_NS = 20_000
"""Pause per candidate found and per host asked; finding one takes a tenth of that time."""
_PAUSE_OF_OTHERS_NS = 1_000
"""Pause per host that was not asked again."""


class Candidates:
    """Segments that some hosts could evict; a candidate's topic is the key of its host. A host that nothing happened to is not asked,
    and no host is asked before a pause that is long against the asking: there may be thousands of segments, and near the cap they are
    looked at in every turn. Whoever carries out a choice checks each segment again, so the choice may rest on old candidates.

    Attributes:
        first: the candidate to evict first, of those found last.
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
        """Hosts that something has happened to since they were asked."""
        self._found: Sequence[Candidate] = ()
        self._until_ns = 0

    def note(self, moved: Iterable[EngineHost]) -> None:
        """Note hosts that something has happened to."""
        self._moved.update(host for host in moved if host in self._of_host)

    def look(self, now_ns: int) -> Sequence[Candidate]:
        """Return the candidates; the same sequence until a host was asked again."""
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
        """Forget the candidates: nobody needs them for a while."""
        self._of_host, self._moved, self._found, self.first, self._until_ns = {}, set(), (), None, 0

    def hurry(self) -> None:
        """Some candidates are being evicted: look again at once."""
        self._until_ns = 0


def carry_out(hosts: Mapping[str, EngineHost], chosen: Collection[Candidate]) -> None:
    """Let go what was chosen of `Candidates`; files go once the progress that names their loss is durable."""
    for name in {each.topic for each in chosen}:
        host = hosts.get(name)
        if host is not None:
            host.engine.retention.let_go([each for each in chosen if each.topic == name])
            host.engine.progress.flush()
            host.touch()
