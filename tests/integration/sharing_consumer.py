"""One consumer process of a shared subscriber: `... sharing_consumer <run_dir> <subscriber> <lease seconds> <topic>`.

Writes `<number in the bundle> <delivery count>` for each bundle whose acknowledgement is durable, one a line, and ends when its
standard input is closed.
"""

from __future__ import annotations

import select
import sys

from quiver_actors.client import Ticket, connect
from quiver_actors.errors import NotClaimed, WorkerUnavailable


def main(run_dir: str, subscriber: str, lease: str, topic: str) -> None:
    with (
        connect(run_dir) as client,
        client.subscribe(subscriber, topic=topic, prefetch=8, lease=float(lease)) as subscription,
    ):
        print("ready", flush=True)
        acked: list[tuple[str, Ticket]] = []
        while not select.select([sys.stdin], [], [], 0)[0]:
            for delivery in subscription.get_many(16, timeout=0.1):
                line = f"{delivery.batch.column('id')[0].as_py()} {delivery.delivery_count}"
                acked.append((line, delivery.ack()))
            lines = [line for line, ticket in acked if _is_durable(ticket)]
            acked.clear()
            if lines:
                # In one write: a line is whole or not there when the process is killed.
                sys.stdout.write("".join(f"{line}\n" for line in lines))
                sys.stdout.flush()


def _is_durable(ticket: Ticket) -> bool:
    try:
        ticket.wait()
    except (NotClaimed, WorkerUnavailable):
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
