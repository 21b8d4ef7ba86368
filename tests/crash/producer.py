"""One producer of a campaign: pushes numbered bundles for ever and writes down what becomes of each (`book` has the lines).

Producer 0 pushes idempotently: what it is not sure of it pushes again under the same numbers, also after it was killed. The others go on
with new numbers.
"""

from __future__ import annotations

import os
import random
import select
from typing import TypedDict

import quiver_actors
from quiver_actors.errors import QuiverError
from tests.crash.bundles import TOPIC, bundle_of

IDEMPOTENT = (0,)
CONNECT_TIMEOUT_SECONDS = 60.0


class Key(TypedDict, total=False):
    producer: str
    sequence: int


def key_of(producer: int, number: int) -> Key:
    return {"producer": f"campaign-{producer}", "sequence": number} if producer in IDEMPOTENT else {}


def produce(
    run_dir: str, producer: int, number: int, journal: int, *, pause_seconds: float, timeout_seconds: float
) -> None:
    """Args:
    journal: the descriptor of a file to append to.
    pause_seconds: between two pushes.
    timeout_seconds: of each.
    """
    rng = random.Random(producer * 1_000_003 + number)
    with quiver_actors.connect(run_dir, timeout=CONNECT_TIMEOUT_SECONDS) as client:
        while True:
            select.select([], [], [], pause_seconds)
            group = range(number, number + rng.choice((1, 1, 8, 40)))
            os.write(journal, f"pushing {group.start} {len(group)}\n".encode())
            try:
                receipts = client.push_many(
                    [bundle_of(producer, n) for n in group],
                    topic=TOPIC,
                    timeout=timeout_seconds,
                    **key_of(producer, number),
                )
            except QuiverError as error:
                # Not acknowledged: each of these is absent or whole.
                os.write(journal, f"refused {group.start} {len(group)} {error.code}\n".encode())
                number = number if producer in IDEMPOTENT else group.stop
                continue
            number = group.stop
            places = [receipt.bundle_id for receipt in receipts]
            lines = [
                f"acked {n} {place.core} {place.segment_seq} {place.bundle_index}\n"
                for n, place in zip(group, places, strict=True)
            ]
            os.write(journal, "".join(lines).encode())
