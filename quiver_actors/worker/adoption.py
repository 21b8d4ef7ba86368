"""Directories of cores that the node does not have any more, served by a worker that it has until all of them is delivered.

Owner: the loop thread. Each adopted core has its own socket, so that clients find its bundles, subscribers and notices under the ids that
they always had; it takes no pushes. Once a topic's directory holds nothing that anybody is owed, its engine is closed and the directory is
moved to `<topic>/retired/core_<n>`: with the numbers in it none is used twice when the core comes back, which takes it up again.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView

import msgspec

from quiver_actors.ballast import release as release_ballast
from quiver_actors.config import TopicSettings
from quiver_actors.core_dirs import RETIRED_NAME, find_core_dirs, owner_of
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine import Engine
from quiver_actors.errors import Draining, QuiverError
from quiver_actors.paths import EnginePaths
from quiver_actors.topics.catalogue import Topic
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.listener import Listener
from quiver_actors.worker.requests import Requests
from quiver_actors.worker.topics import Topics


class AdoptedTopics(Topics):
    """The topics of one adopted core: all that the node has, also those that are created later. A subscriber attaches to every core."""

    _left_alone: frozenset[str] = frozenset()
    """Topics whose directories could not be opened at the start."""

    def _bring(self, topic: str, entry: Topic, now_ns: int) -> None:
        if topic not in self._left_alone:
            super()._bring(topic, entry, now_ns)

    def open_existing(self, settings: Mapping[str, TopicSettings]) -> None:
        """Open those directories. Blocking. One that cannot be opened is reported and left as it is.

        Args:
            settings: by topic, of all that have a directory.
        """
        for topic, own in settings.items():
            try:
                self._add(self._make_host(self._open_engine(topic, own)))
            except QuiverError as error:
                self._left_alone |= {topic}
                self._journal.error("adoption.cannot_open", f"topic {topic!r} of an adopted core: {error}", topic=topic)

    def forget(self, topic: str) -> None:
        """Its directory is retired."""
        self._hosts.pop(topic)
        self._slot_tables.pop(topic)


class AdoptedCore:
    """One core that the node does not have any more."""

    def __init__(self, core: int, topics: AdoptedTopics, requests: Requests, listener: Listener) -> None:
        self.core = core
        self.topics = topics
        self.requests = requests
        self.listener = listener


class Adoption(Mapping[str, EngineHost]):
    """See the module. As a mapping: the worker's own hosts by topic, and the adopted ones by `<topic>@<core>`."""

    def __init__(self, own: Topics, disk: Disk, journal: Journal) -> None:
        self.cores: list[AdoptedCore] = []
        self.applied_version = 0
        """The version of the list of topics for which nothing is under way on any core."""
        self._own = own
        self._disk = disk
        self._journal = journal

    def __getitem__(self, name: str) -> EngineHost:
        topic, at, core = name.partition("@")
        if not at:
            return self._own[topic]
        for adopted in self.cores:
            if str(adopted.core) == core:
                return adopted.topics[topic]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        for adopted in self.cores:
            yield from (f"{topic}@{adopted.core}" for topic in adopted.topics)

    def __len__(self) -> int:
        return len(self._own) + sum(len(adopted.topics) for adopted in self.cores)

    def values(self) -> ValuesView[EngineHost]:
        # Looked through several times a second, with hundreds of topics: without adopted cores there is a short way.
        return super().values() if self.cores else self._own.values()

    def items(self) -> ItemsView[str, EngineHost]:
        return super().items() if self.cores else self._own.items()

    def engines(self) -> list[Engine]:
        """All adopted ones that are open."""
        return [engine for adopted in self.cores for engine in adopted.topics.engines().values()]

    def adopt(self, adopted: AdoptedCore, directories: list[str]) -> None:
        """Open what a core has left, and take no pushes for it. Blocking."""
        like = next(iter(self._own.values())).engine.settings
        settings = {
            topic: self._own[topic].engine.settings if topic in self._own else msgspec.structs.replace(like, name=topic)
            for topic in directories
        }
        adopted.topics.open_existing(settings)
        reason = Draining(
            f"core {adopted.core} has no worker any more: its bundles are delivered, new ones go elsewhere"
        )
        adopted.topics.stop_intake(reason)
        for host in adopted.topics.values():
            host.stop_intake(reason)
        self.cores.append(adopted)
        self._journal.event("adoption.begin", core=adopted.core, topics=len(adopted.topics))

    def look(self, now_ns: int) -> None:
        """Follow the list of topics."""
        self._own.look(now_ns)
        for adopted in self.cores:
            adopted.topics.look(now_ns)
        if not any(adopted.topics.is_moving for adopted in self.cores):
            self.applied_version = self._own.applied_version

    def sweep(self, end_sessions: Callable[[AdoptedCore], None]) -> None:
        """Retire what is empty.

        Args:
            end_sessions: closes the door of a core and ends the connections that came through it.
        """
        for adopted in list(self.cores):
            if adopted.topics.is_moving or not all(host.engine.is_delivered for host in adopted.topics.values()):
                continue
            hosts = dict(adopted.topics)
            if not all(host.engine.is_drained for host in hosts.values()):
                for host in hosts.values():
                    host.drain()
                continue
            end_sessions(adopted)
            self.cores.remove(adopted)
            for topic, host in hosts.items():
                self._retire(adopted, topic, host)

    def _retire(self, adopted: AdoptedCore, topic: str, host: EngineHost) -> None:
        gone = Draining(f"everything of core {adopted.core} was delivered; connect to the cores that the node has")

        def move() -> None:
            adopted.topics.forget(topic)
            try:
                retire(self._disk, topic, adopted.core)
                self._journal.event("adoption.end", core=adopted.core, topic=topic)
            except QuiverError as error:
                # It is empty, and adopted again at the next start.
                self._journal.error("adoption.cannot_retire", str(error), topic=topic)

        host.give_up(gone, move)


def retire(disk: Disk, topic: str, core: int) -> None:
    """Move an empty directory aside. Its engine is closed. Raises DiskError."""
    directory, parent = f"{topic}/core_{core}", f"{topic}/{RETIRED_NAME}"
    release_ballast(disk, EnginePaths(directory).ballast)
    disk.make_directory(parent)
    disk.rename(directory, f"{parent}/core_{core}")
    disk.sync_directory(parent)
    disk.sync_directory(topic)


def bring_back(disk: Disk, topic: str, core: int) -> None:
    """Take up the numbers of a core that the node has again. Raises DiskError."""
    retired, directory = f"{topic}/{RETIRED_NAME}/core_{core}", f"{topic}/core_{core}"
    if disk.exists(retired) and not disk.exists(directory):
        disk.rename(retired, directory)
        disk.sync_directory(topic)
        disk.sync_directory(f"{topic}/{RETIRED_NAME}")


def cores_to_adopt(data_dir: str, core: int, cores: int) -> dict[int, list[str]]:
    """What worker `core` of `cores` adopts: the topics that have a directory, by core."""
    found = find_core_dirs(data_dir)
    return {
        other: topics for other, topics in sorted(found.items()) if other >= cores and owner_of(other, cores) == core
    }
