"""`quiver repair`: put a stopped node's directory right, without deleting anything."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quiver_actors.cli.progress_bar import ProgressBar
from quiver_actors.cli.storage import (
    EXIT_CODES,
    StorageExit,
    add_command,
    bytes_below,
    finding_text,
    opened,
    print_json,
)
from quiver_actors.errors import AlreadyRunning, DiskError

if TYPE_CHECKING:
    from quiver_actors.base.config import NodeSettings, TopicSettings
    from quiver_actors.cli.storage import Subparsers
    from quiver_actors.store.inspection.repair import EngineRepair
    from quiver_actors.store.inspection.source import Tree

_DESCRIPTION = """\
Repair the directories of a node that is not running. Damaged files are moved to quarantine/ beside them; nothing is deleted but
temporary files. What is derived is made anew: the cursor from the segments, the core file behind all numbers in use. Logs with damage
are sealed as every start of a node does it, their damaged bytes kept in quarantine/. Progress is not derived: a subscriber whose
progress file is damaged is kept and gets everything that is still there once more, but for what its gap notices name.

Looks at everything first, as `quiver verify --deep`, and leaves engines without damage alone.
"""
_EPILOG = """\
examples:
  quiver repair --data-dir /var/lib/quiver --dry-run
  quiver repair --data-dir /var/lib/quiver --yes

""" + EXIT_CODES.format(
    ok="nothing is damaged, or nothing is any more (--dry-run: would be)",
    more="  3    a node or another process has the directory open\n",
    damage="something damaged is left that needs a hand",
)


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver repair` with its options to the command line."""
    parser = add_command(subparsers, "repair", "repair stored files", _DESCRIPTION, _EPILOG, run)
    parser.add_argument("--data-dir", metavar="DIR", required=True, help="the data directory of a node, or an engine's")
    parser.add_argument("--config", metavar="FILE", help="the node's settings: needed where topics declare slots")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    mode.add_argument("--yes", action="store_true", help="do it")


def run(arguments: argparse.Namespace) -> int:
    """Raises AlreadyRunning, ConfigError, UnsupportedVersion, and DiskError where something cannot be read or written."""
    from quiver_actors.base.config import load_config
    from quiver_actors.store.inspection.directory import engine_directories
    from quiver_actors.store.inspection.repair import repair_engine

    settings = load_config(arguments.config)
    repairs = []
    data_dir = arguments.data_dir
    with ProgressBar(bytes_below(data_dir)) as bar, opened(data_dir, bar.advance) as (tree, place):
        engines = engine_directories(tree.disk, place)
        with _held(tree, data_dir, engines, arguments.dry_run):
            for engine in engines:
                topic = _topic_settings(settings, os.path.join(data_dir, engine))
                repair = repair_engine(tree, engine, topic, dry_run=arguments.dry_run)
                repairs.append(repair)
                if not arguments.json:
                    bar.clear()
                    print(_text(repair), flush=True)
    if arguments.json:
        print_json({"data_dir": data_dir, "dry_run": arguments.dry_run, "engines": repairs})
    elif arguments.dry_run and any(repair.steps for repair in repairs):
        print("nothing was changed: do it with --yes")
    return StorageExit.OK if all(repair.is_whole for repair in repairs) else StorageExit.DAMAGE


def _topic_settings(settings: NodeSettings, directory: str) -> TopicSettings:
    """Return the settings of the topic that the engine directory belongs to; defaults for a topic that is not configured."""
    import msgspec

    name = os.path.basename(os.path.dirname(os.path.realpath(directory)))
    topics = settings.all_topics()
    return topics[name] if name in topics else msgspec.structs.replace(topics["default"], name=name, slots={})


@contextmanager
def _held(tree: Tree, data_dir: str, engines: list[str], dry_run: bool) -> Iterator[None]:
    """Hold the lock of the directory; a dry run, which changes nothing, only checks that it is free."""
    from quiver_actors.node.node_dirs import NODE_LOCK, hold_data_dir, refuse_other_version
    from quiver_actors.store.files.paths import EnginePaths

    if not engines:
        print(f"{data_dir}: no engine's directory is in it", file=sys.stderr)
        yield
        return
    refuse_other_version(data_dir)
    if dry_run:
        locks = [NODE_LOCK, *(EnginePaths(engine).lock for engine in engines)]
        for lock in locks:
            _refuse_held(os.path.join(data_dir, lock))
        yield
    elif engines == ["."]:
        yield  # an engine's own directory: its lock is taken with the repair
    else:
        with hold_data_dir(os.path.abspath(data_dir)):
            yield


def _refuse_held(path: str) -> None:
    from quiver_actors.shm.errors import ShmError
    from quiver_actors.shm.liveness import holder_alive

    try:
        is_held = holder_alive(path)
    except ShmError as error:
        cause = error.__cause__
        raise DiskError("lock", path, cause.errno or 0 if isinstance(cause, OSError) else 0) from error
    if is_held:
        raise AlreadyRunning(f"{path} is held by a running process: stop the node first")


def _text(repair: EngineRepair) -> str:
    if not repair.damage:
        return f"{repair.directory}: nothing to repair"
    lines = [f"{repair.directory}:"]
    for step in repair.steps:
        target = f" -> {step.target}" if step.target else ""
        reason = f"   ({step.reason})" if step.reason else ""
        lines.append(f"  {step.action.value:11}  {step.path}{target}{reason}")
    lines += [f"  {note}" for note in repair.notes]
    if repair.refusal:
        lines.append(f"  LEFT AS IT IS: {repair.refusal}")
    if repair.left:
        lines.append("  still damaged, and to be put right by hand:")
        lines += [finding_text(finding) for finding in repair.left]
    return "\n".join(lines)
