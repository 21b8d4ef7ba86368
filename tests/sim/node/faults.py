"""What breaks on a simulated machine while its processes go on: their calls, disks, bits, memory, messages and wake-ups."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.sim.node.bits import Segment, rot, rot_live
from tests.sim.node.restarts import StartKills

if TYPE_CHECKING:
    from tests.sim.node.machine import Machine


class Faults:
    """Owner: the machine."""

    def __init__(self, machine: Machine, start_kills: StartKills) -> None:
        self._machine = machine
        self._start_kills = start_kills
        self.failing_cores: set[int] = set()
        """Cores whose disk has failed a call at some time: their bundles may be lost, and announced."""
        self._rotten: set[Segment] = set()

    def arm_kill(self, core: int, calls: int) -> None:
        """The worker dies at one of its next calls that change the disk, before it is done."""
        worker = self._machine.workers[core]
        if worker is not None:
            self._machine.log.append(f"arm kill of core_{core} in {calls} calls")
            worker.faulty.crash_at(worker.faulty.mutating_count + calls)

    def arm_kill_at_message(self, core: int, calls: int, after: bool) -> None:
        """The same right before or after one of its next calls by which it takes a message, or sends one."""
        worker = self._machine.workers[core]
        if worker is not None:
            self._machine.log.append(f"arm kill of core_{core} in {calls} messages")
            worker.message_kills.arm(calls, after=after)

    def arm_error(self, core: int, kind: str, nth: int, number: int) -> None:
        """A call on the disk fails once."""
        worker = self._machine.workers[core]
        if worker is not None:
            self._machine.log.append(f"arm {kind} error {number} on core_{core}")
            self.failing_cores.update(self._machine.served_by(core))
            worker.faulty.fail(kind, nth, number)

    def limit_disk(self, core: int, free_bytes: int | None) -> None:
        disk = self._machine.disks[core]
        disk.capacity_bytes = None if free_bytes is None else disk.used_bytes + free_bytes
        self._machine.log.append(f"core_{core} has {free_bytes} bytes free")

    def arm_supervisor_kill(self, calls: int) -> None:
        """The supervisor dies at one of its next calls that change the list of topics, before it is done."""
        self._machine.log.append(f"arm kill of the supervisor in {calls} calls")
        self._machine.supervisor_disk.faulty.crash_at(self._machine.supervisor_disk.faulty.mutating_count + calls)

    def rot(self, core: int, seed: int) -> None:
        """A worker is killed, and bits of its sealed segments are something else when it comes back."""
        self._machine.kill(core)
        for served in self._machine.served_by(core):
            for segment in rot(self._machine.disks[served], Random(seed + served)):
                self._machine.log.append("a bit flips in segment {2} of {0} on core_{1}".format(*segment))
                self._machine.counts["bits_flipped"] += 1
                self._rotten.add(segment)

    def rot_live(self, core: int, seed: int) -> None:
        """Bits of sealed segments flip under a running worker and its consumers."""
        for segment in rot_live(self._machine.disks[core], Random(seed)):
            self._machine.log.append("a bit flips under readers of segment {2} of {0} on core_{1}".format(*segment))
            self._machine.counts["live_bits_flipped"] += 1
            self._rotten.add(segment)

    def refuse_memory(self, core: int, arenas: int) -> None:
        worker = self._machine.workers[core]
        if worker is not None:
            self._machine.log.append(f"core_{core} gets no memory for {arenas} arenas")
            worker.refuse_memory(arenas)

    def lose_wake_ups(self, core: int, count: int) -> None:
        """The next wake-ups of a worker's deliveries are lost: what may be claimed is found by its tick alone."""
        worker = self._machine.workers[core]
        if worker is not None and hasattr(worker, "loop"):
            self._machine.log.append(f"core_{core} loses {count} wake-ups")
            self._machine.counts["wake_ups_lost"] += count
            worker.lose_wake_ups(count)

    def delay_messages(self, share: float) -> None:
        """Let so many of the messages that a process could read wait for a later turn, from now on."""
        self._machine.log.append(f"{share:.0%} of all messages are late")
        self._machine.delays.share = share

    def may_lose(self, segment: Segment) -> bool:
        """Whether bundles of it that were acknowledged may be lost, with notice."""
        return segment[1] in self.failing_cores or self._machine.room.drops or segment in self._rotten

    def heal(self) -> None:
        self._machine.delays.share = self._start_kills.share = 0.0
        self._machine.supervisor_disk.faulty.crash_at(0)
        for core, disk in enumerate(self._machine.disks):
            disk.capacity_bytes = None
            worker = self._machine.workers[core]
            if worker is not None:
                worker.faulty.heal()
                worker.faulty.crash_at(0)
                worker.message_kills.arm(0, after=False)
                worker.refuse_memory(0)
                if hasattr(worker, "loop"):
                    worker.lose_wake_ups(0)
