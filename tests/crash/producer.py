"""One producer of a campaign: pushes numbered bundles for ever and writes down what becomes of each (`book` has the lines).

Producer 0 pushes idempotently: what it is not sure of it pushes again under the same numbers, also after it was killed. The others go on
with new numbers.
"""

from __future__ import annotations

import os
import random
import select
from collections.abc import Sequence
from typing import TypedDict

import quiver_actors
from quiver_actors.base.model import Receipt
from quiver_actors.client import Client
from quiver_actors.errors import ClosedError, QuiverError, WorkerUnavailable
from tests.crash.bundles import TOPIC, bundle_of

IDEMPOTENT = (0,)
CONNECT_TIMEOUT_SECONDS = 60.0


class Key(TypedDict, total=False):
    producer: str
    sequence: int


def key_of(producer: int, number: int) -> Key:
    return {"producer": f"campaign-{producer}", "sequence": number} if producer in IDEMPOTENT else {}


def _connected(run_dir: str, pause_seconds: float) -> Client:
    """A client, as soon as the process may have the descriptors for one."""
    while True:
        try:
            return quiver_actors.connect(run_dir, timeout=CONNECT_TIMEOUT_SECONDS)
        except WorkerUnavailable:
            select.select([], [], [], pause_seconds)


def produce(
    run_dir: str, producer: int, number: int, journal: int, *, pause_seconds: float, timeout_seconds: float
) -> None:
    """Args:
    journal: the descriptor of a file to append to.
    pause_seconds: between two pushes.
    timeout_seconds: of each.
    """
    with _connected(run_dir, pause_seconds) as client:
        push_for_ever(client, producer, number, journal, pause_seconds=pause_seconds, timeout_seconds=timeout_seconds)


def push_for_ever(
    client: Client, producer: int, number: int, journal: int, *, pause_seconds: float, timeout_seconds: float
) -> None:
    """Push from that number on. Arguments as of `produce`. Raises ClosedError: the client was closed."""
    rng = random.Random(producer * 1_000_003 + number)
    while True:
        select.select([], [], [], pause_seconds)
        group = range(number, number + rng.choice((1, 1, 8, 40)))
        os.write(journal, f"pushing {group.start} {len(group)}\n".encode())
        try:
            receipts = _push(client, producer, group, timeout_seconds)
        except ClosedError:
            raise
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


def _push(client: Client, producer: int, group: range, timeout_seconds: float) -> Sequence[Receipt]:
    bundles, key = [bundle_of(producer, number) for number in group], key_of(producer, group.start)
    if len(bundles) == 1:
        return [client.push(bundles[0], topic=TOPIC, timeout=timeout_seconds, **key)]
    return client.push_many(bundles, topic=TOPIC, timeout=timeout_seconds, **key)
