"""`quiver compact`: rewrite the segments of a stopped node that hold more framing than they need."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from quiver_actors.base.units import format_size
from quiver_actors.cli.progress_bar import ProgressBar
from quiver_actors.cli.storage import EXIT_CODES, StorageExit, add_command, counted, opened, print_json
from quiver_actors.errors import AlreadyRunning, UsageError

if TYPE_CHECKING:
    from quiver_actors.cli.storage import Subparsers
    from quiver_actors.store.disk.protocol import Disk
    from quiver_actors.store.jobs.offline_compaction import CompactedSegment

_DESCRIPTION = """\
Rewrite sealed segments of a node that is not running where that pays: many small bundles, or many streams that differ in their
dictionaries only. Bundle ids and contents stay. A running node does the same in the background, a minute after a segment was sealed,
unless its configuration says `segment.compaction = "off"`.

Each new file is synced, read back and compared before it takes the old one's name; killed at any moment, the command leaves the old
file or the new one. Damaged segments are left as they are.
"""
_EPILOG = """\
examples:
  quiver compact --data-dir /var/lib/quiver --dry-run
  quiver compact --data-dir /var/lib/quiver --topic clicks

""" + EXIT_CODES.format(
    ok="done, or nothing to do",
    more="  3    a node or another process has the directory open\n",
    damage="damaged segments were found and left alone: see `quiver verify`, `quiver repair`",
)


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver compact` with its options to the command line."""
    parser = add_command(subparsers, "compact", "rewrite small-bundle segments", _DESCRIPTION, _EPILOG, run)
    parser.add_argument("--data-dir", metavar="DIR", required=True, help="the data directory of a node")
    parser.add_argument("--topic", metavar="NAME", help="only this topic")
    parser.add_argument("--dry-run", action="store_true", help="say what would be rewritten, change nothing")


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError, AlreadyRunning, UnsupportedVersion, and DiskError where something cannot be read or written."""
    from quiver_actors.node.node_dirs import hold_data_dir, refuse_other_version
    from quiver_actors.store.inspection.directory import engine_directories

    data_dir = os.path.abspath(arguments.data_dir)
    found: dict[str, list[CompactedSegment]] = {}
    with opened(data_dir) as (tree, place), ExitStack() as held:
        all_engines = engine_directories(tree.disk, place)
        if all_engines:  # nothing is written to what is no data directory
            refuse_other_version(data_dir)
            held.enter_context(hold_data_dir(data_dir))
        else:
            print(f"{data_dir}: no engine's directory is in it", file=sys.stderr)
        engines = [path for path in all_engines if arguments.topic in (None, path.split("/")[0])]
        if arguments.topic is not None and not engines:
            raise UsageError(f"no topic {arguments.topic!r} is in {data_dir}")
        for engine in engines:
            found[engine] = _compact_engine(tree.disk, engine, arguments.dry_run)
            if not arguments.json:
                print(_text(engine, found[engine], arguments.dry_run), flush=True)
    if arguments.json:
        print_json({"data_dir": data_dir, "dry_run": arguments.dry_run, "engines": found})
    return StorageExit.DAMAGE if any(each.damage for all_ in found.values() for each in all_) else StorageExit.OK


def _compact_engine(disk: Disk, engine: str, dry_run: bool) -> list[CompactedSegment]:
    from quiver_actors.store.files.paths import EnginePaths
    from quiver_actors.store.inspection.directory import segment_names
    from quiver_actors.store.jobs.offline_compaction import compact_segment

    paths = EnginePaths(engine)
    segment_seqs = [seq for seq, name in segment_names(disk, paths).items() if paths.segment(seq).endswith(name)]
    sizes = {segment_seq: disk.allocated_bytes(paths.segment(segment_seq)) for segment_seq in segment_seqs}
    found = []
    with _locked(disk, paths.lock), ProgressBar(sum(sizes.values())) as bar:
        for segment_seq in segment_seqs:
            found.append(compact_segment(disk, paths, segment_seq, dry_run=dry_run))
            bar.advance(sizes[segment_seq])
    return found


@contextmanager
def _locked(disk: Disk, path: str) -> Iterator[None]:
    lock = disk.lock(path)
    if lock is None:
        raise AlreadyRunning(f"{path} is held by a running process: stop the node first")
    try:
        yield
    finally:
        lock.release()


def _text(engine: str, segments: list[CompactedSegment], dry_run: bool) -> str:
    lines = []
    for each in segments:
        name = f"  segment {each.segment_seq}"
        if each.damage:
            lines.append(f"{name}: DAMAGED, left as it is: {each.damage}")
        elif each.new_size_bytes is not None:
            lines.append(
                f"{name}: {format_size(each.size_bytes)} -> {format_size(each.new_size_bytes)} ({each.reason})"
            )
        elif each.pays:
            what = (
                f"about {format_size(each.saving_bytes)} of {format_size(each.size_bytes)}" if dry_run else "given up"
            )
            lines.append(f"{name}: {what} ({each.reason})")
    changed = [each for each in segments if each.new_size_bytes is not None or (dry_run and each.pays)]
    saved = sum(each.saving_bytes for each in changed)
    done = f"{len(changed)} {'would be ' if dry_run else ''}rewritten, {'about ' if dry_run else ''}{format_size(saved)} less"
    return "\n".join([f"{engine}: {counted(len(segments), 'segment')}, {done}", *lines])
