"""A process that forwards to Parquet files: `python -m tests.integration.forwarder_process RUN_DIR DIRECTORY END`.

Says `ready` when it is subscribed. END: `idle`, when nothing is left to be resolved; `killed`, never; `after-file`, by SIGKILL when a file
is finished and nothing of it is acknowledged.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from quiver_actors.client import connect
from quiver_actors.forward import Backoff, Forwarder, Outcome, ParquetFiles

SUBSCRIBER = "parquet"


class DiesAfterFile(ParquetFiles):
    """The worst moment to die."""

    def outcomes(self, timeout_seconds: float) -> Sequence[Outcome]:
        if self.statistics().files:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().outcomes(timeout_seconds)


def main(run_dir: str, directory: str, end: str) -> None:
    kind = DiesAfterFile if end == "after-file" else ParquetFiles
    with (
        connect(run_dir) as client,
        client.subscribe(SUBSCRIBER, start="earliest") as subscription,
        kind(directory, slots={0: "numbers"}, target_bytes=1024, max_age=0.05) as files,
    ):
        print("ready", flush=True)
        forwarder = Forwarder(subscription, files, retry=Backoff(initial=0.01), max_in_flight=200)
        signal.signal(signal.SIGTERM, lambda *_: forwarder.stop(10))
        forwarder.run(idle_timeout=0.3 if end == "idle" else None)
        while end == "idle" and not subscription.all_drained():
            forwarder.run(idle_timeout=0.3)


if __name__ == "__main__":
    main(*sys.argv[1:])
