"""Consumers that share a subscriber and join it with different terms; and what both sides must agree on when everything is calm.

The worker's view of a claim decides. So at rest the bundles that workers count as claimed are those that consumers know of, and what
another consumer has durably resolved is handed over by nobody who has read what its worker has said.
"""

from __future__ import annotations

from tests.sim.node.actors import Place, SubscriberActor, World
from tests.sim.node.clients import SimSubscriber
from tests.sim.node.machine import Machine

SHARED = "duo"
_LEASES_SECONDS = (0.2, 1.0, 30.0, None)
"""The shortest is longer than a pause of the calm (`run._IDLE_PAUSE_NS`): a shorter one would end before anybody can take what came."""
_SEEDS_EACH = 3
"""One seed in so many has such consumers: the others are as they were without."""


class SharingActor(SubscriberActor):
    """One of several consumers of a subscriber. Each time it joins, it wants another lease."""

    def _new_client(self) -> SimSubscriber:
        machine, random = self.world.machine, self.world.random
        options = {"lease": random.choice(_LEASES_SECONDS), "order": random.choice(("oldest", "newest"))}
        return SimSubscriber(machine.run_dir, self.subscriber, self.place.topic, machine.delays, prefetch=8, **options)


def sharing_actors(seed: int, world: World, place: Place) -> list[SubscriberActor]:
    """The sharing consumers that take part in the run of a seed; none in two seeds of three."""
    if seed % _SEEDS_EACH:
        return []
    return [SharingActor(name, world, place, SHARED) for name in ("duo-1", "duo-2")]


def claims_apart(machine: Machine, subscribers: list[SubscriberActor]) -> list[str]:
    """Where a worker counts other claims than the consumers know of."""
    known: dict[tuple[int, str, str], int] = {}
    for actor in subscribers:
        for channel in actor.client.consumer.channels.opened():
            key = channel.core, actor.place.topic, actor.subscriber
            known[key] = known.get(key, 0) + channel.claims.bundle_count
    return [
        f"{subscriber} of {topic} on core {core}: the worker counts {counted} claims, the consumers {known[core, topic, subscriber]}"
        for (core, topic, subscriber), counted in _counted(machine).items()
        if counted != known.get((core, topic, subscriber), counted)
    ]


def _counted(machine: Machine) -> dict[tuple[int, str, str], int]:
    """Claimed bundles by core, topic and subscriber, as workers count them."""
    return {
        (core, topic, subscriber): host.engine.owed.pending(subscriber).claimed
        for core, worker in enumerate(machine.workers)
        if worker is not None
        for topic, host in worker.loop._hosts.items()
        if "@" not in topic
        for subscriber in host.engine.registrations.names()
    }
