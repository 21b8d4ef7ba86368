"""A consumer that acknowledges all of a topic and then ends in one of several ways, without `flush` or `close`:
`... leaving_consumer <run_dir> <subscriber> <bundles> <way>`.

Ways: `return` (the main module ends), `sigterm` (the process gets SIGTERM while it computes), `child` (a child of multiprocessing
acknowledges and ends), `silence` (the process computes until its standard input is closed).
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import sys
import threading

from quiver_actors.client import Delivery, Subscription, connect
from quiver_actors.client.resolutions import RESOLUTIONS_WAITING_MAX

_kept: list[Subscription] = []
"""Subscriptions that nothing closes before the interpreter ends."""


def acknowledge(run_dir: str, subscriber: str, bundles: int) -> None:
    """Acknowledge so many, fast enough that most are collected."""
    assert bundles < RESOLUTIONS_WAITING_MAX
    subscription = connect(run_dir).subscribe(subscriber)
    _kept.append(subscription)
    deliveries: list[Delivery] = []
    while len(deliveries) < bundles:
        deliveries += subscription.get_many(bundles - len(deliveries), timeout=60)
    for delivery in deliveries:
        delivery.ack()


def main(run_dir: str, subscriber: str, bundles: str, way: str) -> None:
    if way == "child":
        child = multiprocessing.get_context("fork").Process(
            target=acknowledge, args=(run_dir, subscriber, int(bundles))
        )
        child.start()
        child.join()
        sys.exit(child.exitcode)
    acknowledge(run_dir, subscriber, int(bundles))
    if way == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()
    if way == "silence":
        select.select([sys.stdin], [], [])


if __name__ == "__main__":
    main(*sys.argv[1:])
