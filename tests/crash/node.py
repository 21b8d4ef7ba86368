"""`quiver up` as the campaigns run it: the real node, which may have more patience with workers that are killed all the time.

    python -m tests.crash.node CONFIG DATA_DIR RUN_DIR CORES POINTS_DIR DEATHS

A worker that dies more often than `DEATHS` times in a minute is abandoned.

Supervisor and workers take plans of `points`. Ends with the process that started it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from quiver_actors.base.config.reading import Resolved, resolve
from quiver_actors.cli.main import exit_code_of
from quiver_actors.errors import QuiverError
from quiver_actors.node.composition import run_node
from quiver_actors.supervisor.errors import SupervisorError
from quiver_actors.supervisor.log import configure_logging
from quiver_actors.supervisor.spawn import die_with
from quiver_actors.supervisor.spec import MILLISECOND_NS, SECOND_NS, Patience, RestartPolicy
from tests.crash.points import Points

RESTART = RestartPolicy(backoff_first_ns=20 * MILLISECOND_NS, backoff_max_ns=200 * MILLISECOND_NS)
HEARTBEAT_TIMEOUT_NS = 60 * SECOND_NS
"""A machine that is busy with other work is no hang."""


def main(config: str, data_dir: str, run_dir: str, cores: str, points: str, deaths: str) -> int:
    die_with(os.getppid())
    configure_logging(sys.stderr)
    plans = Points(Path(points))
    plans.take_in_forks("worker")
    plans.take("supervisor")

    def read_settings() -> Resolved:
        return resolve(config, {"data_dir": data_dir, "run_dir": run_dir, "cores": int(cores)})

    restart = msgspec.structs.replace(RESTART, intensity_count=int(deaths))
    patience = Patience(restart=restart, heartbeat_timeout_ns=HEARTBEAT_TIMEOUT_NS)
    try:
        return run_node(read_settings().settings, config_path=config, resolve=read_settings, patience=patience)
    except (QuiverError, SupervisorError) as error:
        print(f"quiver: {error}", file=sys.stderr)
        return int(exit_code_of(error))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
