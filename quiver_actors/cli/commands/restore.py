"""`quiver restore`: the data directory of a node, rebuilt from its archive after the disk or the host was lost."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from quiver_actors.base.units import SECOND_NS, format_size
from quiver_actors.cli.consent import add_confirmation, is_confirmed
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.progress_bar import ProgressBar
from quiver_actors.supervisor.exitcodes import ExitCode

if TYPE_CHECKING:
    from quiver_actors.archive.node_state import PreparedStage
    from quiver_actors.archive.restoring.directory import Damaged
    from quiver_actors.archive.restoring.plan import EnginePlan, Plan
    from quiver_actors.archive.restoring.stages import LostStage

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Rebuild the data directory of a node from its archive, for a node that takes over from a dead one: archived segments that were on its
disk, topics with their settings, subscribers with their progress and notices, producers' windows, numbers, the decisions of transactions
and the prepared stages that were archived.
Subscribers go on where they were when the state was uploaded last (archive.progress_interval); what they had acknowledged since comes once
more. The directory becomes the owner of the archive: the dead node, should it come back, records nothing more there.

The command says what is lost: bundles that were not archived. Their subscribers get notices. The transaction of a prepared stage that is
lost is aborted if it is undecided. Cut off anywhere, run it again.
"""
_EPILOG = """\
examples:
  quiver restore --archive file:///srv/archive --node worker-1 --data-dir /var/lib/quiver-restored --dry-run
  quiver restore --archive file:///srv/archive --node worker-1 --data-dir /var/lib/quiver-restored --yes

exit codes:
  0    restored; bundles that were not archived are named and announced
  1    the object store cannot be asked, or archived segments are damaged or missing: the rest is restored
  2    wrong arguments, there is no such archive, or the directory is not empty
  3    a node has the directory open
  4    the disk has no room or fails, or the manifest is damaged
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver restore` with its options to the command line."""
    parser = subparsers.add_parser(
        "restore",
        help="rebuild the data directory of a lost node from its archive",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--archive", metavar="URL", required=True, help="the object store (archive.url of the lost node)"
    )
    parser.add_argument("--node", metavar="NAME", required=True, help="the name of the lost node")
    parser.add_argument("--data-dir", metavar="DIR", required=True, help="a new or empty directory")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_confirmation(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError, AlreadyRunning, StorageFull, DiskError, FormatError, ArchiveError."""
    from quiver_actors.archive.restoring.directory import restore
    from quiver_actors.archive.restoring.plan import read_plan
    from quiver_actors.node.node_dirs import NODE_LOCK, hold_data_dir, make_data_dir
    from quiver_actors.store.disk.posix import PosixDisk
    from quiver_actors.store.objects.opening import open_existing

    with closing(open_existing(arguments.archive, name="--archive")) as store:
        plan = read_plan(store, arguments.node, "")
        if arguments.dry_run:
            _show(arguments, plan, {"dry_run": True, "epoch": plan.owner.epoch}, [], plan.lost_stages)
            return ExitCode.CLEAN
        if not is_confirmed(arguments, _question(arguments, plan)):
            return ExitCode.USAGE
        data_dir = make_data_dir(arguments.data_dir)
        with hold_data_dir(data_dir), closing(PosixDisk(data_dir)) as disk, ProgressBar(plan.size_bytes) as bar:
            done = restore(disk, store, arguments.node, bar.advance, beside=[NODE_LOCK])
    _show(arguments, done.plan, {"dry_run": False, "epoch": done.epoch}, done.damaged, done.lost_stages)
    return ExitCode.UNEXPECTED if done.damaged or done.damaged_stages else ExitCode.CLEAN


def _question(arguments: argparse.Namespace, plan: Plan) -> str:
    return (
        f"{os.path.abspath(arguments.data_dir)} takes over the archive of node {arguments.node} from data directory "
        f"{plan.owner.directory}, which cannot archive any more then. Go on?"
    )


# --- the report ----------------------------------------------------------------------------------------------------------


def _show(
    arguments: argparse.Namespace,
    plan: Plan,
    more: dict[str, Any],
    damaged: list[Damaged],
    lost: list[LostStage],
) -> None:
    if arguments.json:
        print_json(
            {
                "node": arguments.node,
                "data_dir": os.path.abspath(arguments.data_dir),
                **more,
                "state_unix_ns": plan.state.taken_unix_ns,
                "engines": [_engine_row(each) for each in plan.engines],
                "carried_stages": [
                    _stage_row(state.topic, state.core, stage) for state, stage in plan.carried_stages_without(lost)
                ],
                "lost_stages": [
                    {
                        **_stage_row(each.stream.topic, each.stream.core, each.stage),
                        "problem": each.problem,
                        "outcome": each.outcome or None,
                    }
                    for each in lost
                ],
                "lost_publishes": [
                    {"topic": each.state.topic, "core": each.state.core, "stage": number}
                    for each in plan.engines
                    for number in each.lost_publishes
                ],
                "bare_topics": plan.bare_topics,
                "damaged": [
                    {
                        "topic": each.stream.topic,
                        "core": each.stream.core,
                        "segment_seq": each.segment_seq,
                        "problem": each.problem,
                    }
                    for each in damaged
                ],
            }
        )
        return
    for line in (*_lines(arguments, plan), *_stage_lines(arguments, plan, lost), *_last_lines(arguments, plan)):
        print(line)
    for each in damaged:
        print(
            f"segment {each.segment_seq} of topic {each.stream.topic}, core {each.stream.core}, is lost in the archive: {each.problem}",
            file=sys.stderr,
        )


def _engine_row(plan: EnginePlan) -> dict[str, Any]:
    return {
        "topic": plan.state.topic,
        "core": plan.state.core,
        "segments": len(plan.segments),
        "bundles": sum(each.bundle_count for each in plan.segments),
        "bytes": plan.size_bytes,
        "lost": [
            {"segment_seq": each.segment_seq, "bundles": each.bundle_count, "is_sealed": each.is_sealed}
            for each in plan.losses
        ],
    }


def _lines(arguments: argparse.Namespace, plan: Plan) -> Iterator[str]:
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(plan.state.taken_unix_ns / SECOND_NS))
    what = "would be restored" if arguments.dry_run else "restored"
    yield f"node {arguments.node} {what} into {os.path.abspath(arguments.data_dir)}, as of {taken}"
    for each in plan.engines:
        bundles = sum(segment.bundle_count for segment in each.segments)
        yield (
            f"{each.state.topic}  core {each.state.core}  {len(each.segments):,} segments  {bundles:,} bundles  "
            f"{format_size(each.size_bytes)}"
        )
        if not each.is_retired:
            yield from _loss_lines(each)
    yield f"lost everywhere: what was pushed after {taken} and not archived"


def _stage_row(topic: str, core: int, stage: PreparedStage) -> dict[str, Any]:
    return {
        "topic": topic,
        "core": core,
        "stage": stage.number,
        "txn_id": stage.txn_id,
        "epoch": stage.epoch,
        "bundles": stage.bundle_count,
    }


def _stage_lines(arguments: argparse.Namespace, plan: Plan, lost: list[LostStage]) -> Iterator[str]:
    for state, stage in plan.carried_stages_without(lost):
        yield (
            f"prepared: {stage.bundle_count:,} bundles of transaction {stage.txn_id}, stage {stage.number} of topic {state.topic}, "
            f"core {state.core}: they wait for their decision as before"
        )
    for each in lost:
        yield (
            f"lost: {each.stage.bundle_count:,} prepared bundles of transaction {each.stage.txn_id}, stage {each.stage.number} of "
            f"topic {each.stream.topic}, core {each.stream.core}: {each.problem}; publishing them raises TransactionLost; "
            f"{_fate(arguments, each)}"
        )
    for engine in plan.engines:
        for number in engine.lost_publishes:
            yield (
                f"lost: stage {number} of topic {engine.state.topic}, core {engine.state.core}, was published, and not all of its bundles "
                "were archived: publishing it again raises TransactionLost"
            )


def _fate(arguments: argparse.Namespace, lost: LostStage) -> str:
    """What becomes of the transaction of a lost stage."""
    if arguments.dry_run:
        return "the transaction is aborted if it is undecided"
    if lost.outcome == "abort":
        return "the transaction is aborted: committing it raises TransactionAborted"
    if lost.outcome == "commit":
        return "the transaction is committed: if it names the stage, it lacks these bundles"
    return f"abort the transaction before anybody commits it: {lost.outcome}"


def _last_lines(arguments: argparse.Namespace, plan: Plan) -> Iterator[str]:
    for topic in plan.bare_topics:
        yield f"topic {topic} was not archived: it has its settings, and none of its bundles and subscribers"
    if not arguments.dry_run:
        yield f'start it with node = "{arguments.node}" and archive.url = "{arguments.archive}" in its configuration'


def _loss_lines(plan: EnginePlan) -> Iterator[str]:
    for loss in plan.losses:
        if loss.bundle_count:
            least = "" if loss.is_sealed else "at least "
            yield f"  not archived: segment {loss.segment_seq}: {least}{loss.bundle_count:,} bundles"
        elif loss.is_sealed:
            yield f"  not in the archive any more: segment {loss.segment_seq}"
