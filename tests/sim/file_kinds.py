"""The kinds of durable files (docs/formats.md section 1, "Files and their codecs"), and the kind that a path belongs to.

The crash sweeps must interrupt a change of every kind.
"""

from __future__ import annotations

import re
from functools import lru_cache

KINDS = {
    "log": r"wal/quiver\.wal(\.tmp)?",
    "retired log": r"wal/quiver\.wal\.\d+",
    "spare log": r"wal/quiver\.wal\.spare-\d+\.tmp",
    "cursor": r"wal/quiver\.wal\.cursor(\.tmp)?",
    "segment": r"segments/\d{16}\.qseg(\.tmp)?",
    "rescued segment": r"segments/\d{16}\.qseg\.rescued",
    "progress": r"quiver\.sub\.[a-z]+(\.tmp)?",
    "journal of progress": r"quiver\.progress\.tmp(\.tmp)?",
    "gap notices": r"quiver\.gaps\.[a-z]+(\.tmp)?",
    "numbers": r"quiver\.core(\.tmp)?",
    "ballast": r"quiver\.ballast",
    "witness of a log": r"quiver\.witness",
    "part of a stage": r"staged/\d{16}\.\d{4}\.stage(\.tmp)?",
    "prepared stage": r"staged/\d{16}\.prepared(\.tmp)?",
    "transactions": r"quiver\.transactions(\.tmp)?",
    "producers": r"quiver\.producers(\.tmp)?",
    "record of other writers": r"quiver\.foreign(\.tmp)?",
    "list of cold segments": r"quiver\.cold(\.tmp)?",
    "owner of the cold directory": r"quiver\.cold-owner(\.tmp)?",
    "summaries": r"quiver\.summaries(\.tmp)?",
    "quarantined file": r"quarantine/.*",
    "decision": r"quiver\.decisions/.*",
    "list of topics": r"quiver\.topics(\.tmp)?",
    "list of topics before": r"quiver\.topics\.previous(\.tmp)?",
}
"""What to tell them by: the path in the directory of an engine, or in the data directory."""
ELSEWHERE = {
    "quiver.archive": "written by the archiver and by `quiver restore`, beside the engines: tests/unit/archive",
    "quiver.cold-id": "on the cold disk: tests/sim/cold_scenes.py crashes before it, under another directory",
    "quiver.cold-lock": "empty, on the cold disk: a crash takes nothing of it",
    "quiver.cores": "one line, written before the workers of its generation start: tests/unit/node/test_core_generation.py",
    "quiver.version": "one line, written before there is any data: tests/unit/test_packaging.py",
}
"""Names of files that no simulated disk holds, and why."""


@lru_cache(maxsize=4096)
def kind_of(path: str, directory: str) -> str:
    """Which kind a path is of, empty for anything else: directories, locks, what a test has put there."""
    name = path.removeprefix(f"{directory}/")
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)), "")
