"""Known-bad edits of what is kept and what is deleted; see `tests.mutation.edits`."""

from __future__ import annotations

from tests.mutation.edit import Edit

_HELD_FILES = "quiver_actors/store/engine/held_files.py"
_HELD_NAMES = "quiver_actors/store/files/held_names.py"
_HELD = ("tests/unit/store/engine/test_held_files.py",)
_RULES = ("tests/unit/store/retention/test_rules.py",)
_COORDINATOR = ("tests/unit/supervisor/test_coordinator.py",)
_LEFT = ("tests/unit/store/engine/test_left_disk.py",)
_DAMAGED = ("tests/unit/store/engine/test_damaged_archived.py",)
_ARCHIVING = "quiver_actors/store/subscriber/archiving.py"

RETENTION_EDITS: tuple[Edit, ...] = (
    Edit(
        "announce as lost what the archive has",
        "quiver_actors/store/engine/sealed_segments.py",
        "        following = archiving.follow(registry, registry.archive, info, lost)\n",
        "        following: list[str] = []\n",
        _LEFT,
    ),
    Edit(
        "look in the archive for what it does not have",
        _ARCHIVING,
        "    return archive.enabled and archiver is not None and archiver.progress.is_complete(segment_seq)\n",
        "    return archive.enabled and archiver is not None\n",
        _LEFT,
    ),
    Edit(
        "delete a file before it is durable that the archive is read instead",
        _ARCHIVING,
        "    progress.changes.note()\n",
        "",
        _LEFT,
    ),
    Edit(
        "announce as lost what goes into quarantine and is archived",
        "quiver_actors/store/engine/repair.py",
        "            following = self._sealed_segments.follow(info)\n",
        "",
        _DAMAGED,
    ),
    Edit(
        "announce as lost the bundles of an archived segment that a rescue has lost",
        "quiver_actors/store/engine/sealed_segments.py",
        "            self.follow(info, lost)\n",
        "",
        _DAMAGED,
    ),
    Edit(
        "let those into the archive who cannot read it",
        "quiver_actors/store/subscriber/archived_part.py",
        "        if is_too_much or not self.is_read:\n",
        "        if is_too_much:\n",
        _LEFT,
    ),
    Edit(
        "drop what a consumer holds as if it did not",
        "quiver_actors/store/retention/rules.py",
        "    needed = EvictionClass.CLAIMED if facts.is_held else EvictionClass.UNPROCESSED\n",
        "    needed = EvictionClass.UNPROCESSED\n",
        _RULES,
    ),
    Edit(
        "delete without a notice",
        "quiver_actors/store/retention/rules.py",
        "Outcome(Verdict.DELETE if facts.is_processed else Verdict.DROP, reason)",
        "Outcome(Verdict.DELETE, reason)",
        _RULES,
    ),
    Edit(
        "drop under backpressure",
        "quiver_actors/store/retention/rules.py",
        "    return not facts.is_processed and facts.policy == DROP_OLDEST and facts.claimed_class >= needed\n",
        "    return not facts.is_processed and facts.claimed_class >= needed\n",
        _RULES,
    ),
    Edit(
        "quotas that add up to more than the cap",
        "supervisor/coordinator.py",
        "            free -= max(0, raised - held)\n",
        "",
        _COORDINATOR,
    ),
    Edit(
        "quotas that forget what is still used",
        "supervisor/coordinator.py",
        "        held = max(new[index], holding.seen_bytes, holding.used_bytes)\n",
        "        held = new[index]\n",
        _COORDINATOR,
    ),
    Edit(
        "forget at a start what is held of deleted segments",
        _HELD_FILES,
        "dict.fromkeys(find_held(disk, paths), now_ns)",
        "{}",
        _HELD,
    ),
    Edit(
        "do not count what is held of deleted segments",
        "quiver_actors/store/engine/disk_account.py",
        "self._ballast.counted_bytes + self.held_files.size_bytes",
        "self._ballast.counted_bytes",
        _HELD,
    ),
    Edit(
        "take nothing back of what guests hold",
        _HELD_NAMES,
        "if holder is Holder.GUESTS and is_overdue:",
        "if not holder:",
        _HELD,
    ),
    Edit(
        "empty a file that has another name",
        _HELD_NAMES,
        "        if held.has_other_name:\n            return True\n",
        "",
        _HELD,
    ),
)
