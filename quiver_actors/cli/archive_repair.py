"""`quiver archive repair`: builds a manifest again, its head or parts of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.named_archive import named_head, named_streams, open_named
from quiver_actors.errors import UsageError
from quiver_actors.supervisor.exitcodes import ExitCode

if TYPE_CHECKING:
    from quiver_actors.archive.head_repair import FoundHead, LostHead
    from quiver_actors.archive.repairing import DamagedPart
    from quiver_actors.store.objects.object_store import ObjectStore


def run(arguments: argparse.Namespace) -> int:
    """Change the manifest as the archive's owner does: whoever of the two comes second sees that it has changed.

    Raises:
        UsageError: there is no such archive, or only a topic of it is to be repaired, and the head is lost.
        FormatError: a newer program has written it. ArchiveError: the store cannot be used, or the manifest has changed meanwhile.
    """
    from quiver_actors.archive.head_repair import lost_head

    store, node = open_named(arguments)
    with closing(store):
        lost = lost_head(store, node)
        return _repair_parts(arguments, store, node) if lost is None else _repair_head(arguments, store, node, lost)


# --- the head ------------------------------------------------------------------------------------------------------------


def _repair_head(arguments: argparse.Namespace, store: ObjectStore, node: str, lost: LostHead) -> int:
    from quiver_actors.archive.head_repair import find_head, write_head
    from quiver_actors.archive.headless import no_archive

    if arguments.topic is not None:
        raise UsageError("the head of the manifest is lost, which is of all topics: leave --topic away")
    found = find_head(store, node, lost)
    if found is None:
        raise no_archive(store, node)
    epoch = found.epoch if arguments.dry_run else write_head(store, found).owner.epoch
    if arguments.json:
        print_json({"node": node, "dry_run": arguments.dry_run, "head": _document(found, epoch), "parts": []})
    else:
        for line in _lines(arguments, found):
            print(line)
        for problem in found.problems:
            print(problem, file=sys.stderr)
    return ExitCode.CLEAN if found.is_whole else ExitCode.UNEXPECTED


def _document(found: FoundHead, epoch: int) -> dict[str, Any]:
    return {
        "problem": found.lost.problem,
        "epoch": epoch,
        "state_unix_ns": None if found.state is None else found.state.ref.taken_unix_ns,
        "streams": [
            {
                "topic": each.key.topic,
                "core": each.key.core,
                "incarnation": each.key.incarnation,
                "segments": len(each.segments),
                "holes": len(each.holes),
                "lost": each.lost_count,
                "named_by_no_part": len(each.unnamed),
            }
            for each in found.streams
        ],
        "problems": list(found.problems),
    }


def _lines(arguments: argparse.Namespace, found: FoundHead) -> Iterator[str]:
    what = "would be built again" if arguments.dry_run else "was built again"
    yield f"the head of node {found.node}'s archive {what}: {found.lost.problem}"
    for each in found.streams:
        yield (
            f"{each.key.topic}  core {each.key.core}  incarnation {each.key.incarnation}  {len(each.segments):,} segments  "
            f"{len(each.holes):,} holes; {each.lost_count:,} segments are lost"
        )
    if not arguments.dry_run:
        yield (
            f"nobody owns the archive now (epoch {found.epoch}): `quiver archive take-over` lets the node's data directory continue it, "
            "and `quiver restore` a new one"
        )


# --- parts ---------------------------------------------------------------------------------------------------------------


def _repair_parts(arguments: argparse.Namespace, store: ObjectStore, node: str) -> int:
    from quiver_actors.archive.repairing import damaged_parts

    rows: list[dict[str, Any]] = []
    for stream in named_streams(named_head(store, node), arguments.topic):
        for damaged in damaged_parts(store, node, stream):
            place = {"topic": stream.topic, "core": stream.core, "incarnation": stream.incarnation}
            counts = {"segments": len(damaged.part.segments), "lost": damaged.lost_count}
            rows.append({**place, "part": damaged.ref.key, **counts})
            if not arguments.dry_run:
                _put(store, node, damaged)
    if arguments.json:
        print_json({"node": node, "dry_run": arguments.dry_run, "head": None, "parts": rows})
    else:
        what = "would be built again" if arguments.dry_run else "was built again"
        for row in rows:
            print(
                f"{row['topic']}  core {row['core']}  {row['part']} {what}: {row['segments']:,} segments; {row['lost']:,} are lost"
            )
        print(f"{len(rows):,} damaged parts")
    return ExitCode.UNEXPECTED if any(row["lost"] for row in rows) else ExitCode.CLEAN


def _put(store: ObjectStore, node: str, damaged: DamagedPart) -> None:
    from quiver_actors.archive.manifest_store import ManifestWriter
    from quiver_actors.archive.repairing import repair
    from quiver_actors.store.objects.patience import patiently

    def put() -> None:
        owner = named_head(store, node).owner
        repair(ManifestWriter.own(store, node, owner, owner), damaged)

    patiently(put)
