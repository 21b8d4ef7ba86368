"""What was to be reached, and whether the last results reach it: the table at the head of docs/benchmarks.md.

An aim is a figure of one case, or its ratio to what ran in turn with it, and a bound. Those that are missed are said with the reason; an
aim whose case has no result is said to be not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Sequence[Mapping[str, Any]]]
"""Figures that each module printed."""

_CALLS = (
    "a message costs some hundred Python calls on either side, with cold caches, whatever is in it; where a call waits for one "
    "message, a push reaches half of a relay in Python that does nothing else (`bare-hop`, see performance)"
)
_MESSAGE = "a message and a wake-up on either side of each push; a store in the process has neither"
_STEPS = "a push is Python, 37 calls for a single one; theirs is C from the first byte on"
_SERVER = "a push is 0.2 to 0.4 ms of Python, half of it on either side; theirs is C or Go where the bytes go to"
_CRCS = "the two CRCs, on either side of memory that is not trusted; a bare ring with the same two is no faster"
_DISK = (
    "the kernel's copy into the page cache of a new file, where the host takes free memory back at that, and this disk"
)
_COLD = "Python that finds its caches cold after each wait; waking five threads alone takes 0.1 to 0.2 ms (`bare-hop`)"
_TURNS = "pauses of the machine, whose two processors are threads of one core, and of its disk, add to our own"
_TAIL = "the tail of 28,000 bundles is 2 MiB; cutting the file to its size waits for the file system's journal"
_WAKES = "200 pushes a second are 12,800 deliveries, each of which wakes a process of its own: more CPU time than two cores have"
_SPLICE = "its bytes come out of a file first, where the limit has them at hand"
_UNIFIED = f"{_SPLICE}; dictionaries that differ are decoded and unified, their indexes written anew"
_DECODED = "Arrow decodes two batches for each: as many plain mapped Arrow files are read no faster in the same run"


@dataclass(frozen=True, slots=True)
class Aim:
    """`why`: what stands in the way where it is missed."""

    what: str
    module: str
    case: str
    unit: str
    bound: float
    why: str = ""
    against: str = ""
    """Name of what ran in turn with the case: the bound applies to the ratio to it. Empty: the bound applies to the figure itself."""
    is_at_least: bool = True

    def reached(self, figures: Figures) -> float | None:
        """None: not measured."""
        for figure in figures.get(self.module, ()):
            if figure["case"] == self.case and figure["unit"] == self.unit:
                if not self.against:
                    return float(figure["value"])
                if figure["against"] == self.against and figure["ratio"] is not None:
                    return float(figure["ratio"])
        return None

    def is_met(self, reached: float) -> bool:
        return reached >= self.bound if self.is_at_least else reached <= self.bound


def _at_most(what: str, module: str, case: str, unit: str, bound: float, why: str = "", against: str = "") -> Aim:
    return Aim(what, module, case, unit, bound, why, against, is_at_least=False)


def _ingest() -> Iterator[Aim]:
    rate, large, small = "bundles/s", "push/64KiB/1slot/1p/sync", "push/1KiB/1slot"
    yield Aim("64 KiB", "ingest", large, rate, 18_000, _DISK)
    yield Aim("64 KiB, of a durable new file", "ingest", large, rate, 0.45, _DISK, "durable-limit")
    yield Aim("1 MiB", "ingest", "push/1MiB/1slot/1p/sync", "MB/s", 1_300, _DISK)
    yield Aim("1 KiB, deep window", "ingest", f"{small}/1p/sync", rate, 400_000, _CALLS)
    yield _at_most("1 KiB, deep window, worker's CPU", "ingest", f"{small}/1p/sync/worker_cpu", "us/bundle", 2, _CALLS)
    yield Aim("1 KiB, 64 a push", "ingest", f"{small}/2p/sync/batch64", rate, 120_000, _CALLS)
    yield Aim("1 KiB, single pushes of 4 producers", "ingest", f"{small}/4p/sync/single", rate, 15_000, _CALLS)


def _latency() -> Iterator[Aim]:
    lone, loaded = "latency/1KiB/200per_s/lone", "latency/1KiB/200per_s/loaded"
    yield _at_most("lone push, above fdatasync", "latency", f"{lone}/p50_above_fdatasync", "us", 100, _COLD)
    for name, at in (("lone push", lone), ("push beside seals", loaded)):
        yield _at_most(f"{name}, p99 of fdatasync's", "latency", f"{at}/p99", "us", 3, _TURNS, "fdatasync")
        yield _at_most(f"{name}, longest turn of the loop", "latency", f"{at}/loop_gap", "us", 5_000, _TURNS)


def _segments() -> Iterator[Aim]:
    for size in ("1KiB", "64KiB", "1MiB", "8MiB"):
        yield Aim(f"hand-off of {size}, of a bare ring", "handoff", f"handoff/{size}", "MB/s", 0.85, _CRCS, "bare-ring")
    for size in ("1KiB", "64KiB", "1MiB"):
        yield _at_most(f"seal of 32 MiB of {size}", "seal", f"seal/{size}/1schemas/none", "ms", 2, _TAIL)
    for case in ("64KiB/1schemas/none", "1MiB/1schemas/none", "64KiB/1schemas/equal"):
        yield Aim(f"compaction of {case}, of CRC + pwrite", "seal", f"compact/{case}", "ms", 0.8, _SPLICE, "crc+pwrite")
    case = "64KiB/1schemas/differing"
    yield Aim(f"compaction of {case}, of CRC + pwrite", "seal", f"compact/{case}", "ms", 0.8, _UNIFIED, "crc+pwrite")


def _reading() -> Iterator[Aim]:
    one = "deliver/1000rows/2slots/1sub"
    yield Aim("two slots of 1,000 rows, one consumer", "deliver", one, "bundles/s", 100_000, _DECODED)
    yield _at_most("check of a bundle, above the CRC of its bytes", "deliver", "deliver/check/over_crc", "us/bundle", 1)
    for size in ("1KiB", "64KiB", "1MiB"):
        yield Aim(f"replay of {size}, of reading", "recovery", f"replay/{size}", "GB/s", 0.5, "", f"read/{size}")
    pairs = {"segments": ("10", "10000"), "subscribers": ("1", "64"), "topics": ("1", "500"), "claims": ("0", "100000")}
    for name, (small, large) in {**pairs, "backlog": ("1segment", "635segments")}.items():
        for what in ("push", "deliver"):
            case, said = f"scale/{name}/{large}/{what}", f"{what}, {name}: {large} instead of {small}"
            yield _at_most(said, "scale", case, "us CPU/bundle", 1.2, "", small)


def _live() -> Iterator[Aim]:
    for rate, bound in (("back_to_back", 150.0), ("200per_s", 350.0)):
        at = f"live/latency/{rate}"
        yield _at_most(f"push to get, above the push, {rate}", "live", f"{at}/get_above_push", "us", bound, _COLD)
        what = f"push to get, p99 above fdatasync's, {rate}"
        yield _at_most(what, "live", f"{at}/get_p99_above_fdatasync", "us", 2_000, _TURNS)
    yield Aim("paced ingest beside a live consumer", "live", "live/ingest/50000per_s", "bundles/s", 0.95, "", "alone")
    yield Aim("catch-up from an open log", "live", "live/catchup/open", "bundles/s", 0.9, "", "sealed")
    pairs = (
        ("64", "push_p50", 1.25, "1", _WAKES),
        ("64_one_stopped", "push_p50", 1.1, "64", ""),
        ("64_one_stopped", "get_p50", 1.1, "64", ""),
    )
    for name, key, most, against, why in pairs:
        what = f"{key}, subscribers: {name} instead of {against}"
        yield _at_most(what, "live", f"live/subscribers/{name}/{key}", "us", most, why, against)


def _embedded() -> Iterator[Aim]:
    for rate, bound in (("back_to_back", 60.0), ("200per_s", 120.0)):
        at = f"embedded/1KiB/{rate}/above_disk"
        yield _at_most(f"embedded push above the disk, {rate}", "embedded", at, "us", bound, _COLD)
    for group in (1, 64):
        for peer in ("SQLite", "RocksDB", "LMDB"):
            at = f"embedded/1KiB/{group}outstanding/quiver"
            yield Aim(f"embedded, {group} outstanding, of {peer}", "embedded", at, "bundles/s", 1.0, _STEPS, peer)


def _peers() -> Iterator[Aim]:
    servers = (("Redis Streams", 3.0, _SERVER), ("NATS JetStream", 3.0, _SERVER))
    bounds = (*servers, ("RocksDB", 1.0, _MESSAGE), ("SQLite", 1.0, _MESSAGE))
    for size, groups in (("1KiB", (1, 64, 4096)), ("64KiB", (1, 16, 256))):
        for group in groups:
            at = f"peers/{size}/{group}outstanding/quiver"
            for peer, bound, why in (*bounds, *((("LMDB", 1.0, _MESSAGE),) if size == "64KiB" else ())):
                yield Aim(f"{size}, {group} outstanding, of {peer}", "peers", at, "bundles/s", bound, why, peer)


def _spark() -> Iterator[Aim]:
    yield _at_most("a job that does real work, of the no-op sink", "spark", "spark/job/none", "s", 1.05, "", "drop")
    what = "push to the commit of an idle query, above the micro-batch"
    yield _at_most(what, "live_spark", "live_spark/wait/quiver/p50", "ms", 20)


def _besieged() -> Iterator[Aim]:
    for kind in ("lists", "tiny", "mixed", "malformed", "unread"):
        what = f"push beside a flood ({kind}), p99 of that without"
        yield _at_most(what, "besieged", f"besieged/{kind}/p99", "us", 3, _TURNS, "alone")


AIMS = (
    *_ingest(),
    *_latency(),
    *_embedded(),
    *_besieged(),
    *_segments(),
    *_reading(),
    *_live(),
    *_peers(),
    *_spark(),
)
