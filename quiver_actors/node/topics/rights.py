"""Rights of a user at the control socket: who may see, change, create and delete topics. The kernel names the user (`SO_PEERCRED`).

The rows `topics.*` of the table of rights (`quiver_actors.base.rights`) decide. Beyond them, a user who is not the node's creates at most
`access.max_topics` topics, which it then owns. A refusal does not tell a topic that the user may not see from one that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.config.table import Scope, settings_of
from quiver_actors.base.model import DEAD_LETTER_SUFFIX
from quiver_actors.base.rights import User, Verdict, verdict
from quiver_actors.base.topics import Catalogue, Deletion
from quiver_actors.errors import NotAllowed, QuotaExceeded

OWNER_KEY = "owner"


class Rights:
    """The rights of one user."""

    def __init__(self, uid: int, own_uid: int) -> None:
        """
        Args:
            own_uid: the user that the node runs as.
        """
        self.uid = uid
        self._user = User(uid, own_uid)
        self._is_trusted = self._user.is_operator

    def _may(self, request: str, topic: TopicSettings | None = None) -> bool:
        return verdict(request, self._user.caller(topic)) is not Verdict.NO

    def sees(self, topic: TopicSettings) -> bool:
        """Whether the user may know that the topic exists."""
        return self._is_trusted or topic.may_use(self.uid)

    def sees_deletion(self, deletion: Deletion) -> bool:
        """Whether the user may know that the topic is being deleted; guests see only deletions of their own topics."""
        return self._is_trusted or deletion.owner_uid == self.uid

    def check_reload(self) -> None:
        """
        Raises:
            NotAllowed: that is for the node's own user.
        """
        if not self._may("topics.Reload"):
            self._refuse("reload the configuration")

    def _refuse(self, doing: str) -> NoReturn:
        raise NotAllowed(f"user {self.uid} may not {doing}: it is for the node's own user")

    def check_delete(self, catalogue: Catalogue, topic: str) -> None:
        """
        Raises:
            NotAllowed: the user does not own such a topic.
        """
        self._check_owned(catalogue, topic, "topics.Delete")

    def _check_owned(self, catalogue: Catalogue, topic: str, request: str) -> None:
        entry = catalogue.topics.get(topic)
        if not self._may(request, entry.settings if entry is not None else None):
            raise NotAllowed(f"user {self.uid} owns no topic {topic!r} on this node: its operator may change that")

    def check_change(self, catalogue: Catalogue, topic: str, keys: Iterable[str]) -> None:
        """
        Raises:
            NotAllowed: the user does not own such a topic, or a setting is the operator's.
        """
        self._check_owned(catalogue, topic, "topics.Change")
        self._check_keys(list(keys))

    def creating(self, catalogue: Catalogue, topic: str, values: Mapping[str, Any], topics_max: int) -> dict[str, Any]:
        """The settings of a topic that the user creates: as it asked, and its own.

        Raises:
            NotAllowed: other users create none here, the name is that of another topic's dead letters, or a setting is the operator's.
            QuotaExceeded: it owns as many as it may.
        """
        if self._is_trusted:
            return dict(values)
        if not topics_max:
            self._refuse("create topics (access.max_topics = 0)")
        if topic.endswith(DEAD_LETTER_SUFFIX):
            raise NotAllowed(
                f"topic {topic!r}: names that end in {DEAD_LETTER_SUFFIX} are for dead letters; choose another one"
            )
        self._check_keys(list(values))
        owned = sum(entry.settings.owner_uid == self.uid for entry in catalogue.topics.values())
        if owned >= topics_max:
            raise QuotaExceeded(
                f"user {self.uid} owns {owned} topics of this node and may own {topics_max} (access.max_topics): delete one, or ask the"
                " node's operator"
            )
        return {**values, OWNER_KEY: self.uid}

    def _check_keys(self, keys: list[str]) -> None:
        if self._may("topics.Change: operator's settings"):
            return
        names = settings_of(Scope.TOPIC)
        if len(keys) > len(names):
            raise NotAllowed(f"user {self.uid} names {len(keys)} settings at once: a topic has {len(names)}")
        refused = [key for key in keys if key in names and names[key].operators]
        if refused:
            raise NotAllowed(f"user {self.uid} may not set {', '.join(refused)}: only the node's own user may")
