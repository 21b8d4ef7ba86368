"""What nodes leave in their run directory, and how patient the supervisors of tests are."""

from __future__ import annotations

import msgspec

from quiver_actors.supervisor.spec import Patience
from tests.integration.node_process import (
    QUICK,
    Directories,
)


def left_in(directories: Directories) -> list[str]:
    """Return the names that a node leaves in its run directory; its lock file stays, unlocked."""
    return sorted(path.name for path in directories.run.iterdir() if path.name != "supervisor.lock")


def patience(**changes: int) -> Patience:
    return msgspec.structs.replace(QUICK, **changes)


def failing_after(deaths: int) -> Patience:
    return msgspec.structs.replace(QUICK, restart=msgspec.structs.replace(QUICK.restart, intensity_count=deaths))
