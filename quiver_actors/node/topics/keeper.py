"""The owner of the catalogue: in the supervisor, takes requests, makes changes durable, and deletes topics.

A change is durable in the catalogue before it is answered; workers see the new version within moments and say which one they have. A
deleted topic goes in steps, each of which a restart takes up again: its entry becomes a deletion (durable); once no worker has an older
version its directory is renamed aside (`.deleted-<topic>-<incarnation>`, durable) and the name is free; what is in there is unlinked in
the background, a few files at a time (`aside`).
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from quiver_actors.base.config import NodeSettings
from quiver_actors.base.config.reading import Resolved
from quiver_actors.base.config.table import SETTINGS, value_at
from quiver_actors.base.model import check_id
from quiver_actors.base.protocol import topic_requests as requests
from quiver_actors.base.topics import Catalogue, Deletion, Topic
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import DiskError, QuiverError
from quiver_actors.node.topics import changes
from quiver_actors.node.topics.aside import ASIDE_PREFIX, DeletedDirectories
from quiver_actors.node.topics.catalogue import read_catalogue, write_catalogue
from quiver_actors.node.topics.rights import Rights
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.supervisor.log import log_event

CLEAN_SLICE_NS = 5 * MILLISECOND_NS
"""How long unlinking may hold up the supervisor at a time."""
_CLEAN_PAUSE_NS = 20 * MILLISECOND_NS
_LOOK_NS = 50 * MILLISECOND_NS
_RETRY_NS = 5 * SECOND_NS
_HELD_LOOK_NS = 2 * SECOND_NS
"""How often it is looked who still has segments of deleted topics."""


class TopicKeeper:
    """Keeps the catalogue of topics: handles requests, makes changes durable, deletes topics. Owner: the supervisor's loop."""

    def __init__(
        self,
        disk: Disk,
        data_dir: str,
        resolved: Resolved,
        *,
        resolve: Callable[[], Resolved],
        applied: Callable[[], dict[str, int | None]],
        announce: Callable[[Catalogue], None] = lambda _: None,
        forget: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Read the catalogue, or begin one, and bring it in line with the configuration. No worker runs yet.

        Args:
            disk: the data directory `data_dir`.
            resolve: reads the configuration anew. Raises ConfigError.
            applied: the version that each worker has; None for one without a process, which will start with the newest.
            announce: told of every new catalogue.
            forget: told of every topic that is deleted, before its name is free.

        Raises:
            FormatError: the catalogue is damaged.
            ConfigError: what commands have set contradicts the configuration.
            DiskError: it cannot be read or written.
        """
        self._disk = disk
        self._resolved = resolved
        self._resolve = resolve
        self._applied = applied
        self._announce = announce
        self._forget = forget
        self._due_ns = 0
        self._deleted = DeletedDirectories(disk, data_dir)
        self._aside: Iterator[None] | None = None
        self.catalogue = read_catalogue(disk) or Catalogue()
        for deletion in self.catalogue.deletions:
            self._put_aside(deletion)
        self._configure(live=False)

    @property
    def settings(self) -> NodeSettings:
        """Settings of the node as they were last read."""
        return self._resolved.settings

    # --- what the supervisor's loop calls ----------------------------------------------------------------------------------

    def answer(self, subject: str, body: bytes, uid: int) -> bytes:
        """See `supervisor.spec.Steward`: a `TopicReply` to a request; refusals are in it."""
        if subject != requests.SUBJECT:
            raise ValueError(f"subject {subject!r}, expected {requests.SUBJECT!r}")
        try:
            request = msgspec.msgpack.decode(body, type=requests.Request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"no request about topics: {error}") from error
        rights = Rights(uid, os.geteuid())
        try:
            return msgspec.msgpack.encode(self._carry_out(request, rights))
        except QuiverError as error:
            return msgspec.msgpack.encode(self._reply(rights, code=error.code, error=str(error)))

    def reload(self) -> None:
        """See `supervisor.spec.Steward`."""
        try:
            said = self.read_again()
        except QuiverError as error:
            log_event("node.reload_refused", {"reason": str(error)}, logging.ERROR)
            return
        for line in said:
            log_event("node.reload", {"change": line}, logging.WARNING if "restart" in line else logging.INFO)
        log_event("node.reloaded", {"changes": len(said), "version": self.catalogue.version})

    def read_again(self) -> list[str]:
        """Read the configuration again and apply what can change while the node runs.

        Returns:
            A line for each change, and for each that has to wait.
        Raises:
            ConfigError: it is wrong; nothing was changed.
        """
        before, before_topics = self._resolved, self.catalogue.topics
        self._resolved = self._resolve()
        try:
            self._configure(live=True)
        except QuiverError:
            self._resolved = before
            raise
        return _differences(before, self._resolved, before_topics, self.catalogue.topics)

    def step(self, now_ns: int) -> int | None:
        """Go on with what is being deleted; when to be called again, None if there is nothing to do."""
        if now_ns < self._due_ns:
            return self._due_ns
        try:
            self._due_ns = self._go_on(now_ns)
        except (DiskError, OSError) as error:
            log_event("topic.delete_delayed", {"reason": str(error)}, logging.WARNING)
            self._aside = None
            self._due_ns = now_ns + _RETRY_NS
        return self._due_ns if self._due_ns else None

    # --- requests ------------------------------------------------------------------------------------------------------------

    def _carry_out(self, request: requests.Request, rights: Rights) -> requests.TopicReply:
        now = time.time_ns()
        match request:
            case requests.List(after=after, limit=limit):
                self._adopt()
                return self._reply(rights, islice(self._seen(rights, after), max(0, limit)))
            case requests.Reload():
                rights.check_reload()
                return self._reply(rights, said=self.read_again())
            case requests.Create(topic=topic, values=asked):
                values = rights.creating(self.catalogue, topic, asked, self.settings.access.max_topics)
                changed = changes.created(self.catalogue, self._resolved, topic, values, _incarnation(), now)
            case requests.Change(topic=topic, values=values, unset=unset):
                self._adopt()
                rights.check_change(self.catalogue, topic, [*values, *unset])
                changed = changes.changed(self.catalogue, self._resolved, topic, values, unset)
            case requests.Delete(topic=topic):
                self._adopt()
                rights.check_delete(self.catalogue, topic)
                changed = changes.deleted(self.catalogue, self._resolved, topic, now)
        self._keep(changed)
        log_event(
            f"topic.{type(request).__name__.lower()}", {"topic": topic, "version": changed.version, "uid": rights.uid}
        )
        self._due_ns = 0
        return self._reply(rights, [topic])

    def _seen(self, rights: Rights, after: str) -> Iterator[str]:
        """The topics that a user may see, by name, behind one of them."""
        topics = self.catalogue.topics
        return (name for name in sorted(topics) if name > after and rights.sees(topics[name].settings))

    def _reply(
        self,
        rights: Rights,
        names: Iterable[str] = (),
        *,
        said: list[str] | None = None,
        code: str = "",
        error: str = "",
    ) -> requests.TopicReply:
        topics = {name: self.catalogue.topics[name] for name in names if name in self.catalogue.topics}
        return requests.TopicReply(
            version=self.catalogue.version,
            applied=self._applied(),
            topics=topics,
            deletions=[deletion for deletion in self.catalogue.deletions if rights.sees_deletion(deletion)],
            said=said or [],
            origins={name: changes.origins(topic, self._resolved) for name, topic in topics.items()},
            code=code,
            error=error,
        )

    def _configure(self, *, live: bool) -> None:
        new_ones = iter(_incarnation, None)
        after = changes.configured(self.catalogue, self._resolved, self._found(), new_ones, time.time_ns(), live=live)
        if after is not self.catalogue:
            self._keep(after)

    def _adopt(self) -> None:
        """Add the dead letter topics that workers made to the catalogue."""
        if any(name not in self.catalogue.topics for name in self._found()):
            self._configure(live=True)

    def _keep(self, after: Catalogue) -> None:
        """Make a catalogue durable, then use it. Raises DiskError: nothing has changed."""
        write_catalogue(self._disk, after)
        self.catalogue = after
        self._announce(after)

    def _found(self) -> list[str]:
        """Topics that have a directory."""
        deleting = {deletion.topic for deletion in self.catalogue.deletions}
        return [
            name for name in sorted(self._disk.list_directory(".")) if name not in deleting and self._is_topic(name)
        ]

    def _is_topic(self, name: str) -> bool:
        try:
            check_id("topic", name)
            return any(inner.startswith("core_") for inner in self._disk.list_directory(name))
        except QuiverError:
            return False

    # --- deleting ------------------------------------------------------------------------------------------------------------

    def _go_on(self, now_ns: int) -> int:
        """Returns when to go on, 0 for never."""
        for deletion in self.catalogue.deletions:
            if self._is_let_go():
                self._put_aside(deletion)
                self._keep(changes.finished(self.catalogue, deletion.topic))
        if self._aside is None:
            self._aside = self._deleted.unlinking(now_ns)
        end_ns = now_ns + CLEAN_SLICE_NS
        for _ in self._aside:
            if time.monotonic_ns() >= end_ns:
                return now_ns + _CLEAN_PAUSE_NS
        self._aside = None
        if self.catalogue.deletions:
            return now_ns + _LOOK_NS
        return now_ns + _HELD_LOOK_NS if self._deleted.has_held else 0

    def _is_let_go(self) -> bool:
        """Whether no worker can have a topic open that the catalogue does not name any more."""
        return all(version is None or version >= self.catalogue.version for version in self._applied().values())

    def _put_aside(self, deletion: Deletion) -> None:
        self._forget(deletion.topic)
        if self._disk.exists(deletion.topic):
            self._disk.rename(deletion.topic, f"{ASIDE_PREFIX}{deletion.topic}-{deletion.incarnation}")
            self._disk.sync_directory(".")
        log_event("topic.deleted", {"topic": deletion.topic, "incarnation": deletion.incarnation})


def _incarnation() -> str:
    return secrets.token_hex(8)


def _differences(
    before: Resolved, after: Resolved, topics_before: dict[str, Topic], topics_after: dict[str, Topic]
) -> list[str]:
    said = []
    for setting in SETTINGS:
        if setting.scope.value == "node":
            old, new = value_at(before.settings, setting.field), value_at(after.settings, setting.field)
            if old != new:
                when = "holds now" if setting.live else "needs a restart"
                said.append(f"{setting.key}: {setting.kind.write(old)} to {setting.kind.write(new)}: {when}")
    said += [f"topic {name}: created" for name in topics_after if name not in topics_before]
    for name, topic in topics_after.items():
        if name in topics_before and name in after.settings.topics | before.settings.topics:
            said += _topic_differences(name, topics_before[name], topic, after)
    return said


def _topic_differences(name: str, before: Topic, after: Topic, resolved: Resolved) -> list[str]:
    wanted = resolved.settings.topics.get(name, resolved.base)
    said = []
    for setting in SETTINGS:
        if setting.scope.value != "topic":
            continue
        old, new = value_at(before.settings, setting.field), value_at(after.settings, setting.field)
        if old != new:
            said.append(
                f"topics.{name}.{setting.key}: {setting.kind.write(old)} to {setting.kind.write(new)}: holds now"
            )
        elif setting.fixed and value_at(wanted, setting.field) != new:
            said.append(
                f"topics.{name}.{setting.key}: stays {setting.kind.write(new)}: a change needs a clean stop and a restart"
            )
    return said
