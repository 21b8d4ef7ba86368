"""The subscriber of a kill campaign: compares every bundle with what was pushed, writes it down, then acknowledges.

python -m tests.crash.subscriber RUN_DIR SUBSCRIBER JOURNAL
"""

from __future__ import annotations

import os
import sys

import quiver_actors
from quiver_actors.client import Delivery
from tests.crash.bundles import TOPIC, bundle_of


def verdict_of(delivery: Delivery) -> str:
    """`same` if the delivered bundle equals what its producer pushed under that number."""
    first = delivery[0]
    producer, number = first.column("producer")[0].as_py(), first.column("number")[0].as_py()
    expected = bundle_of(producer, number)
    same = set(expected) == set(delivery.slots) and all(
        delivery[slot].to_pylist() == batch.to_pylist() and delivery[slot].schema.equals(batch.schema)
        for slot, batch in expected.items()
    )
    where = delivery.bundle_id
    return (
        f"{'same' if same else 'DIFFERENT'} {producer} {number} {where.core} {where.segment_seq} {where.bundle_index}"
    )


def main(run_dir: str, subscriber: str, journal: str) -> None:
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with (
        # A node that was killed and is started beside other work takes its time.
        quiver_actors.connect(run_dir, timeout=60) as client,
        client.subscribe(subscriber, topic=TOPIC, start="earliest") as deliveries,
    ):
        for delivery in deliveries:
            with delivery:
                os.write(descriptor, (verdict_of(delivery) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
