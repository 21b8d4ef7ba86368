"""The archive that the arguments of a command name by a configuration, or by a URL and the name of a node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from quiver_actors.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from quiver_actors.archive.manifest import Head, StreamRef
    from quiver_actors.base.config import NodeSettings
    from quiver_actors.store.objects.object_store import ObjectStore


def named_settings(arguments: argparse.Namespace) -> NodeSettings:
    """The settings of the node that `--config` names. Raises ConfigError."""
    from quiver_actors.base.config import load_config

    return load_config(arguments.config)


def open_named(arguments: argparse.Namespace) -> tuple[ObjectStore, str]:
    """The store, and the name of the node. Raises ConfigError, ArchiveRefused, UsageError."""
    from quiver_actors.store.objects.opening import open_existing

    settings = named_settings(arguments)
    url = arguments.archive or settings.archive.url
    if not url:
        raise ConfigError("no archive is named: give --archive URL, or --config of a node with archive.url")
    name = "--archive" if arguments.archive else "archive.url"
    return open_existing(url, name=name), arguments.node or settings.node_name()


def named_head(store: ObjectStore, node: str) -> Head:
    """The head of the node's archive. Raises UsageError: there is no such archive; and as `read_head`."""
    from quiver_actors.archive.headless import no_archive
    from quiver_actors.archive.manifest_store import read_head

    head = read_head(store, node)
    if head is None:
        raise no_archive(store, node)
    return head


def named_streams(head: Head, topic: str | None) -> list[StreamRef]:
    """The streams of a topic, or of all for None. Raises UsageError: the archive has no such topic."""
    found = [each for each in head.streams if topic in (None, each.topic)]
    if topic is not None and not found:
        known = ", ".join(sorted({each.topic for each in head.streams})) or "none"
        raise UsageError(f"topic {topic!r} is not in the archive of node {head.node!r}; topics there: {known}")
    return found
