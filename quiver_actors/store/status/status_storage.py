"""The part of the status document about the disk: the cap and who has what of it, what is kept, and what went.

Read from the counters page alone. The structs are part of the `--json` document; fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quiver_actors.base.metrics.figures import RetentionFigure, RowKind
from quiver_actors.base.units import format_size
from quiver_actors.shm.counters import RegionSnapshot, RowSnapshot
from quiver_actors.store.retention.losses import EVICTION_REASONS, LOSS_REASONS
from quiver_actors.store.retention.pressure import Step
from quiver_actors.supervisor.figures import (
    NO_LIMIT,
    NODE_STORAGE_ROW,
    QUOTA_ROW,
    STORAGE_ROW,
    SUPERVISOR_REGION,
    TOPIC_STORAGE_ROW,
    NodeStorageFigure,
    QuotaFigure,
    StorageFigure,
)


class StorageView(msgspec.Struct, frozen=True, kw_only=True):
    """The node's disk. Without a cap only the workers' own figures mean something."""

    cap_bytes: int = 0
    """0 = none."""
    soft_bytes: int = 0
    used_bytes: int = 0
    unowned_bytes: int = 0
    granted_bytes: int = 0
    is_over: bool = False
    """Above the soft limit, until enough is free again: what may go, goes."""
    claims: int = 0
    claims_expired: int = 0


class CoreStorageView(msgspec.Struct, kw_only=True):
    """Disk usage, quota and pressure of one worker."""

    core: int
    used_bytes: int = 0
    grant_bytes: int | None = None
    """Quota of the worker; None: no limit. Programs know the quota under this name."""
    cap_fraction: float | None = None
    wanted_bytes: int = 0
    pressure: float = 0.0
    steps: list[str] = []
    """Measures against the pressure: coalesce, widen, defer, refuse."""


class ShareView(msgspec.Struct, kw_only=True):
    """A topic that may have only a part of the cap, on all cores together."""

    topic: str
    limit_bytes: int
    used_bytes: int = 0
    wanted_bytes: int = 0
    """Bytes that waiting pushes need and the limit has refused."""


class RetentionView(msgspec.Struct, kw_only=True):
    """Disk usage of one topic on one core, in bytes by kind."""

    topic: str
    core: int
    throttled: int
    log_bytes: int
    sealing_bytes: int
    segment_bytes: int
    compaction_bytes: int
    staged_bytes: int
    progress_bytes: int
    gaps_bytes: int
    quarantine_bytes: int
    ballast_bytes: int
    other_bytes: int
    keep_for_bytes: int
    """Part of `segment_bytes` that no subscriber needs and only `retention.keep_for` keeps."""
    headroom_bytes: int
    """Part of `segment_bytes` that only `retention.steady_state_headroom` keeps."""
    held_bytes: int
    """Deleted segments that somebody still has open or mapped."""


class LossView(msgspec.Struct, kw_only=True):
    """Losses of one topic on one core for one reason since its worker started; there is no row where nothing was lost."""

    topic: str
    core: int
    reason: str
    evictions: int
    """Segment files deleted."""
    segments: int
    """Segments that lost bundles which a subscriber still needed."""
    bundles: int
    rows: int
    size_bytes: int


def place_of(label: str, core: int) -> tuple[str, int]:
    """Topic and core of a row: adopted engines are shown by their worker as `<topic>@<core>`."""
    topic, at, adopted = label.partition("@")
    return (topic, int(adopted)) if at else (label, core)


def storage_of(supervisor: RegionSnapshot) -> StorageView:
    """Return the node's disk usage and caps from the supervisor's region; all zero if it has written none."""
    row = next(iter(_rows(supervisor, NODE_STORAGE_ROW)), None)
    if row is None:
        return StorageView()
    named = {figure.name.lower(): row.values[figure] for figure in NodeStorageFigure}
    return msgspec.convert({**named, "is_over": bool(named["is_over"])}, StorageView)


def cores_of(regions: Sequence[RegionSnapshot]) -> list[CoreStorageView]:
    """One entry for each worker that has written figures."""
    cap_bytes = storage_of(regions[SUPERVISOR_REGION]).cap_bytes
    quotas = {row.label: row.values[QuotaFigure.QUOTA_BYTES] for row in _rows(regions[SUPERVISOR_REGION], QUOTA_ROW)}
    return [
        _core(region.index - 1, row, quotas.get(row.label, NO_LIMIT), cap_bytes)
        for region in regions[SUPERVISOR_REGION + 1 :]
        for row in _rows(region, STORAGE_ROW)
    ]


def _core(core: int, row: RowSnapshot, grant_bytes: int, cap_bytes: int) -> CoreStorageView:
    used_bytes, steps = row.values[StorageFigure.USED_BYTES], Step(row.values[StorageFigure.PRESSURE_STEPS])
    return CoreStorageView(
        core=core,
        used_bytes=used_bytes,
        grant_bytes=grant_bytes if cap_bytes else None,
        cap_fraction=round(used_bytes / cap_bytes, 4) if cap_bytes else None,
        wanted_bytes=row.values[StorageFigure.WANTED_BYTES],
        pressure=row.values[StorageFigure.PRESSURE_PERMILLE] / 1000,
        steps=[str(step.name).lower() for step in Step if step in steps],
    )


def shares_of(regions: Sequence[RegionSnapshot]) -> list[ShareView]:
    """Return the cap shares of topics, as their workers published them."""
    found: dict[str, ShareView] = {}
    for region in regions[SUPERVISOR_REGION + 1 :]:
        for row in _rows(region, TOPIC_STORAGE_ROW):
            share = found.setdefault(row.label, ShareView(topic=row.label, limit_bytes=0))
            share.limit_bytes = max(share.limit_bytes, row.values[StorageFigure.LIMIT_BYTES])
            share.used_bytes += row.values[StorageFigure.USED_BYTES]
            # Without pushes that wait it is what the worker asks for ahead of need.
            share.wanted_bytes += (
                row.values[StorageFigure.WANTED_BYTES] if row.values[StorageFigure.WAITING_SINCE_NS] else 0
            )
    return [found[topic] for topic in sorted(found)]


def retention_of(regions: Sequence[RegionSnapshot]) -> list[RetentionView]:
    """Return what each topic takes of the disk on each core."""
    return [
        RetentionView(
            topic=topic,
            core=core,
            **{name: row.values[RetentionFigure[name.upper()]] for name in RetentionView.__struct_fields__[2:]},
        )
        for topic, core, row in _retention_rows(regions)
    ]


def kept_lines(retention: Iterable[RetentionView]) -> list[str]:
    """One line for each topic and setting about data that no subscriber needs any more and that the setting keeps."""
    kept: dict[tuple[str, str], int] = {}
    held: dict[str, int] = {}
    for view in retention:
        if view.held_bytes:
            held[view.topic] = held.get(view.topic, 0) + view.held_bytes
        for setting, size_bytes in (("keep_for", view.keep_for_bytes), ("steady_state_headroom", view.headroom_bytes)):
            if size_bytes:
                kept[view.topic, setting] = kept.get((view.topic, setting), 0) + size_bytes
    return [
        f"{topic}: {format_size(size_bytes)} that every subscriber is done with, kept by retention.{setting}"
        for (topic, setting), size_bytes in kept.items()
    ] + [
        f"{topic}: {format_size(size_bytes)} of deleted segments that readers still have open: the disk has them until they let go"
        for topic, size_bytes in held.items()
    ]


def losses_of(regions: Sequence[RegionSnapshot]) -> list[LossView]:
    """Return deleted segments and lost bundles by topic, core and reason; reasons without any are left out."""
    found = [
        _loss(topic, core, row, reason)
        for topic, core, row in _retention_rows(regions)
        for reason in dict.fromkeys((*EVICTION_REASONS, *LOSS_REASONS))
    ]
    return [loss for loss in found if loss.evictions or loss.segments]


def _loss(topic: str, core: int, row: RowSnapshot, reason: str) -> LossView:
    def value(prefix: str) -> int:
        figure = RetentionFigure.__members__.get(f"{prefix}_{reason.upper()}")
        return 0 if figure is None else row.values[figure]

    return LossView(
        topic=topic,
        core=core,
        reason=reason,
        evictions=value("EVICTIONS"),
        segments=value("LOST_SEGMENTS"),
        bundles=value("LOST_BUNDLES"),
        rows=value("LOST_ROWS"),
        size_bytes=value("LOST_BYTES"),
    )


def _retention_rows(regions: Sequence[RegionSnapshot]) -> Iterable[tuple[str, int, RowSnapshot]]:
    for region in regions[SUPERVISOR_REGION + 1 :]:
        for row in _rows(region, RowKind.RETENTION):
            yield (*place_of(row.label, region.index - 1), row)


def _rows(region: RegionSnapshot, kind: int) -> Iterable[RowSnapshot]:
    return (row for row in region.rows if row.kind == kind)
