"""The topics that a worker has named to one channel, over all of its connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quiver_actors.base.notebook import table_html
from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import TopicRecreated


class TopicInfos(dict[str, TopicInfo]):
    """Topics by name. A notebook shows them as a table."""

    def _repr_html_(self) -> str:
        """A row for each topic: its slots, and how durable an acknowledged bundle is."""
        rows = ((info.name, ", ".join(info.slots) or "any", info.durability) for info in self.values())
        return table_html("Topics", ("topic", "slots", "durability"), rows)


class KnownTopics:
    """The slots and incarnations of a worker's topics. Used under the lock of the channel's exchange."""

    def __init__(self) -> None:
        self._infos: Mapping[str, TopicInfo] = {}
        self._slots: Mapping[str, TopicSlots] = {}
        self._incarnations: dict[str, str] = {}
        """Newest incarnation that was heard of, by topic; kept where a topic is gone."""
        self._recreated: set[str] = set()
        """Topics whose incarnation has changed since, which nobody was told yet."""

    def learn(self, infos: Sequence[TopicInfo]) -> None:
        """Take over the worker's list, which is complete."""
        self._infos = {info.name: info for info in infos}
        self._slots = {info.name: TopicSlots(info) for info in infos}
        for info in infos:
            if self._incarnations.get(info.name, info.incarnation) != info.incarnation:
                self._recreated.add(info.name)
            if info.incarnation:
                self._incarnations[info.name] = info.incarnation

    def forget_incarnation(self, topic: str) -> None:
        """Forget which incarnation is known: the caller has been told that the topic was created anew."""
        self._incarnations.pop(topic, None)

    def incarnation_of(self, topic: str) -> str:
        """Return the incarnation of a known topic; empty: the worker does not say."""
        return self._infos[topic].incarnation

    def __contains__(self, topic: str) -> bool:
        return topic in self._slots

    def __getitem__(self, topic: str) -> TopicSlots:
        """Return the slots of a topic that is known, also of one that is another than before."""
        return self._slots[topic]

    def slots_of(self, topic: str) -> TopicSlots:
        """Return the topic's slots.

        Raises:
            UnknownTopic: the node has no such topic.
            TopicRecreated: the topic is another one than before. Raised once: whoever goes on after that means the new one.
        """
        if topic in self._recreated:
            self._recreated.discard(topic)
            raise recreated_error(topic)
        found = self._slots.get(topic)
        if found is None:
            raise unknown_topic(topic, self._slots)
        return found


def recreated_error(topic: str) -> TopicRecreated:
    """Return the error for a topic that is another one than before."""
    return TopicRecreated(
        f"topic {topic!r} was deleted and created anew: bundle ids and schemas of the former one do not fit"
    )
