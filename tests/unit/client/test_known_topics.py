"""What a channel knows of its worker's topics."""

from __future__ import annotations

import pytest

from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.client.known_topics import KnownTopics
from quiver_actors.errors import TopicRecreated, UnknownTopic


def info(name: str, incarnation: str, **slots: int) -> TopicInfo:
    return TopicInfo(name, slots, "wal", 0, incarnation)


def test_a_topic_that_was_created_anew_is_told_once() -> None:
    topics = KnownTopics()
    topics.learn([info("travel", "first")])
    topics.learn([])
    assert "travel" not in topics
    topics.learn([info("travel", "second", flights=3)])
    with pytest.raises(TopicRecreated, match="'travel'"):
        topics.slots_of("travel")
    assert topics.slots_of("travel").lone_slot == 3
    assert topics.incarnation_of("travel") == "second"


def test_a_caller_who_was_told_by_a_refusal_is_not_told_again() -> None:
    topics = KnownTopics()
    topics.learn([info("travel", "first")])
    topics.forget_incarnation("travel")
    topics.learn([info("travel", "second")])
    assert topics.slots_of("travel") is topics["travel"]


def test_an_unknown_topic_lists_the_known_ones() -> None:
    topics = KnownTopics()
    topics.learn([info("travel", "")])
    with pytest.raises(UnknownTopic, match="travel"):
        topics.slots_of("trvel")
