"""`quiver archive`: what is in the archive of a node, whether it is whole, and taking it out or over. Asks the store, not the node."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiver_actors.base.units import format_size
from quiver_actors.cli.consent import add_consent
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.durations import duration_ns
from quiver_actors.errors import ConfigError, UsageError
from quiver_actors.supervisor.exitcodes import ExitCode

if TYPE_CHECKING:
    from quiver_actors.archive.manifest import Head, StreamRef
    from quiver_actors.archive.repairing import DamagedPart
    from quiver_actors.base.config import NodeSettings
    from quiver_actors.store.objects.object_store import ObjectStore

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
The store and the node's name are those of the configuration; --archive and --node name others, for which no node is needed.

exit codes:
  0    shown, whole, or done
  1    the object store cannot be asked, or what is in it is damaged or missing
  2    wrong arguments or configuration, or there is no such archive
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver archive` with its commands to the command line."""
    parser = subparsers.add_parser(
        "archive",
        help="look at the archive of a node in its object store, check it, take segments out of it",
        description="Look at the archive of a node in its object store, check it, and take segments out of it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = _add(commands, "ls", "what is archived, by topic and core; with --topic each segment and hole", _ls)
    listing.add_argument("--topic", help="only this one, segment by segment")
    _add(commands, "status", "who owns the archive, and how much is in it", _status)
    verify = _add(
        commands, "verify", "read every archived segment and the state, and compare them with their checksums", _verify
    )
    verify.add_argument("--topic", help="only this one")
    get = _add(commands, "get", "copy archived segments into a directory, each proven; damaged ones are named", _get)
    get.add_argument(
        "directory", help="where the files are put, below TOPIC/INCARNATION/core_N; must not hold them yet"
    )
    get.add_argument("--topic", help="only this one")
    expire = _add(
        commands, "expire", "delete archived segments by age now, as archive.expire does once an hour", _expire
    )
    expire.add_argument("--topic", help="only this one")
    expire.add_argument(
        "--older-than",
        type=duration_ns,
        required=True,
        metavar="AGE",
        help="segments whose newest bundle is older go, such as 30d",
    )
    add_consent(expire)
    repair = _add(
        commands,
        "repair",
        "build damaged or deleted parts of the manifest again from the segments that are there",
        _repair,
    )
    repair.add_argument("--topic", help="only this one")
    add_consent(repair)
    take_over = _add(
        commands, "take-over", "let this data directory continue an archive that another one owns", _take_over
    )
    take_over.add_argument("--data-dir", metavar="DIR", help="the data directory (default: that of the configuration)")
    add_consent(take_over)


def _add(
    commands: Subparsers, name: str, help_text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
    parser.add_argument("--config", metavar="FILE", help="the node's configuration")
    parser.add_argument("--archive", metavar="URL", help="the object store (default: archive.url)")
    parser.add_argument("--node", metavar="NAME", help="the node's name (default: that of the configuration)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)
    return parser


def _settings(arguments: argparse.Namespace) -> NodeSettings:
    from quiver_actors.base.config import load_config

    return load_config(arguments.config)


def _open(arguments: argparse.Namespace) -> tuple[ObjectStore, str]:
    """The store, and the name of the node."""
    from quiver_actors.store.objects.opening import open_existing

    settings = _settings(arguments)
    url = arguments.archive or settings.archive.url
    if not url:
        raise ConfigError("no archive is named: give --archive URL, or --config of a node with archive.url")
    name = "--archive" if arguments.archive else "archive.url"
    return open_existing(url, name=name), arguments.node or settings.node_name()


def _head(store: ObjectStore, node: str) -> Head:
    from quiver_actors.archive.manifest_store import read_head

    head = read_head(store, node)
    if head is None:
        known = ", ".join(store.directories("")) or "none"
        raise UsageError(f"{store.url} has no archive of node {node!r}; nodes there: {known}")
    return head


def _streams(head: Head, topic: str | None) -> list[StreamRef]:
    found = [each for each in head.streams if topic in (None, each.topic)]
    if topic is not None and not found:
        known = ", ".join(sorted({each.topic for each in head.streams})) or "none"
        raise UsageError(f"topic {topic!r} is not in the archive of node {head.node!r}; topics there: {known}")
    return found


# --- commands ------------------------------------------------------------------------------------------------------------


def _ls(arguments: argparse.Namespace) -> int:
    store, node = _open(arguments)
    streams = _streams(_head(store, node), arguments.topic)
    rows = [_with_segments(store, each) if arguments.topic else _stream_row(each) for each in streams]
    if arguments.json:
        print_json({"node": node, "streams": rows})
        return ExitCode.CLEAN
    for row in rows:
        print(
            f"{row['topic']}  core {row['core']}  incarnation {row['incarnation']}  {row['segments']:,} segments  "
            f"{row['bundles']:,} bundles  {format_size(row['bytes'])}  {row['holes']:,} holes"
        )
        for segment in row.get("listed", ()):
            print(
                f"  segment {segment['segment_seq']:>8}  {segment['bundle_count']:,} bundles  {format_size(segment['size_bytes'])}"
            )
        for hole in row.get("listed_holes", ()):
            count = hole["bundle_count"] or "all"
            print(
                f"  hole in segment {hole['segment_seq']}: {count} bundles from {hole['first_bundle']} on: {hole['reason']}"
            )
    return ExitCode.CLEAN


def _stream_row(stream: StreamRef) -> dict[str, Any]:
    return {
        "topic": stream.topic,
        "core": stream.core,
        "incarnation": stream.incarnation,
        "archived_through": stream.archived_through,
        "expired_through": stream.expired_through,
        "segments": sum(ref.segment_count for ref in stream.parts),
        "bundles": sum(ref.bundle_count for ref in stream.parts),
        "bytes": sum(ref.bytes_archived for ref in stream.parts),
        "holes": sum(ref.hole_count for ref in stream.parts),
    }


def _with_segments(store: ObjectStore, stream: StreamRef) -> dict[str, Any]:
    import msgspec

    from quiver_actors.archive.manifest_store import read_parts

    parts = list(read_parts(store, stream))
    listed = [msgspec.to_builtins(each) for part in parts for each in part.segments]
    holes = [msgspec.to_builtins(each) for part in parts for each in part.holes]
    return {**_stream_row(stream), "listed": listed, "listed_holes": holes}


def _status(arguments: argparse.Namespace) -> int:
    store, node = _open(arguments)
    head = _head(store, node)
    rows = [_stream_row(each) for each in head.streams]
    found = {
        "url": store.url,
        "node": node,
        "epoch": head.owner.epoch,
        "directory": head.owner.directory,
        "commits": head.commit,
        "segments": sum(row["segments"] for row in rows),
        "bundles": sum(row["bundles"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "holes": sum(row["holes"] for row in rows),
    }
    if arguments.json:
        print_json(found)
    else:
        print(
            f"{store.url}  node {node}  owner {head.owner.directory}  epoch {head.owner.epoch}  commit {head.commit:,}"
        )
        print(
            f"{found['segments']:,} segments  {found['bundles']:,} bundles  {format_size(int(found['bytes']))}  {found['holes']:,} holes"
        )
    return ExitCode.CLEAN


def _verify(arguments: argparse.Namespace) -> int:
    from quiver_actors.archive.verifying import verify

    store, node = _open(arguments)
    streams = [each.key for each in _streams(_head(store, node), arguments.topic)]
    count, problems = verify(store, node, streams)
    if arguments.json:
        print_json({"node": node, "checked": count, "problems": [each._asdict() for each in problems]})
    else:
        print(f"{count:,} segments read: {len(problems):,} are damaged or missing")
        for each in problems:
            print(f"{each.key}: {each.problem}", file=sys.stderr)
    return ExitCode.UNEXPECTED if problems else ExitCode.CLEAN


def _get(arguments: argparse.Namespace) -> int:
    from quiver_actors.archive.verifying import proven_segments

    store, node = _open(arguments)
    count = size_bytes = 0
    problems: list[str] = []
    for stream in _streams(_head(store, node), arguments.topic):
        directory = Path(arguments.directory, stream.topic, stream.incarnation, f"core_{stream.core}")
        directory.mkdir(parents=True, exist_ok=True)
        for segment_seq, found in proven_segments(store, node, stream.key):
            if isinstance(found, str):
                problems.append(found)
                continue
            _write_new(directory, f"{segment_seq:020d}.qseg", found)
            count, size_bytes = count + 1, size_bytes + len(found)
    if arguments.json:
        print_json({"node": node, "segments": count, "bytes": size_bytes, "problems": problems})
    else:
        print(f"{count:,} segments, {format_size(size_bytes)}, in {arguments.directory}")
        for problem in problems:
            print(f"not taken out: {problem}", file=sys.stderr)
    return ExitCode.UNEXPECTED if problems else ExitCode.CLEAN


def _write_new(directory: Path, name: str, content: bytes) -> None:
    """Write a file that has its name when it is whole. Raises UsageError: there is one of that name; DiskError."""
    from contextlib import closing

    from quiver_actors.store.disk.posix import PosixDisk
    from quiver_actors.store.disk.protocol import write_atomically

    with closing(PosixDisk(str(directory))) as disk:
        if disk.exists(name):
            raise UsageError(f"{directory / name} is there already: name another directory")
        write_atomically(disk, name, content)


def _take_over(arguments: argparse.Namespace) -> int:
    from contextlib import closing

    from quiver_actors.archive.ownership import take_over
    from quiver_actors.store.disk.posix import PosixDisk

    store, node = _open(arguments)
    data_dir = arguments.data_dir or _settings(arguments).data_dir
    if arguments.dry_run:
        present = _head(store, node).owner
        print(
            f"{data_dir} would take over from data directory {present.directory}, epoch {present.epoch}, which is fenced then"
        )
        return ExitCode.CLEAN
    with closing(PosixDisk(data_dir)) as disk:
        owner = take_over(disk, store, node)
    said = "nobody owned it" if owner is None else f"data directory {owner.directory} owned it, epoch {owner.epoch}"
    if arguments.json:
        print_json({"node": node, "directory": None if owner is None else owner.directory})
    else:
        print(f"{data_dir} continues the archive of node {node} with the next start of its archiver; {said}")
    return ExitCode.CLEAN


def _expire(arguments: argparse.Namespace) -> int:
    """Change the manifest as the archive's owner does: whoever of the two comes second sees that it has changed, and begins again."""
    from quiver_actors.archive.expiry import over_age
    from quiver_actors.store.objects.patience import patiently

    store, node = _open(arguments)
    head = _head(store, node)
    before_unix_ns = time.time_ns() - arguments.older_than
    rows: list[dict[str, Any]] = []
    for stream in _streams(head, arguments.topic):
        found = [segment for part in over_age(store, stream, before_unix_ns) for segment in part.segments]
        size_bytes = sum(each.size_bytes for each in found)
        place = {"topic": stream.topic, "core": stream.core, "incarnation": stream.incarnation}
        rows.append({**place, "segments": len(found), "bytes": size_bytes})
        if found and not arguments.dry_run:
            patiently(partial(_expire_stream, store, node, stream, before_unix_ns))
    if arguments.json:
        print_json({"node": node, "dry_run": arguments.dry_run, "streams": rows})
        return ExitCode.CLEAN
    what = (
        "would go" if arguments.dry_run else "have left the manifest; the node's archiver deletes them within two hours"
    )
    for row in rows:
        print(f"{row['topic']}  core {row['core']}  {row['segments']:,} segments, {format_size(row['bytes'])}, {what}")
    return ExitCode.CLEAN


def _expire_stream(store: ObjectStore, node: str, stream: StreamRef, before_unix_ns: int) -> None:
    """Take what is over age out of the manifest as it is now: the archiver may have changed it since it was listed."""
    from quiver_actors.archive.expiry import expire_stream
    from quiver_actors.archive.manifest_store import ManifestWriter

    owner = _head(store, node).owner
    expire_stream(store, ManifestWriter.own(store, node, owner, owner), stream, before_unix_ns)


def _repair(arguments: argparse.Namespace) -> int:
    """Change the manifest as `_expire` does."""
    from quiver_actors.archive.manifest_store import ManifestWriter
    from quiver_actors.archive.repairing import damaged_parts, repair
    from quiver_actors.store.objects.patience import patiently

    store, node = _open(arguments)
    rows: list[dict[str, Any]] = []
    for stream in _streams(_head(store, node), arguments.topic):
        for damaged in damaged_parts(store, node, stream):
            place = {"topic": stream.topic, "core": stream.core, "incarnation": stream.incarnation}
            counts = {"segments": len(damaged.part.segments), "lost": damaged.lost_count}
            rows.append({**place, "part": damaged.ref.key, **counts})
            if not arguments.dry_run:

                def put(damaged: DamagedPart = damaged) -> None:
                    owner = _head(store, node).owner
                    repair(ManifestWriter.own(store, node, owner, owner), damaged)

                patiently(put)
    if arguments.json:
        print_json({"node": node, "dry_run": arguments.dry_run, "parts": rows})
    else:
        what = "would be built again" if arguments.dry_run else "was built again"
        for row in rows:
            print(
                f"{row['topic']}  core {row['core']}  {row['part']} {what}: {row['segments']:,} segments; {row['lost']:,} are lost"
            )
        print(f"{len(rows):,} damaged parts")
    return ExitCode.UNEXPECTED if any(row["lost"] for row in rows) else ExitCode.CLEAN
