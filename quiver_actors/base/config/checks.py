"""Values that are fine by themselves and cannot work together. Pure: a tree in, lines of text out.

Each check names the keys, what they are, and what would work. Ranges of single values are in `table`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from quiver_actors.base.config.kinds import size_text
from quiver_actors.base.config.tree import NodeSettings, TopicSettings

CAP_SEGMENTS_MIN = 4
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
Conflict = tuple[str, str]
"""The whole key that is at fault, and what is wrong."""
Check = Callable[[NodeSettings], Iterator[Conflict]]


def conflicts(settings: NodeSettings) -> list[Conflict]:
    """Return the settings that contradict each other; empty if the node can run with them."""
    return [problem for check in CHECKS for problem in check(settings)]


def contradictions(settings: NodeSettings) -> list[str]:
    """Return the contradictions of `conflicts` as text, one line each."""
    return [f"key '{key}': {message}" for key, message in conflicts(settings)]


def _directory_is_named(settings: NodeSettings) -> Iterator[Conflict]:
    """A variable that was not set (`--data-dir "$DATA"`) would be the current directory, and `~/data` of a file a directory called `~`."""
    if not settings.data_dir:
        yield "data_dir", "is empty; expected a directory"
    for key in ("data_dir", "run_dir"):
        if (path := getattr(settings, key)) and path.startswith("~"):
            yield key, f"{path!r}: nobody replaces the ~; expected the path in full, or './{path}' if that is its name"
        elif "://" in path:
            yield (
                key,
                f"{path!r} is a URL; expected a directory of this host (archive.url keeps a copy in an object store)",
            )


def _node_has_a_file_name(settings: NodeSettings) -> Iterator[Conflict]:
    """Check the node's name: it becomes a file name in a directory of nodes, where names with a leading dot are skipped."""
    if settings.node and not _NODE_NAME.fullmatch(settings.node):
        yield (
            "node",
            f"{settings.node!r} is not a node's name; expected 1 to 64 characters of A-Z a-z 0-9 _ . -, the first a letter or digit",
        )


def _logs_hold_a_segment(settings: NodeSettings) -> Iterator[Conflict]:
    """An open segment lives in its log: the logs must have room for one that is open and one that is being sealed."""
    for place, topic in _topics(settings):
        needed = 2 * topic.segment.target_size_bytes
        if topic.wal.max_size_bytes < needed:
            yield (
                f"{place}wal.max_size",
                f"{size_text(topic.wal.max_size_bytes)} is less than two segments of "
                f"{size_text(topic.segment.target_size_bytes)} (segment.target_size); expected at least {size_text(needed)}",
            )


def _cap_holds_the_logs(settings: NodeSettings) -> Iterator[Conflict]:
    """Each worker needs room for a log that takes entries and the next one, of its largest topic, or nothing can be taken at all."""
    largest = max(topic.segment.target_size_bytes for _, topic in _topics(settings))
    needed = CAP_SEGMENTS_MIN * largest * max(1, settings.cores)
    if 0 < settings.size_cap_bytes < needed:
        yield (
            "retention.size_cap",
            f"{size_text(settings.size_cap_bytes)} is less than {CAP_SEGMENTS_MIN} segments of "
            f"{size_text(largest)} (segment.target_size) for each of {max(1, settings.cores)} workers; expected 0 (no cap) or at "
            f"least {size_text(needed)}",
        )


def _shares_hold_the_logs(settings: NodeSettings) -> Iterator[Conflict]:
    """Check that the share of each topic with a `cap_share` has room for the fewest segments that its workers need."""
    workers = max(1, settings.cores)
    for place, topic in _topics(settings):
        share, target = topic.retention.cap_share, topic.segment.target_size_bytes
        share_bytes, needed = int(share * settings.size_cap_bytes), CAP_SEGMENTS_MIN * target * workers
        if share < 1 and 0 < share_bytes < needed:
            yield (
                f"{place}retention.cap_share",
                f"{100 * share:g}% of {size_text(settings.size_cap_bytes)} is less than "
                f"{CAP_SEGMENTS_MIN} segments of {size_text(target)} (segment.target_size) for each of {workers} workers; expected "
                f"at least {100 * needed / settings.size_cap_bytes:.1f}%, a larger size_cap, or smaller segments",
            )


def _archive_has_a_place(settings: NodeSettings) -> Iterator[Conflict]:
    """Check that whoever wants an archive says where it is, and that who requires one has one."""
    for place, topic in _topics(settings):
        if topic.archive.enabled and not settings.archive.url:
            yield (
                f"{place}archive.enabled",
                "is true, and archive.url is not set; expected the URL of an object store there",
            )
        if topic.archive.require and not topic.archive.enabled:
            yield f"{place}archive.require", "is true without archive.enabled; expected both, or neither"


def _archive_lasts(settings: NodeSettings) -> Iterator[Conflict]:
    """Check that what counts as archived, and may be deleted here for that, outlives the archiver's process and this directory."""
    url = settings.archive.url
    if url.startswith("memory:"):
        for place, topic in _topics(settings):
            if topic.archive.lets_go or topic.is_archived:
                which = "archive.keep_local" if topic.archive.lets_go else "durability"
                yield (
                    f"{place}{which}",
                    f"trusts {url!r}, which ends with the archiver's process; expected a store that lasts",
                )
    if not url.startswith("file:") or not settings.data_dir:
        return
    from urllib.parse import unquote, urlsplit  # only here: commands that ask for nothing of it start sooner

    path, data_dir = unquote(urlsplit(url).path), os.path.abspath(settings.data_dir)
    if f"{os.path.normpath(path)}/".startswith(f"{data_dir}/"):
        yield (
            "archive.url",
            f"{url!r} is in data_dir, and is lost with it; expected a place outside of {settings.data_dir!r}",
        )


def _archived_pushes_can_wait(settings: NodeSettings) -> Iterator[Conflict]:
    """Check that what a push waits for happens: the topic is archived, and the bundle is synced before."""
    for place, topic in _topics(settings):
        if topic.is_archived and not topic.archive.enabled:
            yield f"{place}durability", "is archived without archive.enabled; expected both, or another durability"
        if topic.is_archived and topic.wal.flush_interval_ns:
            yield (
                f"{place}wal.flush_interval",
                "is not 0ms, and durability is archived, where bundles are synced before they are archived; expected 0ms",
            )


def _cold_directory_is_elsewhere(settings: NodeSettings) -> Iterator[Conflict]:
    """Check that a cold directory has a place of its own, whatever the directory is that a process runs in."""
    for place, topic in _topics(settings):
        cold_dir, data_dir = topic.tier.cold_dir, os.path.abspath(settings.data_dir)
        if not cold_dir:
            continue
        if not os.path.isabs(cold_dir):
            yield f"{place}tier.cold_dir", f"{cold_dir!r} is relative; expected an absolute path"
        elif f"{os.path.normpath(cold_dir)}/".startswith(f"{data_dir}/"):
            yield (
                f"{place}tier.cold_dir",
                f"{cold_dir!r} is in data_dir; expected a directory outside of {settings.data_dir!r}",
            )


def _topics(settings: NodeSettings) -> Iterator[tuple[str, TopicSettings]]:
    for name, topic in settings.all_topics().items():
        yield f"topics.{name}.", topic


CHECKS: tuple[Check, ...] = (
    _directory_is_named,
    _node_has_a_file_name,
    _logs_hold_a_segment,
    _cold_directory_is_elsewhere,
    _cap_holds_the_logs,
    _shares_hold_the_logs,
    _archive_has_a_place,
    _archive_lasts,
    _archived_pushes_can_wait,
)
