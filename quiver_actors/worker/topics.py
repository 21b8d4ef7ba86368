"""The topics of one worker, and following the catalogue: topics come, change and go while the worker serves.

Owner: the loop thread, which calls `look` now and then. The catalogue is the supervisor's; whatever it says is what this converges to,
from whatever state: topics that are missing are opened in the background, those that are not named any more are given up, settings are
handed to the engines. `applied_version` is the version for which nothing is left to do.

A topic that the catalogue does not name is left alone if it never did: that of dead letters, which a worker makes when it needs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView

import msgspec

from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine import Engine
from quiver_actors.errors import QuiverError, TopicDeleted, TopicRecreated, UnknownTopic
from quiver_actors.model import SlotTable, check_id
from quiver_actors.protocol.messages import TopicInfo
from quiver_actors.topics.catalogue import CATALOGUE_NAME, Catalogue, Topic, read_catalogue
from quiver_actors.units import SECOND_NS
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.session import Session
from quiver_actors.worker.threads import Submit

RETRY_NS = SECOND_NS
"""When a topic that could not be opened is tried again."""

OpenEngine = Callable[[str, TopicSettings], Engine]
MakeHost = Callable[[Engine], EngineHost]


class OpenJob:
    """Opens one engine: recovery is too long for the loop."""

    def __init__(self, topic: str, settings: TopicSettings, open_engine: OpenEngine) -> None:
        self.topic = topic
        self.settings = settings
        self.engine: Engine | None = None
        self.error = ""
        self._open_engine = open_engine

    def run(self) -> None:
        try:
            self.engine = self._open_engine(self.topic, self.settings)
        except (QuiverError, OSError) as error:
            self.error = str(error)


class Topics(Mapping[str, EngineHost]):
    """See the module. As a mapping: the hosts by topic, those of a higher priority first."""

    def __init__(
        self,
        disk: Disk,
        data_dir: str,
        *,
        open_engine: OpenEngine,
        make_host: MakeHost,
        background: Submit,
        journal: Journal,
    ) -> None:
        """
        Args:
            disk: the data directory `data_dir`.
            open_engine: blocking; called by the background thread too.
        """
        self.applied_version = 0
        self.arena_bytes = 0
        self._disk = disk
        self._path = os.path.join(data_dir, CATALOGUE_NAME)
        self._open_engine = open_engine
        self._make_host = make_host
        self._background = background
        self._journal = journal
        self._hosts: dict[str, EngineHost] = {}
        self._slot_tables: dict[str, SlotTable] = {}
        self._incarnations: dict[str, str] = {}
        self._going: dict[str, EngineHost] = {}
        """Given up, but with jobs under way."""
        self._opening: set[str] = set()
        self._retry_at_ns: dict[str, int] = {}
        self._deleted_at: dict[str, int] = {}
        """The version at which a topic of that name was given up last."""
        self._wanted: Catalogue | None = None
        self._seen: tuple[int, int] | None = None
        self._is_frozen = False
        self._intake_stopped_by: QuiverError | None = None

    # --- the hosts -----------------------------------------------------------------------------------------------------------

    def __getitem__(self, topic: str) -> EngineHost:
        return self._hosts[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def values(self) -> ValuesView[EngineHost]:
        return self._hosts.values()

    def items(self) -> ItemsView[str, EngineHost]:
        return self._hosts.items()

    def host(self, topic: str, session: Session) -> EngineHost:
        """The host of a topic for a connection.

        Raises:
            TopicDeleted, TopicRecreated: the connection is older than the deletion of what it knows by that name.
            UnknownTopic: there is none.
            NotAllowed: it is not for the connection's user.
        """
        found = self._hosts.get(topic)
        if self._deleted_at and self._deleted_at.get(topic, 0) > session.topics_version:
            raise self._told_deleted(topic, is_back=found is not None)
        if found is None:
            known = ", ".join(info.name for info in self.infos(session)) or "none"
            raise UnknownTopic(f"topic {topic!r} does not exist on this node: expected one of {known}")
        if session.guest is not None:
            session.guest.check_topic(found.engine.settings)
        session.hosts[found] = None
        return found

    def _told_deleted(self, topic: str, *, is_back: bool) -> QuiverError:
        if is_back:
            return TopicRecreated(
                f"topic {topic!r} was deleted and created anew: bundle ids, subscribers and schemas of the former one do not fit; "
                "connect again to use the new one"
            )
        return TopicDeleted(f"topic {topic!r} was deleted, with its bundles and subscribers")

    @property
    def is_moving(self) -> bool:
        """Topics are being opened, or given up."""
        return bool(self._opening or self._going)

    @property
    def version(self) -> int:
        """The newest version that was read; 0 = there is no catalogue."""
        return self._wanted.version if self._wanted is not None else 0

    def incarnation(self, topic: str) -> str:
        """Empty where nobody has given it one."""
        return self._incarnations.get(topic, "")

    def slot_table(self, topic: str) -> SlotTable:
        return self._slot_tables[topic]

    def infos(self, session: Session) -> list[TopicInfo]:
        """What a client is told of each topic that it may use."""
        guest = session.guest
        return [
            self._info(topic, host.engine.settings)
            for topic, host in self._hosts.items()
            if guest is None or guest.may_use(host.engine.settings)
        ]

    def _info(self, topic: str, settings: TopicSettings) -> TopicInfo:
        incarnation = self._incarnations.get(topic, "")
        return TopicInfo(topic, settings.slots, settings.durability, settings.wal.flush_interval_ns, incarnation)

    def engines(self) -> dict[str, Engine]:
        """All that are open, those that are being given up included."""
        return {topic: host.engine for topic, host in (self._going | self._hosts).items()}

    # --- opening -------------------------------------------------------------------------------------------------------------

    def open_all(self, configured: Mapping[str, TopicSettings], progressed: Callable[[], None]) -> None:
        """Open what the catalogue names, or, where there is none, what is configured; calls `progressed` now and then. Blocking.

        Raises:
            QuiverError: the catalogue is damaged or an engine cannot be opened; the others are open.
        """
        self._seen = self._stamp()
        self._wanted = read_catalogue(self._disk)
        wanted = dict(configured)
        if self._wanted is not None:
            # Shown once all are open: a topic that is deleted meanwhile waits for this worker.
            self.applied_version, self.arena_bytes = self._wanted.version, self._wanted.arena_bytes
            wanted = {topic: entry.settings for topic, entry in self._wanted.topics.items()}
            self._incarnations = {topic: entry.incarnation for topic, entry in self._wanted.topics.items()}
        for topic, settings in wanted.items():
            self._add(self._make_host(self._open_engine(topic, settings)))
            progressed()

    def open_like(self, topic: str, like: str) -> None:
        """Make a topic that nobody has configured, with the settings of another one.

        Raises:
            QuiverError: its name is not allowed, or its directory cannot be opened.
        """
        check_id("topic", topic)
        if topic in self._opening or topic in self._going or self._is_being_deleted(topic):
            raise TopicDeleted(f"topic {topic!r} is being created or deleted at this moment: try again")
        settings = msgspec.structs.replace(self._hosts[like].engine.settings, name=topic)
        self._add(self._make_host(self._open_engine(topic, settings)))

    def _add(self, host: EngineHost) -> None:
        settings = host.engine.settings
        self._hosts[settings.name] = host
        self._slot_tables[settings.name] = settings.slot_table()
        self._sort()
        if self._intake_stopped_by is not None:
            host.stop_intake(self._intake_stopped_by)

    def _sort(self) -> None:
        """Turns go through the hosts in this order."""
        ranked = sorted(self._hosts.items(), key=lambda item: -item[1].engine.settings.priority)
        if [topic for topic, _ in ranked] != list(self._hosts):
            self._hosts.clear()
            self._hosts.update(ranked)

    # --- following the catalogue -----------------------------------------------------------------------------------------------

    def look(self, now_ns: int) -> None:
        """See whether there is a new catalogue, and go on with what is left to do."""
        if self._is_frozen:
            return
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._read()
        self._converge(now_ns)

    def stop_intake(self, reason: QuiverError) -> None:
        """Topics that are opened later take no pushes either."""
        self._intake_stopped_by = reason

    def freeze(self) -> None:
        """The worker ends: nothing is opened or given up any more."""
        self._is_frozen = True

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _read(self) -> None:
        try:
            catalogue = read_catalogue(self._disk)
        except QuiverError as error:
            self._journal.error("topics.unreadable", f"the list of topics cannot be read: {error}")
            return
        if catalogue is not None:
            self._wanted = catalogue
            self.arena_bytes = catalogue.arena_bytes

    def _converge(self, now_ns: int) -> None:
        wanted = self._wanted
        if wanted is None or (self.applied_version == wanted.version and not self._retry_at_ns):
            return
        self._retry_at_ns = {topic: at for topic, at in self._retry_at_ns.items() if topic in wanted.topics}
        for topic in [topic for topic in self._hosts if not self._may_stay(topic, wanted.topics)]:
            self._give_up(topic, wanted)
        for topic, entry in wanted.topics.items():
            self._bring(topic, entry, now_ns)
        if not self.is_moving and all(topic in self._hosts for topic in wanted.topics):
            self.applied_version = wanted.version
            self._journal.event("topics.applied", version=wanted.version, topics=len(self._hosts))

    def _may_stay(self, topic: str, wanted: Mapping[str, Topic]) -> bool:
        known_as = self._incarnations.get(topic, "")
        if not known_as:
            return not self._is_being_deleted(topic)
        return topic in wanted and wanted[topic].incarnation == known_as

    def _is_being_deleted(self, topic: str) -> bool:
        deletions = self._wanted.deletions if self._wanted is not None else []
        return topic in [deletion.topic for deletion in deletions]

    def _bring(self, topic: str, entry: Topic, now_ns: int) -> None:
        if topic in self._going or topic in self._opening or now_ns < self._retry_at_ns.get(topic, 0):
            return
        host = self._hosts.get(topic)
        if host is None:
            self._opening.add(topic)
            job = OpenJob(topic, entry.settings, self._open_engine)
            self._background(job, lambda: self._opened(job, entry.incarnation, now_ns))
        else:
            self._incarnations[topic] = entry.incarnation
            if host.engine.settings != entry.settings:
                host.change_settings(entry.settings)
                self._journal.event("topic.changed", topic=topic)
                self._sort()

    def _opened(self, job: OpenJob, incarnation: str, now_ns: int) -> None:
        self._opening.discard(job.topic)
        self._retry_at_ns.pop(job.topic, None)
        if job.engine is None:
            self._retry_at_ns[job.topic] = now_ns + RETRY_NS
            self._journal.error(
                "topic.cannot_open", f"topic {job.topic!r} cannot be opened: {job.error}", topic=job.topic
            )
        elif self._is_frozen:
            job.engine.close()
        else:
            self._incarnations[job.topic] = incarnation
            self._add(self._make_host(job.engine))
            self._journal.event("topic.opened", topic=job.topic)

    def _give_up(self, topic: str, wanted: Catalogue) -> None:
        host = self._going[topic] = self._hosts.pop(topic)
        self._slot_tables.pop(topic)
        self._incarnations.pop(topic, None)
        self._deleted_at[topic] = wanted.version
        self._journal.event("topic.given_up", topic=topic)
        host.give_up(self._told_deleted(topic, is_back=topic in wanted.topics), lambda: self._gone(topic))

    def _gone(self, topic: str) -> None:
        self._going.pop(topic, None)
