"""Known-bad edits: each breaks one promise. `python -m tests.mutation` plants them one at a time; the tests must notice.

An edit replaces a piece of source that stands exactly once in its file; a unit test sees to it that all of them still fit.
"""

from __future__ import annotations

from tests.mutation.edit import Edit
from tests.mutation.live_edits import LIVE_EDITS
from tests.mutation.retention_edits import RETENTION_EDITS

_COMMITS_JOBS = "quiver_actors/store/jobs/commits.py"
_RECORDS_JOBS = "quiver_actors/store/jobs/records.py"
_REMOVAL_JOBS = "quiver_actors/store/jobs/removal.py"
_SEALING = "quiver_actors/store/jobs/sealing.py"
_COMMIT = "quiver_actors/store/engine/group_commit.py"
_BITMAP = ("tests/unit/store/subscriber/test_bitmap.py",)
_LEASES = ("tests/unit/store/subscriber/test_leases.py", "tests/unit/store/subscriber/test_exhausted.py")
_ENGINE = ("tests/unit/store/engine/test_engine.py",)
_GROUP_COMMIT = ("tests/unit/store/engine/test_group_commit.py",)
_NUMBERS = ("tests/unit/store/engine/test_numbers.py",)
_POWER = ("tests/unit/store/engine/test_power_loss.py",)
_RECOVERY = ("tests/unit/store/engine/test_recovery_table.py", "tests/unit/store/engine/test_recovery_keeps.py")
_WAL = ("tests/unit/store/wal", "tests/property/test_uniform_pushes.py")
_CLIENT = ("tests/unit/client/test_push.py", "tests/unit/client")
_STAGE_CRASHES = ("tests/unit/store/staged/test_stage_crashes.py",)

EDITS: tuple[Edit, ...] = (
    # --- syncs, renames and their order
    Edit(
        "skip the sync of a commit",
        _COMMITS_JOBS,
        "                file.fdatasync()\n",
        "                pass\n",
        _POWER,
    ),
    Edit(
        "forget the directory sync of a commit",
        _COMMITS_JOBS,
        "                step.log.path = target\n                self._disk.sync_directory(self._paths.wal)\n",
        "                step.log.path = target\n",
        _POWER,
    ),
    Edit("skip the sync of a seal", _SEALING, "    log.file.fsync()\n", "", _POWER),
    Edit(
        "rename a segment before its sync",
        _SEALING,
        "    log.file.fsync()\n    disk.rename(log.path, paths.segment(log.segment_seq))\n",
        "    disk.rename(log.path, paths.segment(log.segment_seq))\n    log.file.fsync()\n",
    ),
    Edit("forget the segments' directory", _SEALING, "    disk.sync_directory(paths.segments)\n", "", _POWER),
    Edit(
        "keep the preallocated rest of a segment",
        _SEALING,
        "    log.file.truncate(size_bytes)\n",
        "",
        _POWER,
    ),
    Edit(
        "skip the sync of small files",
        "quiver_actors/store/disk/protocol.py",
        "        file.write([content], 0)\n        file.fdatasync()\n",
        "        file.write([content], 0)\n",
        _POWER,
    ),
    Edit(
        "forget the directory of progress",
        _RECORDS_JOBS,
        "        self._disk.sync_directory(self._paths.root)\n\n\nclass JournalJob",
        "\n\nclass JournalJob",
        _POWER,
    ),
    Edit(
        "progress before its notices are durable",
        _RECORDS_JOBS,
        "            if write.is_gaps:\n                self._disk.sync_directory(self._paths.root)\n",
        "",
        ("tests/unit/store/engine/test_deletion.py",),
    ),
    Edit(
        "delete the newest segment before the cursor",
        _REMOVAL_JOBS,
        "        self._write_cursor()\n        self._unlink(sorted(self.segment_seqs))\n",
        "        self._unlink(sorted(self.segment_seqs))\n        self._write_cursor()\n",
        _POWER,
    ),
    Edit(
        "forget the directory after a delete",
        _REMOVAL_JOBS,
        "        self._unlink(sorted(self.segment_seqs))\n        self._disk.sync_directory(self._paths.segments)\n",
        "        self._unlink(sorted(self.segment_seqs))\n",
        _POWER,
    ),
    # --- what is promised, and when
    Edit(
        "acknowledge what is written, not what is durable",
        _COMMIT,
        "            return self.sequence_durable, _SYNCED\n",
        "            return self._logs.sequence_written, _SYNCED\n",
        _ENGINE,
    ),
    Edit(
        "acknowledge in a log that has no name yet",
        _COMMIT,
        "        reached = min([self._logs.sequence_written, *unpublished])\n",
        "        reached = self._logs.sequence_written\n",
        _GROUP_COMMIT,
    ),
    Edit(
        "durable is the newest log's end",
        _COMMIT,
        "                durable = log.synced_sequence\n                break\n",
        "                durable = log.sequence_end\n",
        _GROUP_COMMIT,
    ),
    Edit(
        "go on after a failed sync",
        _COMMIT,
        "        if job.error is not None:\n            return self._condition.fail(job.error)\n        self.syncs += 1\n",
        "        self.syncs += 1\n",
        _GROUP_COMMIT,
    ),
    Edit(
        "a sync that covers more than was written when it began",
        _COMMIT,
        "                log.synced_end, log.synced_sequence = step.sync_end, step.sequence_end\n",
        "                log.synced_end, log.synced_sequence = log.written_end, log.sequence_end\n",
        _ENGINE,
    ),
    Edit(
        "the timer never fires",
        _COMMIT,
        "        return self._is_sync_wanted or waited_ns >= self._settings.wal.flush_interval_ns\n",
        "        return False\n",
        _ENGINE,
    ),
    # --- numbers
    Edit(
        "use sequences that were not reserved",
        "quiver_actors/store/engine/numbers.py",
        "        return self.next_sequence + count <= self._reserved.next_sequence_reserved\n",
        "        return True\n",
        _NUMBERS,
    ),
    Edit(
        "use segment numbers twice",
        "quiver_actors/store/engine/numbers.py",
        "        self.next_segment_seq += 1\n",
        "        self.next_segment_seq += self.next_segment_seq % 2\n",
        _ENGINE,
    ),
    Edit(
        "rotation numbers that fall",
        "quiver_actors/store/engine/numbers.py",
        "        self._next_rotation = number + 1\n",
        "        self._next_rotation = number\n",
        _NUMBERS,
    ),
    # --- the log
    Edit(
        "trust the arena after the check",
        "quiver_actors/node/worker/turn_buffer.py",
        "        span = self._view[start:end]\n        span[:] = source\n",
        "        span = source\n",
        ("tests/unit/node/worker/test_turn_buffer.py",),
    ),
    Edit(
        "believe the CRC of a pushed entry",
        "quiver_actors/store/wal/admission.py",
        "        if crc32(self._span[start + _HEAD_BYTES : end - _CRC_BYTES]) != crc_of_slots:\n",
        "        if False:\n",
        _ENGINE,
    ),
    Edit(
        "believe the CRCs of a uniform push",
        "quiver_actors/store/wal/uniform.py",
        " or _crcs(span, entries.slots) != crcs:\n",
        ":\n",
        _WAL,
    ),
    Edit(
        "a uniform run with another sequence",
        "quiver_actors/store/wal/uniform.py",
        "np.arange(sequence, sequence + count, dtype=np.uint64)",
        "np.arange(sequence + 1, sequence + 1 + count, dtype=np.uint64)",
        _WAL,
    ),
    Edit(
        "lose the first entry behind a damaged header of another writer",
        "quiver_actors/store/wal/recovery.py",
        "    if not reader.has_entry_at(claimed) and reader.has_entry_at(layout.HEADER_BYTES_V1):\n",
        "    if False:\n",
        ("tests/unit/store/wal/test_decisions.py",),
    ),
    Edit(
        "believe a small file whatever its checksum says",
        "quiver_actors/store/format/framing.py",
        "        if self.checksum_of(data) is None:\n",
        "        if False:\n",
        ("tests/unit/store/format/test_framing.py",),
    ),
    Edit(
        "take a newer version for damage",
        "quiver_actors/store/format/framing.py",
        "        if version > self.version and not self.reads_newer:\n            raise self._newer(version)\n",
        "",
        ("tests/unit/store/format/test_framing.py",),
    ),
    Edit(
        "every entry gets the same sequence",
        "quiver_actors/store/wal/log.py",
        "            append(sequence, ingestion_ts, item_count, entry_bytes, placements)\n            sequence += 1\n",
        "            append(sequence, ingestion_ts, item_count, entry_bytes, placements)\n",
        _WAL,
    ),
    Edit(
        "the CRC of a large entry without its head",
        "quiver_actors/store/wal/log.py",
        "    crc = crc32_combine(crc32(head[_LENGTH_BYTES:]), crc_of_slots, slots_bytes)\n",
        "    crc = crc_of_slots\n",
        ("tests/unit/store/wal/test_large_entries.py",),
    ),
    Edit(
        "the CRC of a file with a large entry",
        "quiver_actors/store/wal/log.py",
        "    crc_of_file = crc32_combine(crc32(head, crc_of_file), crc_of_slots, slots_bytes)\n",
        "    crc_of_file = crc32_combine(crc32(head), crc_of_slots, slots_bytes)\n",
        ("tests/unit/store/wal/test_large_entries.py",),
    ),
    # --- recovery
    Edit(
        "believe memory about the log of a killed process",
        "quiver_actors/store/recovery/logs.py",
        "        if trust.is_proven and not log.damaged:\n",
        "        if not log.damaged:\n",
        ("tests/unit/store/recovery/test_log_sources.py",),
    ),
    Edit(
        "take a damaged end of a log for a torn one",
        "quiver_actors/store/wal/recovery.py",
        "        if theirs.segment_seq == mine.segment_seq + 1 and end > self.scan.end:\n",
        "        if False:\n",
        _RECOVERY,
    ),
    Edit(
        "give the number of a lost bundle to the one behind it",
        "quiver_actors/store/recovery/replay.py",
        "        self.skip_to(entry.sequence)\n        if entry.error",
        "        if entry.error",
        ("tests/unit/store/recovery/test_replay.py",),
    ),
    Edit(
        "delete a log that cannot be parsed",
        "quiver_actors/store/recovery/logs.py",
        '                self._findings.quarantine(path, "no valid entry in it, and bytes that cannot be parsed")\n',
        "                self._disk.unlink(path)\n",
        _RECOVERY,
    ),
    Edit(
        "forget what was reserved before the kill",
        "quiver_actors/store/recovery/numbers.py",
        "            self.next_sequence = max(self.next_sequence, former.next_sequence_reserved)\n",
        "",
        (*_NUMBERS, "tests/unit/store/engine/test_rust_regressions.py"),
    ),
    Edit(
        "a subscriber whose progress is damaged is a new one",
        "quiver_actors/store/recovery/subscribers.py",
        "_NOTHING_RESOLVED = SubscriberProgress(oldest_incomplete_seg=0,",
        "_NOTHING_RESOLVED = SubscriberProgress(oldest_incomplete_seg=1 << 40,",
        ("tests/unit/store/recovery/test_damaged_files.py",),
    ),
    # --- segments
    Edit(
        "open a segment without its checksum",
        "quiver_actors/store/segment/check.py",
        "    if crc != stored:\n",
        "    if False:\n",
        ("tests/unit/store/segment",),
    ),
    # --- subscribers
    Edit(
        "off by one in the bitmap's size",
        "quiver_actors/store/subscriber/bitmap.py",
        "    return -(-bundle_count // WORD_BITS)\n",
        "    return bundle_count // WORD_BITS\n",
        _BITMAP,
    ),
    Edit(
        "off by one in the full bitmap",
        "quiver_actors/store/subscriber/bitmap.py",
        "    return (bits & ((1 << bundle_count) - 1)).to_bytes(",
        "    return (bits & ((1 << bundle_count - 1) - 1 if bundle_count else 0)).to_bytes(",
        _BITMAP,
    ),
    Edit(
        "off by one in the first unresolved",
        "quiver_actors/store/subscriber/bitmap.py",
        "    return (~bits & (bits + 1)).bit_length() - 1\n",
        "    return (~bits & (bits + 1)).bit_length()\n",
        _BITMAP,
    ),
    Edit(
        "resolve what another consumer holds",
        "quiver_actors/store/subscriber/leases.py",
        "        return live if live is not None and live.owner_key is key and live.segment_seq == segment_seq else None\n",
        "        return live if live is not None and live.segment_seq == segment_seq else None\n",
        _LEASES,
    ),
    Edit(
        "extend what another consumer holds",
        "quiver_actors/store/subscriber/leases.py",
        "            if live is None or live.owner_key is not key:\n",
        "            if live is None:\n",
        _LEASES,
    ),
    Edit(
        "leases that never start anew",
        "quiver_actors/store/subscriber/leases.py",
        "            else:\n                self._lease(live, now_ns)\n",
        "",
        _LEASES,
    ),
    *RETENTION_EDITS,
    # --- rights
    Edit(
        "a guest moves another's subscriber",
        "quiver_actors/base/rights.py",
        'Row("Seek", "yes yes yes no no',
        'Row("Seek", "yes yes yes no yes',
        ("tests/unit/base/test_rights.py", "tests/security/test_rights_table.py"),
    ),
    # --- transactions
    Edit(
        "drop a stage that a commit names",
        "quiver_actors/node/worker/stage_requests.py",
        "    if decision is not None and decision.is_commit and decision.lists(message.incarnation, number):",
        "    if False and decision is not None:",
        ("tests/integration/test_transactions.py::test_nobody_drops_what_was_committed_and_is_not_published_yet",),
    ),
    Edit(
        "prepare without a sync",
        "quiver_actors/store/staged/jobs.py",
        "                part.file.fsync()\n                part.file.close()\n",
        "                part.file.close()\n",
        _STAGE_CRASHES,
    ),
    Edit(
        "forget the directory of prepared stages",
        "quiver_actors/store/staged/jobs.py",
        "encode_prepared(self.record))\n            self._disk.sync_directory(self._paths.staged)\n",
        "encode_prepared(self.record))\n",
        _STAGE_CRASHES,
    ),
    Edit(
        "store again what a producer sends again",
        "quiver_actors/store/engine/intake.py",
        "        known = self._producers.stored(push)\n",
        "        known: list[AckRun] = []\n",
        ("tests/unit/store/staged/test_keys.py",),
    ),
    Edit(
        "forget a stage before its parts are segments",
        "quiver_actors/store/staged/jobs.py",
        """    for part in [part for stage in stages for part in stage.parts]:
        if part.segment_seq not in infos:
            infos[part.segment_seq] = _publish_part(disk, paths, part, incarnation)
    for stage in stages:
        disk.unlink(paths.prepared(stage.number))
    disk.sync_directory(paths.staged)
""",
        """    for stage in stages:
        disk.unlink(paths.prepared(stage.number))
    disk.sync_directory(paths.staged)
    for part in [part for stage in stages for part in stage.parts]:
        if part.segment_seq not in infos:
            infos[part.segment_seq] = _publish_part(disk, paths, part, incarnation)
""",
        _STAGE_CRASHES,
    ),
    # --- clients
    Edit(
        "forget what was under way when a connection was lost",
        "quiver_actors/client/sender.py",
        "            if not group.is_acked:\n                unsent.append(self._rest_of(group))\n",
        "",
        _CLIENT,
    ),
    Edit(
        "requests that are not sent again after a loss",
        "quiver_actors/client/calls.py",
        "        for call in self._calls.values():\n            call.tag = 0\n",
        "",
        ("tests/unit/client/test_terms.py::test_a_question_whose_connection_is_lost_is_asked_again",),
    ),
    *LIVE_EDITS,
)
