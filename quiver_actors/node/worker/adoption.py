"""Directories of cores that the node does not have any more, served by a worker that it has until all of them is delivered.

Owner: the loop thread. Each adopted core has its own socket, so that clients find its bundles, subscribers and notices under the ids that
they always had; it takes no pushes. Once a topic's directory holds nothing that anybody is owed, its engine is closed and the directory is
moved to `<topic>/retired/core_<n>`: with the numbers in it none is used twice when the core comes back, which takes it up again.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any

import msgspec

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.core_dirs import RETIRED_NAME, find_core_dirs, owner_of
from quiver_actors.base.topics import Topic
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import Draining, QuiverError
from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.listener import Door
from quiver_actors.node.worker.requests import Requests
from quiver_actors.node.worker.topics import OpenJob, Topics
from quiver_actors.node.worker.unopened import Unopened, may_pass
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine
from quiver_actors.store.files.ballast import release as release_ballast
from quiver_actors.store.files.paths import EnginePaths


class AdoptedTopics(Topics):
    """The topics of one adopted core: all that the node has, also those that are created later. A subscriber attaches to every core."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the arguments of `Topics`."""
        super().__init__(*arguments, **options)
        self.waiting = Unopened()
        """Topics whose directories could not be opened yet."""
        self._left_alone: set[str] = set()
        """Topics whose directories only another program or an operator can open."""

    @property
    def unopened(self) -> Mapping[str, TopicSettings]:
        """Settings of topics without an open engine, those that wait for their directory included."""
        return {**super().unopened, **self.waiting.settings}

    def _bring(self, topic: str, entry: Topic, now_ns: int) -> None:
        if topic in self.waiting:
            self._incarnations[topic] = entry.incarnation
        elif topic not in self._left_alone:
            super()._bring(topic, entry, now_ns)

    def open_existing(self, settings: Mapping[str, TopicSettings], now_ns: int) -> None:
        """Open those directories. Blocking. One that cannot be opened is reported, and tried again later where that can help.

        Args:
            settings: by topic, of all that have a directory.
        """
        for topic, own in settings.items():
            try:
                self._add(self._make_host(self._open_engine(topic, own)))
            except QuiverError as error:
                self._note_failure(topic, own, error, now_ns)

    def _note_failure(self, topic: str, settings: TopicSettings, error: QuiverError, now_ns: int) -> None:
        reason = f"topic {topic!r} of an adopted core cannot be opened: {error}"
        if may_pass(error):
            wait_ns = self.waiting.failed(topic, settings, str(error), now_ns)
            reason += f"; it is tried again in {wait_ns / SECOND_NS:g} s"
        else:
            self.waiting.forget(topic)
            self._left_alone.add(topic)
        self._journal.error("adoption.cannot_open", reason, topic=topic)

    def look(self, now_ns: int) -> None:
        """Follow the list of topics, and try again what could not be opened."""
        super().look(now_ns)
        if self.waiting and not self._is_frozen:
            for topic, settings in self.waiting.due(now_ns).items():
                self._try_again(topic, settings, now_ns)

    def _try_again(self, topic: str, settings: TopicSettings, now_ns: int) -> None:
        if self.catalogue.is_being_deleted(topic):
            self.waiting.forget(topic)
        elif topic not in self._opening:
            self._opening.add(topic)
            job = OpenJob(topic, settings, self._open_engine)
            self._background(job, lambda: self._tried(job, now_ns))

    def _tried(self, job: OpenJob, now_ns: int) -> None:
        self._opening.discard(job.topic)
        if job.failure is not None:
            self._note_failure(job.topic, job.settings, job.failure, now_ns)
        elif job.engine is not None and (self._is_frozen or self.catalogue.is_being_deleted(job.topic)):
            job.engine.close()
        elif job.engine is not None:
            self.waiting.forget(job.topic)
            self._add(self._make_host(job.engine))
            self._journal.event("adoption.opened", topic=job.topic)

    def forget(self, topic: str) -> None:
        """Forget a topic of the core whose directory was retired."""
        self.hosts.pop(topic)


class AdoptedCore:
    """One core that the node does not have any more."""

    def __init__(self, core: int, topics: AdoptedTopics, requests: Requests, listener: Door) -> None:
        self.core = core
        self.topics = topics
        self.requests = requests
        self.listener = listener


class Adoption(Mapping[str, EngineHost]):
    """Directories of removed cores that this worker serves until everything in them is delivered.

    A mapping: the worker's own hosts by topic, and the adopted ones by `<topic>@<core>`.
    """

    def __init__(self, own: Topics, disk: Disk, journal: Journal, opened: OpenedDirectories) -> None:
        self.cores: list[AdoptedCore] = []
        self.applied_version = 0
        """The version of the list of topics for which nothing is under way on any core."""
        self._own = own
        self._disk = disk
        self._journal = journal
        self._opened = opened

    def __getitem__(self, name: str) -> EngineHost:
        topic, at, core = name.partition("@")
        if not at:
            return self._own.hosts[topic]
        for adopted in self.cores:
            if str(adopted.core) == core:
                return adopted.topics.hosts[topic]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._own.hosts
        for adopted in self.cores:
            yield from (f"{topic}@{adopted.core}" for topic in adopted.topics.hosts)

    def __len__(self) -> int:
        return len(self._own.hosts) + sum(len(adopted.topics.hosts) for adopted in self.cores)

    def values(self) -> ValuesView[EngineHost]:
        """All engine hosts of the worker, those of adopted cores included."""
        # Looked through several times a second, with hundreds of topics: without adopted cores there is a short way.
        return super().values() if self.cores else self._own.hosts.values()

    def items(self) -> ItemsView[str, EngineHost]:
        """All engine hosts of the worker by their key, those of adopted cores included."""
        return super().items() if self.cores else self._own.hosts.items()

    def engines(self) -> list[Engine]:
        """All adopted ones that are open."""
        return [engine for adopted in self.cores for engine in adopted.topics.engines().values()]

    def adopt(self, adopted: AdoptedCore, directories: list[str], like: TopicSettings, now_ns: int) -> None:
        """Open what a core has left, and take no pushes for it. Blocking. What cannot be opened now is tried again by `look`.

        Args:
            like: settings of topics that nobody has configured, but for their names.
        """
        own = {**self._own.unopened, **{topic: host.engine.settings for topic, host in self._own.hosts.items()}}
        settings = {topic: own.get(topic) or msgspec.structs.replace(like, name=topic) for topic in directories}
        adopted.topics.open_existing(settings, now_ns)
        reason = Draining(
            f"core {adopted.core} has no worker any more: its bundles are delivered, new ones go elsewhere"
        )
        adopted.topics.stop_intake(reason)
        for host in adopted.topics.hosts.values():
            host.stop_intake(reason)
        self.cores.append(adopted)
        self._journal.event("adoption.begin", core=adopted.core, topics=len(adopted.topics.hosts))

    @property
    def unopened(self) -> list[str]:
        """Topics that there are, but whose directories could not be opened: as `<topic>`, or `<topic>@<core>` of adopted cores."""
        return [*self._own.unopened, *(f"{topic}@{each.core}" for each in self.cores for topic in each.topics.unopened)]

    def forget_deletions(self, oldest_version: int | None) -> None:
        """Forget deleted topics that every connection knows to be deleted; see `Topics.forget_deletions`."""
        for topics in (self._own, *(adopted.topics for adopted in self.cores)):
            topics.forget_deletions(oldest_version)

    def look(self, now_ns: int) -> None:
        """Follow the list of topics."""
        self._own.look(now_ns)
        for adopted in self.cores:
            adopted.topics.look(now_ns)
        if not any(adopted.topics.is_moving for adopted in self.cores):
            self.applied_version = self._own.applied_version

    def sweep(self, end_sessions: Callable[[AdoptedCore], None]) -> None:
        """Retire the adopted cores that are empty.

        Args:
            end_sessions: closes the door of a core and ends the connections that came through it.
        """
        for adopted in list(self.cores):
            if (
                adopted.topics.is_moving
                or adopted.topics.waiting
                or not all(host.engine.storage.is_delivered for host in adopted.topics.hosts.values())
            ):
                continue
            hosts = dict(adopted.topics.hosts)
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
                self._opened.forget(topic, adopted.core)
                retire(self._disk, topic, adopted.core)
                self._journal.event("adoption.end", core=adopted.core, topic=topic)
            except (QuiverError, OSError) as error:
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


def cores_to_adopt(data_dir: str, opened: OpenedDirectories, core: int, cores: int) -> dict[int, list[str]]:
    """What worker `core` of `cores` adopts: the topics that have a directory, or had one that this node has opened, by core."""
    found = {other: set(topics) for other, topics in find_core_dirs(data_dir).items()}
    for topic, other in opened.all():
        found.setdefault(other, set()).add(topic)
    return {
        other: sorted(topics)
        for other, topics in sorted(found.items())
        if other >= cores and owner_of(other, cores) == core
    }
