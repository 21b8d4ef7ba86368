"""What does a bundle cost, step by step, where Python pays for it?

Method: one process, CPU time, no node and no disk: bundles are encoded into a ring as the client does, copied out, checked, completed and
entered in the open segment as a worker does. Messages of 64, 256 and fewer bundles, of one slot or of four. `encode` is from
RecordBatches, with the copy into the ring. Best of the repeats of a round: that is the cost, the rest is the machine's other work.
Against, in the same run: `one-by-one`, a plan and a check for every bundle, which is how small or mixed messages travel; and `memcpy` of
the same bytes for the copy.

`sum` adds the four steps up. `--without PART` switches a part of the way of like bundles off (benchmarks/push_parts.py).

    python -m benchmarks.push_cost [--quick] [--json] [--rounds N] [--without PART]
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.harness import Report, begun, parser, read_options
from benchmarks.ingest import Case, make_bundles
from benchmarks.push_parts import PARTS
from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.client.grouping import Grouping
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.store.disk.posix import PosixFile
from quiver_actors.store.encoding.entries import PlannedBundles, plan
from quiver_actors.store.encoding.runs import RunMemory
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.wal.admission import CheckedEntries, check_each, check_push
from quiver_actors.store.wal.codec import Identity
from quiver_actors.store.wal.log import Log

KIB, MIB = 1 << 10, 1 << 20
SLOTS = TopicSlots(TopicInfo("t", {}, "wal", 0))
CASES = (
    Case(KIB, 1, 64, "", 0),
    Case(KIB, 1, 256, "", 0),
    Case(KIB, 1, 64, "", 0, slots=4),
    Case(KIB, 1, 256, "", 0, slots=4),
    Case(16 * KIB, 1, 32, "", 0),
    Case(64 * KIB, 1, 15, "", 0),
    Case(64 * KIB, 1, 1, "", 0),
    Case(MIB, 1, 1, "", 0),
)
"""Cases of the benchmark; each is one message."""


class Path:
    """One message's way through both sides."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        self.bundles = bundles
        self.streams, self.memory = StreamTable("t"), RunMemory()
        self.ring = memoryview(mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
        self.encode_each()
        self.private = np.empty(len(self.span), np.uint8).data
        self.copy()
        self.log = self.new_log()

    def encode(self) -> None:
        """Encode like `push_many`: alike bundles at once."""
        offset = 0
        for planned in Grouping(SLOTS, self.streams, self.memory).groups((bundle, None) for bundle in self.bundles):
            planned.write(self.ring, offset)
            offset += planned.size_bytes

    def encode_each(self) -> None:
        planned = PlannedBundles([plan(SLOTS.batches_of(bundle), self.streams) for bundle in self.bundles])
        rows = planned.write(self.ring, 0)
        self.span, self.schemas = self.ring[: planned.size_bytes], rows.schemas()
        self.push = rows.push(1, "t", 0, planned.size_bytes, planned.size_bytes)

    def copy(self) -> None:
        self.private[:] = self.span

    def check(self) -> None:
        self.entries: CheckedEntries = check_push(self.private, 121, self.push, self.schemas)[0]

    def check_each(self) -> None:
        self.entries = check_each(self.private, 121, self.push, self.schemas)[0]

    def complete(self) -> None:
        if self.log.builder.bundle_count > 32_000:
            self.log = self.new_log()
        self.log.stage(self.private, self.entries, 1, 1)

    def new_log(self) -> Log:
        log = Log(PosixFile(-1, "nowhere"), "nowhere", 1 << 40)
        log.activate(bytes(16), 0, Identity(0, 0, bytes(16)))
        return log


def cost_us(step: Callable[[], None], bundles: int, repeats: int) -> float:
    """Least CPU microseconds a bundle."""
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time_ns()
        step()
        best = min(best, (time.process_time_ns() - started) / 1e3)
    return best / bundles


def measure(case: Case, rounds: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Measure by step and round: ours and what it is compared with."""
    bundles, group = make_bundles(case), case.per_call
    path = Path([bundles[number % len(bundles)] for number in range(group)])
    source = bytes(path.span)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("encode", "copy", "check", "complete")}

    def memcpy() -> None:
        path.private[:] = source

    for _ in range(rounds):
        ours, each = cost_us(path.encode, group, repeats), cost_us(path.encode_each, group, repeats)
        found["encode"].append((ours, each))
        path.copy()
        found["copy"].append((cost_us(path.copy, group, repeats), cost_us(memcpy, group, repeats)))
        check_one = cost_us(path.check_each, group, repeats)
        complete_one = cost_us(path.complete, group, repeats)
        path.copy()
        found["check"].append((cost_us(path.check, group, repeats), check_one))
        found["complete"].append((cost_us(path.complete, group, repeats), complete_one))
    return found


def show(report: Report, name: str, pairs: list[tuple[float, float]]) -> None:
    """One step: ours against what it is compared with."""
    ours, limit = ([{"us": pair[side]} for pair in pairs] for side in (0, 1))
    against = "memcpy" if name.endswith("/copy") else "one-by-one"
    report.show_rounds(name, ours, "us", "us/bundle", "none", (against, limit))


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--without", choices=PARTS, help="switch this part off")
    options = read_options(found)
    if options.without:
        PARTS[options.without]()
    with begun(options) as (report, _):
        for case in CASES[:3] if options.quick else CASES:
            steps = measure(case, options.rounds, 5 if options.quick else 100)
            name = case.size_and_slots.removesuffix("/1slot")
            for step, pairs in steps.items():
                show(report, f"cost/{name}/batch{case.per_call}/{step}", pairs)
            sums = [{"us": sum(pair[0] for pair in of_round)} for of_round in zip(*steps.values(), strict=True)]
            report.show_rounds(f"cost/{name}/batch{case.per_call}/sum", sums, "us", "us/bundle", "none")


if __name__ == "__main__":
    main()
