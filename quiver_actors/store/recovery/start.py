"""One opening of one directory, with a second try where only the ballast's room is left."""

from __future__ import annotations

from quiver_actors.base.config import TopicSettings
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Disk
from quiver_actors.store.files.ballast import release as release_ballast
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.recovery.cold import ColdPlace
from quiver_actors.store.recovery.recovered import Recovered
from quiver_actors.store.recovery.recovery import Recovery


def recover(
    disk: Disk,
    paths: EnginePaths,
    settings: TopicSettings,
    core_id: int,
    generation: int = 0,
    cold: ColdPlace | None = None,
) -> Recovered:
    """Recover the directory; on a full disk its ballast makes room. Raises as `Recovery.run`."""
    try:
        return Recovery(disk, paths, settings, core_id, generation=generation, cold=cold).run()
    except DiskError as error:
        if error.errno not in NO_SPACE_ERRNOS or not release_ballast(disk, paths.ballast):
            raise
        # A log whose sync has failed is not touched again.
        trusts_logs = error.operation not in ("fsync", "fdatasync")
    return Recovery(disk, paths, settings, core_id, trusts_logs=trusts_logs, generation=generation, cold=cold).run()
