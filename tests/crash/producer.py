"""One producer of a kill campaign: pushes numbered bundles for ever and writes down each receipt after it has it.

    python -m tests.crash.producer RUN_DIR PRODUCER FIRST_NUMBER JOURNAL

The journal is written with one write(2) a line, so a SIGKILL can cut off only what was not acknowledged yet.
"""

from __future__ import annotations

import os
import random
import sys

import quiver_actors
from quiver_actors.errors import QuiverError
from tests.crash.bundles import TOPIC, bundle_of


def main(run_dir: str, producer: int, number: int, journal: str) -> None:
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    rng = random.Random(producer * 1_000_003 + number)
    with quiver_actors.connect(run_dir) as client:
        while True:
            group = [(n, bundle_of(producer, n)) for n in range(number, number + rng.choice((1, 1, 8, 70)))]
            number += len(group)
            try:
                receipts = client.push_many([bundle for _, bundle in group], topic=TOPIC, timeout=60)
            except QuiverError as error:
                # Not acknowledged: the promise says nothing about these. Say so and go on with new numbers.
                os.write(descriptor, f"refused {group[0][0]} {len(group)} {error.code}\n".encode())
                continue
            lines = []
            for (n, _), receipt in zip(group, receipts, strict=True):
                where = receipt.bundle_id
                lines.append(f"acked {n} {where.core} {where.segment_seq} {where.bundle_index}")
            os.write(descriptor, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
