"""What a simulated machine has at a moment: stages, things kept for connections, directories, and what guests keep of deleted segments."""

from __future__ import annotations

from tests.sim.node.machine import Machine
from tests.sim.node.room import TOPIC


def staged(machine: Machine) -> list[int]:
    """How many stages that outlive their connections nothing has become of yet, by core. Open ones end with theirs."""
    return [
        sum(stage.owner is None for host in worker.loop._hosts.values() for stage in host.engine.stages)
        for worker in machine.workers
        if worker is not None and hasattr(worker, "loop")
    ]


def held(machine: Machine) -> list[str]:
    """Return what workers keep for connections."""
    return [what for worker in machine.workers if worker is not None for what in worker.held()]


def incarnation_of(machine: Machine, core: int) -> str:
    """The directory's of the topic that guests may use; of none while its worker is not there."""
    worker = machine.workers[core]
    host = worker.loop._hosts.get(TOPIC) if worker is not None and hasattr(worker, "loop") else None
    return bytes(16).hex() if host is None else host.engine.incarnation.hex()


def give(machine: Machine, descriptor: int, guest: object) -> set[object] | None:
    """A guest has got a descriptor of a segment; see `SimDisk.give`."""
    found = (disk.give(descriptor, guest) for disk in machine.disks)
    return next((having for having in found if having is not None), None)


def hoarded_bytes(machine: Machine) -> list[int]:
    """Bytes on each disk of deleted segments that guests have."""
    return [disk.hoarded_bytes() for disk in machine.disks]
