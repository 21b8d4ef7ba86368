"""The topics of one worker, and following the catalogue: topics come, change and go while the worker serves.

Owner: the loop thread, which calls `look` now and then. The catalogue is the supervisor's; whatever it says is what this converges to,
from whatever state: topics that are missing are opened in the background, those that are not named any more are given up, settings are
handed to the engines. `applied_version` is the version for which nothing is left to do.

A topic that the catalogue does not name is left alone if it never did: that of dead letters, which a worker makes when it needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.model import SlotTable, check_id
from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.base.topics import Catalogue, Topic
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError, QuiverError, StorageUnavailable, TopicDeleted, TopicRecreated
from quiver_actors.node.worker.catalogue_watch import CatalogueWatch
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.threads import Submit
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine
from quiver_actors.store.files.own_directory import DirectoryGone

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
        self.failure: QuiverError | None = None
        """The same, where it can be opened again later or never."""
        self._open_engine = open_engine

    def run(self) -> None:
        """Open the engine of a topic on a thread; sets `engine`, or `error` and `failure`."""
        try:
            self.engine = self._open_engine(self.topic, self.settings)
        except QuiverError as error:
            self.error, self.failure = str(error), error
        except OSError as error:
            self.error = str(error)
            self.failure = DiskError("open", self.topic, error.errno or 0)


class Topics:
    """The topics of one worker; follows the catalogue.

    Attributes:
        catalogue: the list of topics as the worker knows it.
        hosts: the open topics, those of a higher priority first; changed here only.
        applied_version: the version of the catalogue for which nothing is left to do.
    """

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
        self.catalogue = CatalogueWatch(disk, data_dir, journal)
        self.hosts: dict[str, EngineHost] = {}
        self._open_engine = open_engine
        self._make_host = make_host
        self._background = background
        self._journal = journal
        self._incarnations: dict[str, str] = {}
        self._going: dict[str, EngineHost] = {}
        """Hosts of abandoned topics that still have jobs under way."""
        self._opening: set[str] = set()
        self._retry_at_ns: dict[str, int] = {}
        self._deleted_at: dict[str, int] = {}
        """Catalogue version at which a topic was last abandoned, by name; for connections that are older."""
        self._is_frozen = False
        self._intake_stopped_by: QuiverError | None = None

    # --- what connections ask for --------------------------------------------------------------------------------------------

    def host(self, topic: str, session: Session) -> EngineHost:
        """The host of a topic for a connection.

        Raises:
            TopicDeleted, TopicRecreated: the connection is older than the deletion of what it knows by that name.
            UnknownTopic: there is none.
            StorageUnavailable: its directory cannot be opened now.
            NotAllowed: it is not for the connection's user.
        """
        found = self.hosts.get(topic)
        if self._deleted_at and self._deleted_at.get(topic, 0) > session.topics_version:
            raise _deleted(topic, is_back=found is not None)
        if found is None:
            self._check_unopened(topic, session)
            raise unknown_topic(topic, (info.name for info in self.infos(session)))
        if session.guest is not None:
            session.guest.check_topic(found.engine.settings)
        session.hosts[found] = None
        return found

    def _check_unopened(self, topic: str, session: Session) -> None:
        """Raises StorageUnavailable where there is a topic of that name that the connection may use, but it is not open."""
        settings = self.unopened.get(topic)
        if settings is not None and (session.guest is None or session.guest.may_use(settings)):
            raise StorageUnavailable(
                f"the directory of topic {topic!r} on this core cannot be opened now: the worker tries again by itself; see the errors in"
                " `quiver status`"
            )

    @property
    def unopened(self) -> Mapping[str, TopicSettings]:
        """The settings of topics that there are, but whose directories could not be opened: they are tried again."""
        if not self._retry_at_ns or self.catalogue.newest is None:
            return {}
        known = self.catalogue.newest.topics
        return {topic: known[topic].settings for topic in self._retry_at_ns if topic in known}

    def forget_deletions(self, oldest_version: int | None) -> None:
        """Forget deletions that every connection knows about.

        Args:
            oldest_version: the oldest version of the catalogue that a connection has been told; None: there is no connection.
        """
        if self._deleted_at:
            known = self.catalogue.version if oldest_version is None else oldest_version
            self._deleted_at = {topic: version for topic, version in self._deleted_at.items() if version > known}

    @property
    def is_moving(self) -> bool:
        """Whether topics are being opened or abandoned."""
        return bool(self._opening or self._going)

    def incarnation(self, topic: str) -> str:
        """Return the incarnation of a topic; empty if it was given none."""
        return self._incarnations.get(topic, "")

    def slot_table(self, topic: str) -> SlotTable:
        """Return the declared slots of a topic, also of one that could not be opened. Raises KeyError for an unknown topic."""
        host = self.hosts.get(topic)
        return (self.unopened[topic] if host is None else host.engine.settings).slot_table()

    def infos(self, session: Session) -> list[TopicInfo]:
        """Return what a client is told of each topic that it may use."""
        guest = session.guest
        settings = {topic: host.engine.settings for topic, host in self.hosts.items()}
        return [
            self._info(topic, own)
            for topic, own in {**self.unopened, **settings}.items()
            if guest is None or guest.may_use(own)
        ]

    def _info(self, topic: str, settings: TopicSettings) -> TopicInfo:
        incarnation = self._incarnations.get(topic, "")
        interval_ns = settings.wal.flush_interval_ns
        shown = topic, settings.slots, settings.durability, interval_ns, incarnation, settings.event_time
        return TopicInfo(*shown, settings.archive.enabled)

    def engines(self) -> dict[str, Engine]:
        """Return all open hosts, those of topics being abandoned included."""
        return {topic: host.engine for topic, host in (self._going | self.hosts).items()}

    # --- opening -------------------------------------------------------------------------------------------------------------

    def open_all(self, configured: Mapping[str, TopicSettings], progressed: Callable[[], None]) -> None:
        """Open the topics of the catalogue, or without one those of the configuration; calls `progressed` now and then. Blocking.

        A directory that was open before and is gone is left for `look`, which tries again: it may be brought back.

        Raises:
            QuiverError: the catalogue is damaged or an engine cannot be opened; the others are open.
        """
        self.catalogue.read()
        wanted, newest = dict(configured), self.catalogue.newest
        if newest is not None:
            # Shown once all are open: a topic that is deleted meanwhile waits for this worker.
            self.applied_version = newest.version
            wanted = {topic: entry.settings for topic, entry in newest.topics.items()}
            self._incarnations = {topic: entry.incarnation for topic, entry in newest.topics.items()}
        for topic, settings in wanted.items():
            try:
                self._add(self._make_host(self._open_engine(topic, settings)))
            except DirectoryGone as error:
                self._retry_at_ns[topic] = 0
                self._note_unopened(topic, str(error))
            progressed()

    def open_like(self, topic: str, like: str) -> None:
        """Make a topic that nobody has configured, with the settings of another one.

        Raises:
            QuiverError: its name is not allowed, or its directory cannot be opened.
        """
        check_id("topic", topic)
        if topic in self._opening or topic in self._going or self.catalogue.is_being_deleted(topic):
            raise TopicDeleted(f"topic {topic!r} is being created or deleted at this moment: try again")
        settings = msgspec.structs.replace(self.hosts[like].engine.settings, name=topic)
        self._add(self._make_host(self._open_engine(topic, settings)))

    def _add(self, host: EngineHost) -> None:
        settings = host.engine.settings
        self.hosts[settings.name] = host
        self._sort()
        if self._intake_stopped_by is not None:
            host.stop_intake(self._intake_stopped_by)

    def _sort(self) -> None:
        """Turns go through the hosts in this order."""
        ranked = sorted(self.hosts.items(), key=lambda item: -item[1].engine.settings.priority)
        if [topic for topic, _ in ranked] != list(self.hosts):
            self.hosts.clear()
            self.hosts.update(ranked)

    # --- following the catalogue -----------------------------------------------------------------------------------------------

    def look(self, now_ns: int) -> None:
        """See whether there is a new catalogue, and go on with what is left to do."""
        if self._is_frozen:
            return
        self.catalogue.look()
        self._converge(now_ns)

    def stop_intake(self, reason: QuiverError) -> None:
        """Topics that are opened later take no pushes either."""
        self._intake_stopped_by = reason

    def freeze(self) -> None:
        """End following the catalogue, as the worker ends: no topic is opened or abandoned from now on."""
        self._is_frozen = True

    def _converge(self, now_ns: int) -> None:
        wanted = self.catalogue.newest
        if wanted is None or (self.applied_version == wanted.version and not self._retry_at_ns):
            return
        self._retry_at_ns = {topic: at for topic, at in self._retry_at_ns.items() if topic in wanted.topics}
        for topic in [topic for topic in self.hosts if not self._may_stay(topic, wanted.topics)]:
            self._give_up(topic, wanted)
        for topic, entry in wanted.topics.items():
            self._bring(topic, entry, now_ns)
        if not self.is_moving and all(topic in self.hosts for topic in wanted.topics):
            self.applied_version = wanted.version
            self._journal.event("topics.applied", version=wanted.version, topics=len(self.hosts))

    def _may_stay(self, topic: str, wanted: Mapping[str, Topic]) -> bool:
        known_as = self._incarnations.get(topic, "")
        if not known_as:
            return not self.catalogue.is_being_deleted(topic)
        return topic in wanted and wanted[topic].incarnation == known_as

    def _bring(self, topic: str, entry: Topic, now_ns: int) -> None:
        if topic in self._going or topic in self._opening or now_ns < self._retry_at_ns.get(topic, 0):
            return
        host = self.hosts.get(topic)
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
            self._note_unopened(job.topic, job.error)
        elif self._is_frozen:
            job.engine.close()
        else:
            self._incarnations[job.topic] = incarnation
            self._add(self._make_host(job.engine))
            self._journal.event("topic.opened", topic=job.topic)

    def _note_unopened(self, topic: str, reason: str) -> None:
        self._journal.error("topic.cannot_open", f"topic {topic!r} cannot be opened: {reason}", topic=topic)

    def _give_up(self, topic: str, wanted: Catalogue) -> None:
        host = self._going[topic] = self.hosts.pop(topic)
        self._incarnations.pop(topic, None)
        self._deleted_at[topic] = wanted.version
        self._journal.event("topic.given_up", topic=topic)
        host.give_up(_deleted(topic, is_back=topic in wanted.topics), lambda: self._going.pop(topic, None))


def _deleted(topic: str, *, is_back: bool) -> QuiverError:
    if is_back:
        return TopicRecreated(
            f"topic {topic!r} was deleted and created anew: bundle ids, subscribers and schemas of the former one do not fit; "
            "connect again to use the new one"
        )
    return TopicDeleted(f"topic {topic!r} was deleted, with its bundles and subscribers")
