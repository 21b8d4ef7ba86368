"""Which locks the code has that runs in threads of a user, whom an interrupt may stop at any place."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2] / "quiver_actors"
ROOMS = ("client", "embedded", "aio")
PLAIN = {"client/archive_door.py"}
"""Its `close` asks without waiting, perhaps in the thread that has the lock, and must then not get it."""


def test_locks_of_calls_are_made_by_new_lock() -> None:
    """A plain one may stay taken for ever on Python 3.14: see `base/locks.py`."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    plain = {path.relative_to(ROOT).as_posix() for path in files if "threading.Lock()" in path.read_text()}
    assert plain == PLAIN
