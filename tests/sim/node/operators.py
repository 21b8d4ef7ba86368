"""The operator of a simulated node, who makes and deletes a topic."""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.base.protocol.topic_requests import Create, Delete, List
from tests.sim.node.actors import Place, ProducerActor, World
from tests.sim.node.model import Model


class TopicActor:
    """An operator who creates a topic, deletes it, and creates it again."""

    def __init__(self, name: str, world: World, place: Place, pushers: Sequence[ProducerActor]) -> None:
        self.name = name
        self._world = world
        self._place = place
        self._pushers = pushers
        self._is_going = False

    @property
    def is_idle(self) -> bool:
        reply = self._world.machine.ask_topics(List(limit=0))
        return not reply.deletions and all(version == reply.version for version in reply.applied.values())

    def step(self) -> None:
        if self._is_going:
            self._is_going = not self.is_idle
        elif self._world.is_resting:
            return
        elif not self._place.is_there:
            self._create()
        elif self._world.random.random() < 0.1:
            self._delete()

    def look(self) -> None:
        """The supervisor has died: what became of what it was asked last?"""
        is_there = self._place.topic in self._world.machine.ask_topics(List()).topics
        if is_there and not self._place.is_there:
            self._is_created()
        elif self._place.is_there and not is_there:
            self._is_deleted()

    def _create(self) -> None:
        reply = self._world.machine.ask_topics(
            Create(topic=self._place.topic, values=self._world.machine.room.topic_values)
        )
        if reply.code:
            raise AssertionError(f"topic {self._place.topic} cannot be created: {reply.error}")
        self._is_created()

    def _is_created(self) -> None:
        self._world.machine.log.append(f"topic {self._place.topic} is created")
        self._place.models.append(Model())
        self._place.is_there = True
        for pusher in self._pushers:
            pusher.stray(self._place.model)

    def _delete(self) -> None:
        reply = self._world.machine.ask_topics(Delete(topic=self._place.topic))
        if reply.code:
            raise AssertionError(f"topic {self._place.topic} cannot be deleted: {reply.error}")
        self._is_deleted()

    def _is_deleted(self) -> None:
        self._world.machine.log.append(f"topic {self._place.topic} is deleted")
        self._place.is_there = False
        self._is_going = True
