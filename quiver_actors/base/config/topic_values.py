"""Settings of one topic as text: what a command sets, and what holds then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quiver_actors.base.config.reading import _TOPICS, _Reader
from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.errors import ConfigError


def texts_by_key(texts: Iterable[str]) -> dict[str, str]:
    """Settings from `key=value` texts. Raises ConfigError: one has no `=`."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{text!r} is not a setting: expected KEY=VALUE, such as segment.target_size=8MiB")
        found[key.strip()] = value.strip()
    return found


def read_topic_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a topic by key, as text or as TOML would give them, in the tree's own units; not checked against each other.

    Raises:
        ConfigError: a line for each unknown key and each value that is not what the setting wants.
    """
    reader = _Reader()
    for key, value in values.items():
        reader.read_path((_TOPICS, DEFAULT_TOPIC, *key.split(".")), value, "", is_text=isinstance(value, str))
    if reader.problems:
        said = "\n".join(map(str, reader.problems))
        raise ConfigError(said.replace(f"{_TOPICS}.{DEFAULT_TOPIC}.", ""))
    return {entry.setting.key: entry.value for entry in reader.entries.values()}
