"""A store in one light process that can be made to fail or die at any time: what it does, what it says, and what must be left of it.

The process pushes numbered bundles, commits, seals, acknowledges as a subscriber, and drains. Before and after each promise it writes a
record into a pipe; whoever holds the other end keeps the `Ledger`. After the end of the process, however it came, `survey` opens
the directory as the next one would and `Ledger.check` compares.

Demanded
- Every acknowledged bundle is there under the id of its acknowledgement, as it was pushed, unless its segment was resolved.
- Whatever else is there was pushed, once, and is whole. Bundles stand in the order of their sequences.
- What is unresolved is delivered, what is durably resolved is not.
- A bundle pushed now gets a sequence that was never used.
"""

from __future__ import annotations

import functools
import logging
import os
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import msgspec
import pyarrow as pa

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.units import KIB, SECOND_NS
from quiver_actors.errors import DiskError, EngineFailed, QuiverError, StorageFull
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import EngineState
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

DIRECTORY = "default/core_0"
SUBSCRIBER = "oracle"
SETTINGS: TopicSettings = topic_settings(segment_target_size_bytes=12 * KIB)

_RECORD = struct.Struct("<cQQQ")
_SPACE_ATTEMPTS = 8

FINISHED, FAILED, NOT_OPENED, NO_ROOM, NOT_CLOSED, BROKEN = 0, 10, 11, 12, 13, 99
"""How the process ended: drained, engine failed for good, open refused, room never came, clean stop failed, a bug."""
ENDS = (FINISHED, FAILED, NOT_OPENED, NO_ROOM, NOT_CLOSED)


@functools.cache
def bundle_of(number: int) -> dict[int, pa.RecordBatch]:
    """A function of the number: whoever has it knows every byte."""
    random = Random(number)
    rows = random.choice((1, 3, 40, 300))
    values = pa.array([random.getrandbits(40) for _ in range(rows)])
    found = {0: pa.record_batch({"number": pa.array([number] * rows), "value": values})}
    if random.random() < 0.3:
        words = [f"{number}-{word}" for word in range(random.randint(1, 4))]
        keys = pa.array([random.randrange(len(words)) for _ in range(rows)], pa.uint8())
        found[7] = pa.record_batch({"word": pa.DictionaryArray.from_arrays(keys, pa.array(words))})
    return found


# --- the process that is to fail -----------------------------------------------------------------------------------------


class _Stopped(Exception):
    """The engine goes on no more; how is the process's exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Reporter:
    """Writes records; one write(2) each, so that a kill leaves whole ones."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def say(self, kind: bytes, number: int, segment_seq: int = 0, index: int = 0) -> None:
        os.write(self._descriptor, _RECORD.pack(kind, number, segment_seq, index))


class Work:
    """One life of the store."""

    def __init__(self, disk: Disk, first_number: int, reporter: Reporter) -> None:
        self._next = first_number
        self._say = reporter.say
        self._pending: list[tuple[int, int, int, int]] = []
        try:
            self._driver = EngineDriver(disk, SETTINGS, DIRECTORY)
        except DiskError as error:
            raise _Stopped(NOT_OPENED) from error
        self._settle()
        self._subscribe()

    def run(self, random: Random, steps: int) -> None:
        """Take that many steps, then stop cleanly."""
        for _ in range(steps):
            self.step(random)
        self.stop()

    def step(self, random: Random) -> None:
        self.push(random.choice((1, 1, 2, 5)))
        if random.random() < 0.3:
            self._driver.engine.seal_now()
            self._settle()
        if random.random() < 0.4:
            self.resolve(random.choice((1, 3, 100)))

    def push(self, count: int) -> None:
        numbers = range(self._next, self._next + count)
        self._next += count
        for number in numbers:
            self._say(b"S", number)
        span, push, schemas = self._driver.layout([bundle_of(number) for number in numbers])
        self._wait_for_room(len(span))
        try:
            (run,) = self._driver.engine.intake.stage(span, push, schemas)
        except (EngineFailed, StorageFull) as error:
            raise _Stopped(NO_ROOM if isinstance(error, StorageFull) else FAILED) from error
        self._pending += [
            (run.sequence + offset, number, run.segment_seq, run.bundle_index + offset)
            for offset, number in enumerate(numbers)
        ]
        self._driver.engine.write()
        self._settle()

    def _wait_for_room(self, span_bytes: int) -> None:
        for _ in range(_SPACE_ATTEMPTS):
            if self._driver.engine.intake.can_stage(span_bytes):
                return
            self._driver.clock.advance(SECOND_NS)
            self._settle()

    def _settle(self) -> None:
        self._driver.settle()
        reached, _ = self._driver.engine.group_commit.acknowledges
        while self._pending and self._pending[0][0] < reached:
            self._say(b"A", *self._pending.pop(0)[1:])
        if self._driver.engine.state is EngineState.FAILED:
            self._check_failed()
            raise _Stopped(FAILED)

    def _check_failed(self) -> None:
        """Check that the engine has failed for good: no write and no sync follows."""
        engine = self._driver.engine
        assert not engine.intake.can_stage(1), "a failed engine takes bundles"
        assert engine.next_commit() is None, "a failed engine syncs"
        assert engine.next_background() is None, "a failed engine works on"

    def _subscribe(self) -> None:
        ticket = self._driver.engine.registrations.register(SUBSCRIBER, "earliest")
        for _ in range(_SPACE_ATTEMPTS):
            self._settle()
            if self._driver.engine.progress.durable >= ticket:
                self._say(b"G", 0)
                return
            self._driver.clock.advance(SECOND_NS)
        raise _Stopped(NO_ROOM)

    def resolve(self, count: int) -> None:
        engine = self._driver.engine
        resolved = []
        for segment_seq, indexes, token, *_ in engine.claims.claim(SUBSCRIBER, "owner", count):
            for index in indexes:
                self._say(b"T", 0, segment_seq, index)
            engine.claims.resolve(SUBSCRIBER, "owner", segment_seq, token, "ack", indexes, 0)
            resolved += [(segment_seq, index) for index in indexes]
        ticket = engine.progress.flush()
        self._settle()
        if engine.progress.durable >= ticket:
            for place in resolved:
                self._say(b"R", 0, *place)

    def stop(self) -> None:
        engine = self._driver.engine
        engine.drain()
        for _ in range(_SPACE_ATTEMPTS):
            self._settle()
            if engine.is_drained:
                break
            self._driver.clock.advance(SECOND_NS)
        else:
            raise _Stopped(NO_ROOM)
        try:
            engine.close()
        except DiskError as error:
            raise _Stopped(NOT_CLOSED) from error


def live(open_disk: Callable[[], Disk], first_number: int, descriptor: int, seed: int, steps: int) -> int:
    """Work until the end; returns the exit code. What is no error of ours is told as text behind an `X` record."""
    reporter = Reporter(descriptor)
    try:
        Work(open_disk(), first_number, reporter).run(Random(seed), steps)
    except _Stopped as stopped:
        return stopped.code
    except DiskError as error:
        told = traceback.format_exception(error)
        return NOT_OPENED if "open_disk" in "".join(told) else _broken(reporter, descriptor, error)
    except BaseException as error:  # noqa: BLE001 - told to the parent
        return _broken(reporter, descriptor, error)
    return FINISHED


def _broken(reporter: Reporter, descriptor: int, error: BaseException) -> int:
    text = "".join(traceback.format_exception(error)).encode()
    reporter.say(b"X", len(text))
    os.write(descriptor, text)
    return BROKEN


# --- what it has said ----------------------------------------------------------------------------------------------------


@dataclass
class Survey:
    """Findings of the next process."""

    bundles: list[tuple[int, int, int, int, bool]] = field(default_factory=list)
    """Number, segment, index, sequence, and whether it is as it was pushed; in the order of the segments."""
    deliverable: list[tuple[int, int]] = field(default_factory=list)
    next_sequence: int = 0
    """Sequence that a bundle pushed now would get."""
    error: str = ""


Place = tuple[int, int]


@dataclass
class Ledger:
    """Promises of all processes on one directory. Places are (segment, index)."""

    started: set[int] = field(default_factory=set)
    acknowledged: dict[Place, int] = field(default_factory=dict)
    """Number by place."""
    tried: set[Place] = field(default_factory=set)
    resolved: set[Place] = field(default_factory=set)
    is_registered: bool = False
    sequence_max: int = -1
    told: str = ""
    """The traceback of a process that ended by a bug."""
    unsaved_count: int = 0
    """How often a derived file could not be written."""

    def hear(self, received: bytes) -> None:
        at = 0
        while at + _RECORD.size <= len(received):
            kind, number, segment_seq, index = _RECORD.unpack_from(received, at)
            at += _RECORD.size
            if kind == b"S":
                self.started.add(number)
            elif kind == b"A":
                self.acknowledged[segment_seq, index] = number
            elif kind == b"T":
                self.tried.add((segment_seq, index))
            elif kind == b"R":
                self.resolved.add((segment_seq, index))
            elif kind == b"G":
                self.is_registered = True
            elif kind == b"D":
                self.unsaved_count += 1
            elif kind == b"X":
                self.told = received[at : at + number].decode(errors="replace")
                at += number

    def check(self, survey: Survey) -> list[str]:
        """Return the faults found; empty if there are none. Also learns from the survey: what is stored now must stay."""
        wrong = [survey.error] if survey.error else []
        found = {(segment, index): (number, ok) for number, segment, index, _, ok in survey.bundles}
        segments = {segment_seq for segment_seq, _ in found}
        for place, number in self.acknowledged.items():
            # What was resolved may be gone, with its whole segment, also where the process had no time to tell that it was durable.
            is_deleted = place in self.tried and place[0] not in segments
            if place not in found and place not in self.resolved and not is_deleted:
                wrong.append(f"bundle {number} was acknowledged as {place} and is gone")
            elif place in found and found[place] != (number, True):
                wrong.append(f"bundle {number} was acknowledged as {place}: there is {found[place]}")
        numbers = [number for number, _ in found.values()]
        wrong += [f"bundle {number} at {place} is not whole" for place, (number, ok) in found.items() if not ok]
        wrong += [f"bundle {number} was never pushed" for number in set(numbers) - self.started]
        if len(set(numbers)) != len(numbers):
            wrong.append("a bundle is there twice")
        return [*wrong, *self._check_sequences(survey), *self._check_deliveries(survey, set(found))]

    def _check_sequences(self, survey: Survey) -> list[str]:
        sequences = [sequence for *_, sequence, _ in survey.bundles]
        wrong = [] if sequences == sorted(set(sequences)) else [f"sequences do not rise: {sequences}"]
        self.sequence_max = max([self.sequence_max, *sequences])
        if survey.next_sequence <= self.sequence_max:
            wrong.append(f"sequence {survey.next_sequence} was used before: up to {self.sequence_max}")
        self.sequence_max = max(self.sequence_max, survey.next_sequence)
        return wrong

    def _check_deliveries(self, survey: Survey, found: set[Place]) -> list[str]:
        if not self.is_registered:
            return []
        delivered = set(survey.deliverable)
        wrong = [f"{place} is delivered again" for place in sorted(delivered & self.resolved)]
        missing = (self.acknowledged.keys() & found) - self.tried - delivered
        return wrong + [f"{place} is not delivered" for place in sorted(missing)]


def survey(disk: Disk, number: int) -> Survey:
    """Open, look at everything, push one more bundle of that number, and let the process end without a stop."""
    driver = EngineDriver(disk, SETTINGS, DIRECTORY)
    driver.settle()
    engine = driver.engine
    engine.registrations.register(SUBSCRIBER, "earliest")
    found = Survey()
    for info in engine.segments():
        reader = driver.read(info.segment_seq)
        reader.verify_checksum()
        for index in range(reader.bundle_count):
            bundle = reader.bundle(index)
            bundle_number = bundle[0].column(0)[0].as_py()
            sequence = reader.sequence(index)
            assert sequence is not None
            ok = _is_same(bundle, bundle_of(bundle_number))
            found.bundles.append((bundle_number, info.segment_seq, index, sequence, ok))
    for segment_seq, indexes, *_ in engine.claims.claim(SUBSCRIBER, "survey", 1 << 30):
        found.deliverable += [(segment_seq, index) for index in indexes]
    (run,) = driver.push(bundle_of(number))
    driver.commit()
    found.next_sequence = run.sequence
    return found


def _is_same(found: dict[int, pa.RecordBatch], pushed: dict[int, pa.RecordBatch]) -> bool:
    return found.keys() == pushed.keys() and all(
        found[slot].schema.equals(batch.schema, check_metadata=True) and found[slot].to_pylist() == batch.to_pylist()
        for slot, batch in pushed.items()
    )


# --- processes -----------------------------------------------------------------------------------------------------------


def fork(run: Callable[[int], int]) -> tuple[int, int]:
    """Run `run(descriptor)` in a child, whose exit code it returns. Returns its pid and the descriptor to read what it says."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = BROKEN
        try:
            code = run(write)
        finally:
            os._exit(code)
    os.close(write)
    return pid, read


def read_all(descriptor: int) -> bytes:
    """All that is said until the other end is closed; closes this one."""
    pieces = []
    while piece := os.read(descriptor, 1 << 20):
        pieces.append(piece)
    os.close(descriptor)
    return b"".join(pieces)


def warm_up() -> None:
    """Import and initialise everything that a life needs, so that each child has it from the fork."""
    logging.disable(logging.CRITICAL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    live(SimDisk, 0, nowhere, 0, 30)
    survey(SimDisk(), 0)
    os.close(nowhere)


def survey_in_child(open_disk: Callable[[], Disk], ledger: Ledger, number: int) -> Survey:
    """`survey`, in a process of its own, which leaves the bundle `number` unsealed."""

    def run(descriptor: int) -> int:
        try:
            found = survey(open_disk(), number)
        except (QuiverError, AssertionError, OSError) as error:
            found = Survey(error="".join(traceback.format_exception(error)))
        encoded = msgspec.msgpack.encode(found)
        os.write(descriptor, encoded) if len(encoded) < 4096 else _write_all(descriptor, encoded)
        return 0

    ledger.started.add(number)
    pid, descriptor = fork(run)
    received = read_all(descriptor)
    os.waitpid(pid, 0)
    if not received:
        return Survey(error="the process that looks at the store died")
    return msgspec.msgpack.decode(received, type=Survey)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
