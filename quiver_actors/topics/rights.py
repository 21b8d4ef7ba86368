"""Who may see, change, create and delete topics: the user at the other end of the control socket, as the kernel says it (`SO_PEERCRED`).

| request        | node's user, root | the topic's owner                  | whom it allows | other users        |
|----------------|-------------------|------------------------------------|----------------|--------------------|
| list           | all topics        | it                                 | it             | nothing            |
| change         | every setting     | those that are not the operator's  | refused        | refused            |
| delete         | yes               | yes                                | refused        | refused            |
| create         | yes               | up to `access.max_topics` topics of its own, which it then owns (any user who reaches the socket) |||
| reload         | yes               | refused                            | refused        | refused            |

A refusal does not tell a topic that the user may not see from one that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quiver_actors.config import TopicSettings
from quiver_actors.config.table import Scope, settings_of
from quiver_actors.errors import NotAllowed, QuotaExceeded
from quiver_actors.model import DEAD_LETTER_SUFFIX
from quiver_actors.topics.catalogue import Catalogue, Deletion

OWNER_KEY = "owner"


class Rights:
    """Of one user."""

    def __init__(self, uid: int, own_uid: int) -> None:
        """
        Args:
            own_uid: the user that the node runs as.
        """
        self.uid = uid
        self._is_trusted = uid in (0, own_uid)

    def sees(self, topic: TopicSettings) -> bool:
        return self._is_trusted or topic.may_use(self.uid)

    def sees_deletion(self, deletion: Deletion) -> bool:
        return self._is_trusted or deletion.owner_uid == self.uid

    def check_operator(self, doing: str) -> None:
        """
        Raises:
            NotAllowed: that is for the node's own user.
        """
        if not self._is_trusted:
            raise NotAllowed(f"user {self.uid} may not {doing}: it is for the node's own user")

    def check_delete(self, catalogue: Catalogue, topic: str) -> None:
        """
        Raises:
            NotAllowed: the user does not own such a topic.
        """
        if self._is_trusted:
            return
        entry = catalogue.topics.get(topic)
        if entry is None or entry.settings.owner_uid != self.uid:
            raise NotAllowed(f"user {self.uid} owns no topic {topic!r} on this node: its operator may change that")

    def check_change(self, catalogue: Catalogue, topic: str, keys: Iterable[str]) -> None:
        """
        Raises:
            NotAllowed: the user does not own such a topic, or a setting is the operator's.
        """
        self.check_delete(catalogue, topic)
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
            self.check_operator("create topics (access.max_topics = 0)")
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
        if self._is_trusted:
            return
        names = settings_of(Scope.TOPIC)
        if len(keys) > len(names):
            raise NotAllowed(f"user {self.uid} names {len(keys)} settings at once: a topic has {len(names)}")
        refused = [key for key in keys if key in names and names[key].operators]
        if refused:
            raise NotAllowed(f"user {self.uid} may not set {', '.join(refused)}: only the node's own user may")
