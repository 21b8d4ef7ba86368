"""Changes of a catalogue, and the reasons to refuse them. Pure: a catalogue and settings in, a catalogue out.

One owner a value: what the file or the environment say for one topic, commands cannot set. Otherwise the later one wins: defaults, the
top of the file, what commands have set, `[topics.NAME]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from quiver_actors.base.config.checks import contradictions
from quiver_actors.base.config.reading import Resolved, with_values
from quiver_actors.base.config.table import Scope, Setting, settings_of
from quiver_actors.base.config.topic_values import read_topic_values
from quiver_actors.base.config.tree import NodeSettings, TopicSettings
from quiver_actors.base.model import DEAD_LETTER_SUFFIX, DEFAULT_TOPIC, check_id
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.base.topics import Catalogue, Deletion, Topic
from quiver_actors.errors import ConfigError, TopicExists, UsageError


def created(
    catalogue: Catalogue, resolved: Resolved, topic: str, values: Mapping[str, Any], incarnation: str, now_unix_ns: int
) -> Catalogue:
    """Return the catalogue with one topic more.

    Raises:
        InvalidId: its name is not allowed.
        TopicExists: there is one, or its predecessor is still being deleted.
        ConfigError: a setting is unknown, wrong, or contradicts another.
    """
    check_id("topic", topic)
    if topic in catalogue.topics:
        raise TopicExists(f"topic {topic!r} exists: change it with `quiver topics set`, or delete it first")
    _refuse_other_case(catalogue.topics, topic)
    if topic in [deletion.topic for deletion in catalogue.deletions]:
        raise TopicExists(f"a topic {topic!r} is still being deleted: try again in a moment")
    given = _literals(read_topic_values(values))
    entry = Topic(
        settings=TopicSettings(name=topic),
        incarnation=incarnation,
        created_unix_ns=now_unix_ns,
        source="command",
        given=given,
    )
    return _with(catalogue, topic, worked_out(entry, resolved))


def changed(
    catalogue: Catalogue, resolved: Resolved, topic: str, values: Mapping[str, Any], unset: Iterable[str]
) -> Catalogue:
    """Return the catalogue with other settings for a topic.

    Raises:
        UnknownTopic: there is none.
        ConfigError: a setting is unknown, wrong, fixed, said by the configuration, or contradicts another.
    """
    entry = _entry(catalogue, topic)
    given = _literals(read_topic_values(values))
    names = settings_of(Scope.TOPIC)
    for key in [*given, *unset]:
        if key not in names:
            raise ConfigError(f"key {key!r} is unknown; known keys: {', '.join(names)}")
        if names[key].fixed:
            raise ConfigError(
                f"key {key!r} cannot be changed: it is part of what topic {topic!r} is; create another topic"
            )
        if said := resolved.given(topic).get(key):
            raise ConfigError(
                f"key {key!r} of topic {topic!r} is set by {said.origin}: change it there, then `quiver config reload`"
            )
    kept = {key: text for key, text in entry.given.items() if key not in set(unset)}
    updated = worked_out(msgspec.structs.replace(entry, given=kept | given), resolved)
    return _with(catalogue, topic, updated)


def deleted(catalogue: Catalogue, resolved: Resolved, topic: str, now_unix_ns: int) -> Catalogue:
    """Return the list without the topic, but with its deletion, which is `finished` when its directory is out of the way.

    Raises:
        UnknownTopic: there is none.
        UsageError: it is one that has to be there.
    """
    entry = _entry(catalogue, topic)
    if topic == DEFAULT_TOPIC:
        raise UsageError(f"topic {DEFAULT_TOPIC!r} is always there: it cannot be deleted")
    if topic in resolved.settings.topics:
        raise UsageError(
            f"topic {topic!r} is in the configuration ([topics.{topic}]) and would be created again: take it out there, "
            "`quiver config reload`, then delete it"
        )
    deletion = Deletion(
        topic=topic, incarnation=entry.incarnation, asked_unix_ns=now_unix_ns, owner_uid=entry.settings.owner_uid
    )
    topics = {name: each for name, each in catalogue.topics.items() if name != topic}
    return _next(catalogue, topics=topics, deletions=[*catalogue.deletions, deletion])


def finished(catalogue: Catalogue, topic: str) -> Catalogue:
    """The directory of a deleted topic is out of the way: its name is free."""
    left = [deletion for deletion in catalogue.deletions if deletion.topic != topic]
    return _next(catalogue, deletions=left)


def configured(
    catalogue: Catalogue,
    resolved: Resolved,
    found: Iterable[str],
    incarnations: Iterable[str],
    now_unix_ns: int,
    *,
    live: bool,
) -> Catalogue:
    """Return the catalogue that the configuration demands: its topics and those `found` on disk exist; all settings are computed anew.

    Args:
        live: the node runs: what is fixed for a topic stays as it is.

    Raises:
        TopicExists: a new topic of the configuration differs from an existing one by case only.
        ConfigError: settings contradict each other.
    """
    new_ones = iter(incarnations)
    topics = dict(catalogue.topics)
    deleting = {deletion.topic for deletion in catalogue.deletions}
    on_disk = list(found)
    wanted = dict.fromkeys(on_disk, "disk") | dict.fromkeys(resolved.settings.topics, "config")
    for name, source in wanted.items():
        if name not in topics and name not in deleting:
            if name not in on_disk:
                _refuse_other_case(topics, name)
            topics[name] = Topic(
                settings=TopicSettings(name=name),
                incarnation=next(new_ones),
                created_unix_ns=now_unix_ns,
                source=source,
            )
    for name, entry in topics.items():
        base = _fixed_of(entry.settings) if live and name in catalogue.topics else {}
        topics[name] = worked_out(entry, resolved, fixed=base, like=_origin_of(name, topics))
    order = {DEFAULT_TOPIC: topics.pop(DEFAULT_TOPIC)} | topics
    arena_bytes = resolved.settings.arena_bytes
    if order == catalogue.topics and arena_bytes == catalogue.arena_bytes:
        return catalogue
    return _next(catalogue, topics=order, arena_bytes=arena_bytes)


def worked_out(entry: Topic, resolved: Resolved, *, fixed: Mapping[str, Any] | None = None, like: str = "") -> Topic:
    """Return the entry with its settings in force. Raises ConfigError: they contradict each other."""
    name = entry.settings.name
    names = settings_of(Scope.TOPIC)
    values: dict[str, Any] = {"name": name}
    values |= {each.setting.field: each.value for each in resolved.given(like).values()} if like else {}
    values |= {names[key].field: _value(names[key], text) for key, text in entry.given.items() if key in names}
    values |= {each.setting.field: each.value for each in resolved.given(name).values()}
    settings = with_values(resolved.base, {**values, **(fixed or {})})
    if problems := contradictions(_with_topic(resolved.settings, settings)):
        raise ConfigError("\n".join(problems))
    return msgspec.structs.replace(entry, settings=settings)


def _with_topic(node: NodeSettings, topic: TopicSettings) -> NodeSettings:
    return msgspec.structs.replace(node, topics={**node.topics, topic.name: topic})


def origins(entry: Topic, resolved: Resolved) -> dict[str, str]:
    """Where the settings of a topic come from that are no defaults, by key."""
    own, found = resolved.given(entry.settings.name), {}
    for key, setting in settings_of(Scope.TOPIC).items():
        if key in own:
            found[key] = own[key].origin
        elif key in entry.given:
            found[key] = "quiver topics"
        elif key in resolved.entries:
            found[key] = resolved.origin(setting)
    return found


def _origin_of(topic: str, topics: Mapping[str, Topic]) -> str:
    """The topic whose dead letters this one holds: their slots and settings are the same."""
    origin = topic.removesuffix(DEAD_LETTER_SUFFIX)
    return origin if origin != topic and origin in topics else ""


def _fixed_of(settings: TopicSettings) -> dict[str, Any]:
    return {
        setting.field: getattr(settings, setting.field)
        for setting in settings_of(Scope.TOPIC).values()
        if setting.fixed
    }


def _literals(values: Mapping[str, Any]) -> dict[str, str]:
    names = settings_of(Scope.TOPIC)
    return {key: names[key].kind.write(value) for key, value in values.items()}


def _value(setting: Setting, literal: str) -> Any:
    return setting.kind.read(tomllib.loads(f"value = {literal}")["value"])


def _refuse_other_case(existing: Iterable[str], topic: str) -> None:
    """Two names that differ by case only are one typing error apart, and one directory on file systems that ignore case."""
    alike = next((name for name in existing if name.lower() == topic.lower() and name != topic), None)
    if alike is not None:
        raise TopicExists(
            f"topic {topic!r} differs from the existing topic {alike!r} by upper and lower case only: use that one, or choose another name"
        )


def _entry(catalogue: Catalogue, topic: str) -> Topic:
    entry = catalogue.topics.get(topic)
    if entry is None:
        raise unknown_topic(topic, catalogue.topics)
    return entry


def _with(catalogue: Catalogue, topic: str, entry: Topic) -> Catalogue:
    return _next(catalogue, topics={**catalogue.topics, topic: entry})


def _next(catalogue: Catalogue, **parts: Any) -> Catalogue:
    after: Catalogue = msgspec.structs.replace(catalogue, **parts)
    return msgspec.structs.replace(after, version=catalogue.version + 1)
