"""Known-bad edits of live delivery: what is shown before it is a segment, and how consumers read it; see `tests.mutation.edits`."""

from __future__ import annotations

from tests.mutation.edit import Edit

_READABLE = "quiver_actors/store/engine/readable_end.py"
_PROGRESS_STATE = "quiver_actors/store/subscriber/progress_state.py"
_ENTRY_READER = "quiver_actors/store/wal/entry_reader.py"
_DISPATCHER = "quiver_actors/node/worker/dispatcher.py"
_READABLE_ORDER = ("tests/unit/store/engine/test_readable_order.py",)
_ENTRIES = ("tests/unit/store/wal/test_entry_reader.py",)
_LONE = ("tests/unit/store/engine/test_lone_shows.py",)
_JOURNAL = ("tests/unit/store/engine/test_progress_journal.py",)

LIVE_EDITS: tuple[Edit, ...] = (
    Edit(
        "show bundles that are not synced",
        _READABLE,
        "log.synced_sequence - log.identity.first_sequence\n",
        "log.builder.bundle_count\n",
        ("tests/unit/store/engine/test_readable_end.py",),
    ),
    Edit(
        "show what lies behind a publish",
        _READABLE,
        "        before = self._publishes.first_segment_seq\n        for log in self._logs:\n            if not self._can_show",
        "        before = None\n        for log in self._logs:\n            if not self._can_show",
        _READABLE_ORDER,
    ),
    Edit(
        "show what lies behind a segment that waits for its check",
        "quiver_actors/store/engine/claims.py",
        "            before = _lower(before, self._unchecked.limit(state))\n",
        "            pass\n",
        _READABLE_ORDER,
    ),
    Edit(
        "lose the acknowledgements of an open segment at its seal",
        _PROGRESS_STATE,
        "        states.seal(size_bytes)\n",
        "        states = self.segments[segment_seq] = BundleStates(bundle_count)\n",
        _READABLE_ORDER,
    ),
    Edit(
        "deliver what is claimed again at the seal",
        _PROGRESS_STATE,
        "        states.seal(size_bytes)\n",
        "        states = self.segments[segment_seq] = BundleStates(bundle_count, states.bitmap(), size_bytes)\n",
        _READABLE_ORDER,
    ),
    Edit(
        "treat an open segment as complete",
        "quiver_actors/store/subscriber/bundle_states.py",
        "self.resolved_count == self.bundle_count and not self.is_open\n",
        "self.resolved_count == self.bundle_count\n",
        ("tests/unit/store/engine/test_readable_end.py",),
    ),
    Edit(
        "leave open segments out of the progress that is written",
        _PROGRESS_STATE,
        "            return self.awaited.behind(segment_seq, states)\n",
        '            return SegmentProgress(0, b"")\n',
        ("tests/unit/store/engine/test_readable_end.py",),
    ),
    Edit(
        "read a log through the descriptor that its seal closes",
        _READABLE,
        "            file = log.file.reopen()\n",
        "            file = log.file\n",
        _READABLE_ORDER,
    ),
    Edit(
        "believe a place behind the end of the log",
        _ENTRY_READER,
        '            raise self._damaged(index, f"its place ends at byte {end} of {view.nbytes}") from None\n',
        "            return\n",
        _ENTRIES,
    ),
    Edit(
        "skip the checksum of an entry",
        _ENTRY_READER,
        "        if actual != stored:\n",
        "        if actual < 0:\n",
        _ENTRIES,
    ),
    Edit(
        "look behind a slot for its schema",
        _ENTRY_READER,
        "            if behind_schema > end:\n",
        "            if behind_schema < 0:\n",
        _ENTRIES,
    ),
    Edit(
        "wake nobody after a commit",
        "quiver_actors/node/worker/dispatcher.py",
        "            return False\n        self.wake()\n        self._note_readable(segment_seq)\n",
        "            return False\n        self._note_readable(segment_seq)\n",
        ("tests/unit/node/worker/test_live_delivery.py",),
    ),
    Edit(
        "condemn a bundle at the first look",
        "quiver_actors/store/jobs/checking.py",
        "self._damage(index, place) and self._damage(index, place)\n",
        "self._damage(index, place)\n",
        _READABLE_ORDER,
    ),
    Edit(
        "do not look again when a wake-up is lost",
        _DISPATCHER,
        "if not self.is_open or self._all_are_due:",
        "if self._topic:",
        ("tests/integration/test_worker_delivery.py",),
    ),
    Edit(
        "believe a record of a progress file that was written since",
        "quiver_actors/store/subscriber/progress_journal.py",
        "record is not None and len(content) >= CRC.size and base_of(content) == record.base\n",
        "record is not None\n",
        _JOURNAL,
    ),
    Edit(
        "delete a segment that a progress file still needs",
        "quiver_actors/store/subscriber/flushes.py",
        "            state.progress.changes.mark_journaled(version)\n            self._note_flush(state)\n",
        "            self.mark_flushed(subscriber, version)\n",
        _JOURNAL,
    ),
    Edit(
        "forget the journal of progress at a start",
        "quiver_actors/store/recovery/recovery.py",
        "        self._subscribers.bring_up()\n        self._reap_temporaries(self._paths.root, names)\n",
        "        self._reap_temporaries(self._paths.root, names)\n",
        _JOURNAL,
    ),
    Edit(
        "delete the journal of progress before the files say the same",
        "quiver_actors/store/jobs/records.py",
        "    for path, content in contents:\n        write_atomically(disk, path, content)\n    disk.sync_directory(paths.root)\n",
        "    for path, content in contents:\n        write_atomically(disk, path, content)\n",
        _JOURNAL,
    ),
    Edit(
        "write files while the journal is ahead of them",
        "quiver_actors/store/engine/progress.py",
        "        if job is None and journal.is_open:\n",
        "        if job is None and not journal:\n",
        _JOURNAL,
    ),
    Edit(
        "count what nobody was handed as delivered",
        "quiver_actors/store/subscriber/claims.py",
        " if self.aside.max_deliveries else []\n",
        " if False else []\n",
        ("tests/unit/store/subscriber/test_exhausted.py",),
    ),
    Edit(
        "hand bundles over before the worker is told",
        "quiver_actors/client/inbox.py",
        "portion = 1 if parcel.channel.handed.is_told else self._portion\n",
        "portion = self._portion\n",
        ("tests/unit/client/test_inbox.py",),
    ),
    Edit(
        "let bundles that are not synced wait as long as others for their seal",
        "quiver_actors/store/engine/log_queue.py",
        "        open_ns = min(open_ns, segment.max_unsynced_duration_ns)\n",
        "        pass\n",
        ("tests/unit/store/engine/test_engine.py",),
    ),
    Edit(
        "pass a bundle on that another subscriber is owed, too",
        _READABLE,
        "len(self._registry.states) > 1",
        "len(self._registry.states) > 2",
        _LONE,
    ),
    Edit(
        "pass a bundle on in front of a segment that waits for its check",
        _READABLE,
        " or self._unchecked.segment_seqs:\n",
        ":\n",
        _LONE,
    ),
    Edit(
        "pass a bundle on that is not synced",
        _READABLE,
        "            or log.synced_sequence - log.identity.first_sequence != bundle_count\n",
        "",
        _LONE,
    ),
    Edit(
        "pass a bundle on in front of older ones",
        "quiver_actors/store/subscriber/lone_claims.py",
        "        or progress.unresolved_count != leases.claimed_count + aside.waiting_count + aside.blocked_count\n",
        "",
        ("tests/property/test_lone_claims.py",),
    ),
    Edit(
        "pass bundles on beyond the credit",
        _DISPATCHER,
        " or attachment.given >= attachment.credit_total:\n",
        ":\n",
        ("tests/unit/node/worker/test_lone_deliveries.py",),
    ),
    Edit(
        "forget the end of a lease that begins after a long sync",
        "quiver_actors/node/worker/lone_lane.py",
        "                host.touch_push()  # the lease",
        "                pass  # the lease",
        ("tests/unit/node/worker/test_lone_deliveries.py",),
    ),
)
