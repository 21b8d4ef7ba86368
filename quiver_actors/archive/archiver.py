"""The archiver of a node: one process that copies sealed segments of all enabled topics into the object store.

Guarantees:
- It is never in the way of a push: it holds segments from deletion and asks workers for lists and descriptors, nothing else.
- A segment is acknowledged only after the manifest names it; killed at any moment, the next archiver goes on.
- An error that may pass is tried again after waits that grow up to a limit, each of a random length; one that an operator must see to
  is logged once, shown in the status, and tried again rarely.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.lag import LagWatch
from quiver_actors.archive.manifest_store import ManifestWriter
from quiver_actors.archive.merging import Merging
from quiver_actors.archive.ownership import become_owner
from quiver_actors.archive.state_keeper import StateKeeper
from quiver_actors.archive.topic_archive import TopicArchive
from quiver_actors.archive.upkeep import Upkeep
from quiver_actors.archive.uploads import Throttle
from quiver_actors.base.archive_status import ArchiveStatus
from quiver_actors.base.bell import Bell
from quiver_actors.base.config import NodeArchiveSettings, TopicSettings
from quiver_actors.base.locks import new_lock
from quiver_actors.base.model import ARCHIVE_SUBSCRIBER, ARCHIVER_CLIENT
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.errors import QuiverError, UnknownSubscriber, UnknownTopic
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.objects.errors import ArchiveFenced, ArchiveRefused, ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.supervisor.log import log_event

logger = logging.getLogger("quiver.archive")

POLL_NS = SECOND_NS
SHOW_INTERVAL_NS = 5 * SECOND_NS
"""How often the status is published although nothing of it has changed."""
FIRST_RETRY_SECONDS = 0.5
Topics = Callable[[], dict[str, TopicSettings]]


def connect_as_archiver(run_dir: str, timeout_seconds: float) -> Client:
    """Connect to a node as its archiver, which alone may use the subscriber `ARCHIVE_SUBSCRIBER`. Raises as `quiver_actors.connect`."""
    return Client(NodeDirectory(run_dir, None), timeout=timeout_seconds, name=ARCHIVER_CLIENT)


class Archiver:
    """The loop. One thread, and one that only looks (`_look_again`); `stop` may be called by a signal handler.

    Args:
        disk: the data directory.
        topics: says what settings each topic of the node has, at the moment.
        show: publishes the status; must not raise.
        bell: rung when a segment was sealed that pushes wait for.
        own_log: path of the node's own decision log, as stages name it.
    """

    def __init__(
        self,
        node: str,
        settings: NodeArchiveSettings,
        disk: Disk,
        store: ObjectStore,
        client: Callable[[], Client],
        topics: Topics,
        show: Callable[[ArchiveStatus], None],
        bell: Bell | None = None,
        own_log: str = "",
    ) -> None:
        self._node = node
        self._settings = settings
        self._disk = disk
        self._store = store
        self._connect = client
        self._client: Client | None = None
        self._topics = topics
        self._show = show
        self._bell = bell or Bell()
        self._stopping = threading.Event()
        self._throttle = Throttle(settings.max_bandwidth_bytes, self._stopping.wait)
        self._writer: ManifestWriter | None = None
        self._state = StateKeeper(disk, store, settings.progress_interval_ns, self._throttle, own_log)
        merging = Merging(store, node, settings.merge_below_bytes, self._throttle, self._note_merged)
        self._upkeep = Upkeep(store, merging)
        self._archives: dict[str, TopicArchive] = {}
        self._paused: dict[str, int] = {}
        """Topics that have failed, and when each is tried again, on the monotonic clock."""
        self._status = ArchiveStatus(url=store.url, state="starting")
        self._status_lock = new_lock()
        self._failures = 0
        self._look_ns = 0
        """Monotonic time at which all topics are looked at again; the bell is for topics that pushes wait for."""

    def stop(self) -> None:
        """End `run` after the call to the store that is under way."""
        self._stopping.set()
        self._bell.ring()

    def run(self) -> None:
        """Archive until `stop` is called."""
        self._publish()
        watch = LagWatch(self._look_again, POLL_NS)
        watch.start()
        while not self._stopping.is_set():
            seconds = self._turn()
            # After a failure nobody shortens the wait: the store is asked no more often because pushes wait.
            wait = self._bell.wait if self._status.state == "archiving" else self._stopping.wait
            wait(seconds)
        self._upkeep.close()
        for archive in self._archives.values():
            archive.close()
        watch.stop()
        if self._client is not None:
            self._client.close()

    def _look_again(self) -> None:
        """Show how far the workers are ahead by now, if the loop has not looked for a while: a request to the store may take long."""
        for archive in list(self._archives.values()):
            with contextlib.suppress(QuiverError):  # the loop meets it too
                archive.look_again(2 * POLL_NS)
        self._publish()

    def _turn(self) -> float:
        """Do what is due; returns how many seconds to wait for the next turn."""
        try:
            more = self._work()
        except QuiverError as error:
            return self._failed(error)
        if self._paused:
            self._publish()
        else:
            self._failures = 0
            self._publish(state="archiving", error="", error_unix_ns=0)
        return 0.0 if more else max(0.0, (self._look_ns - time.monotonic_ns()) / SECOND_NS)

    def _work(self) -> bool:
        """Archive the next batch of each topic that is to be looked at. Returns whether more is ready."""
        settings = self._topics()
        if self._client is None:
            self._client = self._connect()
            for topic in [topic for topic, each in settings.items() if not each.archive.enabled]:
                # It may have been archived when the last process ended. A worker that does not answer is not asked for each of them.
                if not self._leave(self._client, topic):
                    break
        # Before the store is asked for anything: it may be away, and how far it is behind is shown meanwhile.
        self._follow(self._client, settings)
        if self._writer is None:
            writer = become_owner(self._disk, self._store, self._node)
            log_event("archive.owned", {"url": self._store.url, "epoch": writer.head.owner.epoch})
            self._state.begin_again(writer)
            for archive in self._archives.values():
                archive.begin_again()
            self._writer = writer
            self._publish(epoch=writer.head.owner.epoch)
        self._state.keep(self._writer, self._archives)
        more, is_full = False, time.monotonic_ns() >= self._look_ns
        for topic, archive in list(self._archives.items()):
            if not self._stopping.is_set() and (is_full or settings[topic].is_archived):
                more |= self._step(topic, archive, self._writer, settings[topic])
                self._publish()
        if is_full:
            self._upkeep.advance(self._writer, settings)
            self._look_ns = 0 if more else time.monotonic_ns() + POLL_NS
        return more

    def _step(self, topic: str, archive: TopicArchive, writer: ManifestWriter, settings: TopicSettings) -> bool:
        if time.monotonic_ns() < self._paused.get(topic, 0):
            return False
        try:
            more = archive.step(self._store, writer, settings)
        except UnknownTopic:
            self._archives.pop(topic).close()  # deleted since the list was read
            more = False
        except (ArchiveFenced, ArchiveUnavailable):
            raise
        except QuiverError as error:
            # It may concern this topic alone, as a damaged part of its manifest does: the others go on.
            self._paused[topic] = time.monotonic_ns() + int(self._failed(error) * SECOND_NS)
            return False
        self._paused.pop(topic, None)
        return more

    def _follow(self, client: Client, settings: dict[str, TopicSettings]) -> None:
        """Begin with topics that are to be archived now, and leave those that are not any more."""
        wanted = {topic for topic, each in settings.items() if each.archive.enabled}
        self._paused = {topic: until_ns for topic, until_ns in self._paused.items() if topic in wanted}
        new = wanted - self._archives.keys()
        found = client.topics() if new else {}
        for topic in new & found.keys():
            hold = client.hold(ARCHIVE_SUBSCRIBER, topic=topic, start="earliest")
            self._archives[topic] = TopicArchive(
                self._node,
                topic,
                found[topic].slots,
                hold,
                self._throttle,
                self._note_upload,
                self._stopping.is_set,
                self._state,
            )
        for topic in self._archives.keys() - wanted:
            if self._leave(client, topic):
                self._archives.pop(topic).close()

    def _leave(self, client: Client, topic: str) -> bool:
        """Drop the subscriber in a topic that is not archived any more. Returns whether there is none by now."""
        try:
            client.unsubscribe(ARCHIVE_SUBSCRIBER, topic=topic)
        except (UnknownTopic, UnknownSubscriber):
            pass
        except QuiverError as error:
            # What is archived does not wait for it.
            logger.info("quiver.archive.not_left topic=%s error=%s", topic, error)
            return False
        return True

    # --- failures and status -------------------------------------------------------------------------------------------------

    def _failed(self, error: QuiverError) -> float:
        """Note a failure; returns how many seconds to wait."""
        if self._stopping.is_set():
            return 0.0
        state, seconds = self._patience(error)
        if state != self._status.state:
            log_event("archive.failed", {"state": state, "error": str(error)}, _LEVELS[state])
        if isinstance(error, ArchiveFenced):
            self._writer = None
        self._publish(
            state=state, error=str(error), error_unix_ns=time.time_ns(), error_count=self._status.error_count + 1
        )
        return seconds

    def _patience(self, error: QuiverError) -> tuple[str, float]:
        """The state that an error means, and how many seconds to wait before the next attempt."""
        if isinstance(error, ArchiveFenced):
            return "fenced", self._settings.refused_interval_ns / SECOND_NS
        if isinstance(error, ArchiveRefused):
            return "refused", self._settings.refused_interval_ns / SECOND_NS
        longest = self._settings.retry_interval_max_ns / SECOND_NS
        seconds = min(longest, FIRST_RETRY_SECONDS * 2 ** min(self._failures, 30))
        self._failures += 1
        return "waiting", seconds * random.uniform(0.5, 1.0)

    def _note_upload(self, size_bytes: int) -> None:
        status = self._status
        self._publish(uploaded_segments=status.uploaded_segments + 1, uploaded_bytes=status.uploaded_bytes + size_bytes)

    def _note_merged(self, count: int) -> None:
        self._publish(merged_segments=self._status.merged_segments + count)

    def _publish(self, **changes: object) -> None:
        with self._status_lock:
            shown = [stream for archive in list(self._archives.values()) for stream in archive.shown()]
            stages = self._state.archived_stages
            streams = tuple(
                msgspec.structs.replace(each, stages=stages.get(StreamKey(each.topic, each.incarnation, each.core), ()))
                for each in shown
            )
            before, now_unix_ns = self._status, time.time_ns()
            new = msgspec.structs.replace(before, **changes, streams=streams)
            if new != before or not 0 <= now_unix_ns - before.updated_unix_ns < SHOW_INTERVAL_NS:
                self._status = msgspec.structs.replace(new, updated_unix_ns=now_unix_ns)
                self._show(self._status)


_LEVELS = {"waiting": logging.WARNING, "refused": logging.ERROR, "fenced": logging.ERROR}
