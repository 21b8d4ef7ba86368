"""Suggests the topic that a caller probably meant by an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from quiver_actors.errors import UnknownTopic

_NAMES_SHOWN = 10
_NAME_CHARACTERS_MAX = 64
_IS_UNKNOWN = "does not exist on this node"


def unknown_topic(topic: str, known: Iterable[str]) -> UnknownTopic:
    """The error for a topic that is not among the `known` ones: it names the one that was probably meant, else the first of them."""
    names = sorted(known)
    near = (
        difflib.get_close_matches(topic, names, n=1)
        if isinstance(topic, str) and len(topic) <= _NAME_CHARACTERS_MAX
        else []
    )
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    its_topics = f"its topics are {', '.join(names[:_NAMES_SHOWN]) or 'none'}{more}"
    hint = f"did you mean {near[0]!r}?" if near else its_topics
    return UnknownTopic(f"topic {topic!r} {_IS_UNKNOWN}; {hint}")


def without_hint(error: UnknownTopic) -> UnknownTopic:
    """Return an error of `unknown_topic` for a caller who may not know the names of other topics."""
    told, found, _ = str(error).partition(f"{_IS_UNKNOWN}; ")
    return UnknownTopic(f"{told}{_IS_UNKNOWN}" if found else "a topic does not exist on this node")
