"""What a remote client is told of how a node is: the document of `quiver status --json`, as far as the token's topics go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NAMES_ANY_TOPIC = ("problems", "warnings", "advice")
"""Texts about the node, which may name any topic."""


def visible(document: dict[str, Any], sees: Callable[[str], bool]) -> dict[str, Any]:
    """Return the document without what is about topics that the caller does not see; `document` stays as it is.

    Where it does not see all topics, texts that may name any of them are left out, and so are errors and the archiver's own figures.
    """
    node = document["node"]
    topics = [topic for topic in node["topics"] if sees(topic)]
    if topics == node["topics"]:
        return document
    found = {name: _about(value, sees) for name, value in document.items()}
    found["node"] = {**node, "topics": topics, **{name: [] for name in _NAMES_ANY_TOPIC}}
    return {**found, "errors": [], "archives": []}


def _about(value: Any, sees: Callable[[str], bool]) -> Any:
    """The items of a list that are about topics which the caller sees, or about no topic."""
    if not isinstance(value, list):
        return value
    return [each for each in value if not isinstance(each, dict) or not each.get("topic") or sees(each["topic"])]
