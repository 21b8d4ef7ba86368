"""The small files of a restored directory, made of those of the dead node. Pure.

What the dead node has numbered since its state was taken is not known, nor what it will number if it comes back. So all numbers go on far
behind: no segment, bundle, log position or stage has a number that it can have used.

| file                 | what becomes of it                                                                                             |
|----------------------|----------------------------------------------------------------------------------------------------------------|
| `quiver.core`        | the same incarnation; numbers far ahead                                                                        |
| `quiver.sub.<id>`    | as it was                                                                                                      |
| `quiver.gaps.<id>`   | as it was, and a notice of each loss that the subscriber had not done with                                     |
| `quiver.producers`   | without bundles that are not archived (each would be taken for a duplicate); what was stored last is open      |
| `quiver.transactions`| prepared stages that do not come back as dropped; of older ones nobody can tell any more what became of them   |
| `quiver.foreign`     | the segments of other writers; no adoption is under way                                                        |
| the cursor           | a log position far ahead                                                                                       |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from quiver_actors.archive.node_state import EngineState, PreparedStage
from quiver_actors.archive.restoring.plan import EnginePlan, Loss
from quiver_actors.archive.restoring.stages import LOST_PUBLISH
from quiver_actors.archive.staged_bundles import journal_of
from quiver_actors.errors import FormatError
from quiver_actors.store.files.core_file import CORE_NAME, CoreFile, decode_core, encode_core
from quiver_actors.store.files.foreign_record import FOREIGN_NAME, ForeignRecord, decode_foreign, encode_foreign
from quiver_actors.store.files.paths import PRODUCERS_NAME, TRANSACTIONS_NAME, WAL_NAME
from quiver_actors.store.staged.keys import KeyRun, Windows, decode_windows
from quiver_actors.store.staged.records import (
    DroppedRecord,
    JournalRecord,
    decode_journal,
    encode_journal,
)
from quiver_actors.store.subscriber.gaps import GapLedger, decode_gaps, gaps_file_name
from quiver_actors.store.subscriber.losses import lose_unsealed
from quiver_actors.store.subscriber.progress import decode_progress, subscriber_of
from quiver_actors.store.subscriber.registry import SubscriberRegistry
from quiver_actors.store.wal.codec import decode_cursor, encode_cursor
from quiver_actors.store.wal.layout import CURSOR_NAME

T = TypeVar("T")
SEGMENTS_AHEAD = 1 << 32
SEQUENCES_AHEAD = 1 << 52
POSITIONS_AHEAD = 1 << 52
STAGES_AHEAD = 1 << 32
"""How far the numbers of a restored directory are ahead: more than a node can use in years, and room for two thousand restores."""
CURSOR_PATH = f"{WAL_NAME}/{CURSOR_NAME}"
LOST_STAGE = (
    "its bundles were lost with the disk of the node, from whose archive the directory was restored: run the transaction again, under "
    "another id if it was committed"
)


def renumbered(plan: EnginePlan, archived_through: Mapping[int, int], taken_unix_ns: int) -> EngineState:
    """The state that a restored directory begins with.

    Args:
        archived_through: of all cores of the topic.
        taken_unix_ns: UNIX time of the state of the dead node.

    A damaged file of the state counts as missing, or stays as it is where a start makes it anew from segments.
    """
    state = plan.state
    core = decode_core(state.files[CORE_NAME])
    used = [core.next_segment_seq_reserved, plan.archived_through + 1, *(each.segment_seq + 1 for each in plan.losses)]
    began_at = max(used) + SEGMENTS_AHEAD
    position = max(plan.position_end, _decoded(decode_cursor, state.files.get(CURSOR_PATH), 0)) + POSITIONS_AHEAD
    sequence = core.next_sequence_reserved + SEQUENCES_AHEAD
    files = {
        **state.files,
        CORE_NAME: encode_core(CoreFile(core.incarnation, core.core_id, began_at, sequence, clean_shutdown=False)),
        CURSOR_PATH: encode_cursor(position),
        TRANSACTIONS_NAME: encode_journal(_journal(plan, taken_unix_ns)),
    }
    windows = _decoded(decode_windows, files.get(PRODUCERS_NAME), Windows())
    if len(windows):
        files[PRODUCERS_NAME] = archived_windows(windows, state.core, archived_through).encode()
    foreign = _decoded(decode_foreign, files.pop(FOREIGN_NAME, None), ForeignRecord())
    if foreign.segments:
        files[FOREIGN_NAME] = encode_foreign(ForeignRecord(position, foreign.segments))
    ends = state.open_ends if state.began_at < 0 else (*state.open_ends, state.began_at)
    return msgspec.structs.replace(state, files=files, began_at=began_at, open_ends=ends)


def _decoded(decode: Callable[[bytes], T], content: bytes | None, default: T) -> T:
    """What a file says; the default where it is missing or damaged."""
    try:
        return default if content is None else decode(content)
    except FormatError:
        return default


def _journal(plan: EnginePlan, taken_unix_ns: int) -> JournalRecord:
    """The journal with stages that do not come back as dropped: prepared ones, and published ones that were not archived.

    Any other stage below its floor is refused, unless its bundles are archived: it may have been published and lost.
    """
    state = plan.state
    former = journal_of(state)
    dropped = {each.number for each in former.dropped}
    carried = sorted(each.number for each in state.prepared if each.is_archived and each.number not in dropped)
    lost = [each for each in state.prepared if not each.is_archived and each.number not in dropped]
    prepared = {each.number for each in state.prepared}
    next_number = max([former.next_number, *(number + 1 for number in prepared)]) + STAGES_AHEAD
    journal = JournalRecord(
        next_number,
        [],
        former.dropped,
        next_number,
        carried,
        [each for each in former.published if each.last_segment_seq <= plan.archived_through],
        taken_unix_ns,
    )
    journal = journal.with_dropped(dropped_record(each, LOST_STAGE) for each in lost)
    return journal.with_dropped(
        DroppedRecord(number, "", 0, LOST_PUBLISH, time.time_ns()) for number in plan.lost_publishes
    )


def dropped_record(stage: PreparedStage, reason: str) -> DroppedRecord:
    """The record of a stage that is lost."""
    return DroppedRecord(stage.number, stage.txn_id, stage.epoch, reason, time.time_ns())


def without_stages(files: Mapping[str, bytes], lost: Iterable[tuple[PreparedStage, str]]) -> dict[str, bytes]:
    """The files with stages as dropped that were to come back. Each has its reason."""
    journal = decode_journal(files[TRANSACTIONS_NAME])
    known = {each.number for each in journal.dropped}
    new = [dropped_record(stage, reason) for stage, reason in lost if stage.number not in known]
    return {**files, TRANSACTIONS_NAME: encode_journal(journal.with_dropped(new))} if new else dict(files)


def archived_windows(windows: Windows, core: int, archived_through: Mapping[int, int]) -> Windows:
    """The windows of producers without bundles that are not archived: pushed again, these must be stored.

    Args:
        core: whose windows these are.
        archived_through: of each core of the topic.
    """
    kept = Windows()
    kept.recovered_in, kept.settled_in = windows.recovered_in, windows.settled_in
    for producer, window in windows.items():
        for run in window.runs:
            if run.segment_seq <= archived_through.get(core if run.core < 0 else run.core, -1):
                kept.add(producer, run, window.floor)
        kept.leave_open(producer)
    return kept


def with_keys(files: Mapping[str, bytes], keys: Iterable[tuple[str, KeyRun]]) -> dict[str, bytes]:
    """The files with the keys of segments that were archived after the windows of producers were read."""
    windows = _decoded(decode_windows, files.get(PRODUCERS_NAME), Windows())
    for producer, run in keys:
        windows.find(producer, run)
    return {**files, PRODUCERS_NAME: windows.encode()} if len(windows) else dict(files)


def with_notices(files: Mapping[str, bytes], losses: Sequence[Loss]) -> dict[str, bytes]:
    """The files with a notice of each loss to each subscriber that had not done with it.

    A damaged file stays as it is: the start tells of it, and delivers to its subscriber from the beginning.
    """
    found = dict(files)
    registry = SubscriberRegistry()
    for name, content in files.items():
        subscriber = subscriber_of(name)
        if subscriber is None:
            continue
        notices = files.get(gaps_file_name(subscriber))
        try:
            progress = decode_progress(content)
            ledger = GapLedger() if notices is None else decode_gaps(notices)
        except FormatError:
            continue
        if progress.by_other_writer:
            continue  # it speaks of segments by other numbers
        state = registry.load(subscriber, progress, ledger)
        if [run for loss in losses for run in lose_unsealed(state, loss.segment_seq, loss.bundle_count)]:
            found[gaps_file_name(subscriber)] = state.gaps.encode(state.progress.changes.filed_version)
    return found
