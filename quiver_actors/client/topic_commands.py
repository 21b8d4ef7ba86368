"""The calls of a client about a node: how it is, and its topics: create, change, delete. The supervisor answers the latter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from quiver_actors.base.model import check_id
from quiver_actors.base.protocol.topic_requests import Change, Create, Delete, ask, until_applied
from quiver_actors.errors import TopicExists, UsageError

if TYPE_CHECKING:
    from quiver_actors.store.status.node_status import NodeStatus


class TopicCommands:
    """Methods of `Client` that look at the node, and create, change and delete topics through its supervisor."""

    _timeout_seconds: float

    @property
    def run_dir(self) -> str:
        """Path of the run directory with the supervisor's control socket; each façade provides it."""
        raise NotImplementedError

    @property
    def _trusted_uid(self) -> int | None:
        raise NotImplementedError

    def status(self) -> NodeStatus:
        """Look at the node: the document of `quiver status --json` (docs/cli.md) as a `dict`, which notebooks show as a table.

        It is read from shared memory: no process of the node is asked, and one that is stopped or dead is described, too.

        Raises:
            NotAllowed: the figures of the node are for its own user and root.
            NotRunning: the node has ended, and nothing is left of it.
        """
        from quiver_actors.store.status.node_status import node_status

        return node_status(self.run_dir)

    def create_topic(
        self, topic: str, settings: Mapping[str, Any] | None = None, *, if_missing: bool = False, **misplaced: object
    ) -> None:
        """Create a topic, durably and on all workers, while the node runs.

        Args:
            settings: by key, as in docs/configuration.md: `{"segment.target_size": "8MiB", "slots": {"page": 0}}`.
            if_missing: no error if there is one, whatever its settings.
            misplaced: settings that were given as arguments of the call; the error shows where they belong.

        Raises:
            UsageError: a setting was given as an argument of the call.
            TopicExists: there is one, or it is still being deleted.
            InvalidId, ConfigError: the name or a setting is not possible.
            NotRunning: the supervisor does not answer.
            WorkerUnavailable: it is durable, but some worker has not taken it up in time.
        """
        if misplaced:
            raise UsageError(
                f"create_topic() takes settings as one mapping by key: create_topic({topic!r}, {misplaced!r}); "
                "docs/configuration.md lists the keys"
            )
        try:
            self._change_topics(
                Create(topic=check_id("topic", topic), values=_values({} if settings is None else settings))
            )
        except TopicExists:
            if not if_missing:
                raise

    def set_topic(self, topic: str, settings: Mapping[str, Any], *, unset: Iterable[str] = ()) -> None:
        """Change settings of a topic, durably and on all workers; `unset` ones are again as configured.

        Raises:
            UnknownTopic: there is none.
            ConfigError: a setting is not possible, cannot be changed, or is said by the node's configuration.
            NotRunning, WorkerUnavailable: as `create_topic`.
        """
        if isinstance(unset, str):
            raise UsageError(f"unset={unset!r} is one key: expected a list of keys")
        self._change_topics(Change(topic=check_id("topic", topic), values=_values(settings), unset=list(unset)))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its bundles and subscribers; its name is free when this returns. Whoever still uses it is told
        (`TopicDeleted`, or `TopicRecreated` once there is another one of that name).

        Raises:
            UnknownTopic: there is none.
            UsageError: it is the default topic, or one of the node's configuration.
            NotRunning, WorkerUnavailable: as `create_topic`.
        """
        self._change_topics(Delete(topic=check_id("topic", topic)), gone=topic)

    def _change_topics(self, request: Create | Change | Delete, gone: str = "") -> None:
        trusted_uid = self._trusted_uid
        reply = ask(self.run_dir, request, self._timeout_seconds, trusted_uid=trusted_uid)
        until_applied(self.run_dir, reply, self._timeout_seconds, gone, trusted_uid=trusted_uid)


def _values(settings: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise UsageError(
            f"settings {settings!r} are not possible: expected them by key, such as {{'segment.target_size': '8MiB'}}; "
            "docs/configuration.md lists the keys"
        )
    return dict(settings)


class TopicCommandsOf(TopicCommands):
    """Topic commands for the node of one run directory, without a client."""

    def __init__(self, run_dir: str, timeout_seconds: float, trusted_uid: int | None) -> None:
        self._run_dir = run_dir
        self._timeout_seconds = timeout_seconds
        self._trusted = trusted_uid

    @property
    def run_dir(self) -> str:
        """Path of the run directory with the supervisor's control socket."""
        return self._run_dir

    @property
    def _trusted_uid(self) -> int | None:
        return self._trusted
