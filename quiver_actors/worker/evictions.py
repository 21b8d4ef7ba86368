"""What a worker's topics could let go for want of space, and letting it go. Owner: the loop thread; holds nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from quiver_actors.retention.choice import Candidate
from quiver_actors.worker.host import EngineHost


def candidates_of(hosts: Mapping[str, EngineHost]) -> list[Candidate]:
    """Of all hosts; a candidate's topic is the key of its host."""
    return [replace(each, topic=name) for name, host in hosts.items() for each in host.engine.retention.candidates()]


def carry_out(hosts: Mapping[str, EngineHost], chosen: Collection[Candidate]) -> None:
    """Let go what was chosen of `candidates_of`; files go once the progress that names their loss is durable."""
    for name in {each.topic for each in chosen}:
        host = hosts.get(name)
        if host is not None:
            host.engine.retention.let_go([each for each in chosen if each.topic == name])
            host.engine.flush_progress()
            host.touch()
