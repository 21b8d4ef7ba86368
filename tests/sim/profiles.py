"""Kinds of runs of `world`: each with the settings of its topic, and with how likely what is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quiver_actors.base.config import RetentionSettings, SegmentSettings, TopicSettings, WalSettings
from quiver_actors.base.units import MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of run: the topic's settings and how likely what is."""

    name: str
    settings: TopicSettings
    big_share: float = 0.03
    fills_disk: bool = False
    ages: bool = False
    """Minutes and days go by, so that segments are compacted and scrubbed; many dictionaries make that pay."""
    operations: int = 60
    evicts: bool = False
    transacts: bool = False
    """Bundles are staged too; in runs with an odd seed nothing else is pushed."""
    keyed_share: float = 0.15
    """Share of the pushes made by idempotent producers. Without these, no push holds many bundles of one schema either."""


def _profile(
    name: str,
    big_share: float = 0.03,
    fills_disk: bool = False,
    ages: bool = False,
    evicts: bool = False,
    transacts: bool = False,
    keyed_share: float = 0.15,
    **changes: Any,
) -> Profile:
    segment = {"target_size_bytes": 6_000} | {k[8:]: v for k, v in changes.items() if k.startswith("segment_")}
    wal = {k[4:]: v for k, v in changes.items() if k.startswith("wal_")}
    rest = {k: v for k, v in changes.items() if not k.startswith(("segment_", "wal_"))}
    settings = TopicSettings(name="topic", segment=SegmentSettings(**segment), wal=WalSettings(**wal), **rest)
    operations = 140 if transacts else 60
    return Profile(name, settings, big_share, fills_disk, ages, operations, evicts, transacts, keyed_share)


PROFILES = (
    _profile("size", keyed_share=0.0, retention=RetentionSettings(quarantine_cap_bytes=0)),
    _profile("timer", wal_flush_interval_ns=25 * MILLISECOND_NS),
    _profile("streams", segment_max_stream_count=2, segment_target_size_bytes=40_000),
    _profile("segment_only", durability="segment_only"),
    _profile("bundles", segment_max_bundle_count=4, segment_target_size_bytes=40_000),
    _profile("big", big_share=0.4),
    # Large enough that a log gets more blocks than it has at first.
    _profile("age", big_share=0.3, segment_max_open_duration_ns=30 * MILLISECOND_NS, segment_target_size_bytes=300_000),
    _profile("lag", wal_max_rotated_files=1, segment_target_size_bytes=2_000),
    _profile("full", keyed_share=0.0, fills_disk=True, segment_target_size_bytes=3_000),
    _profile(
        "evict",
        keyed_share=0.0,
        evicts=True,
        fills_disk=True,
        segment_target_size_bytes=2_000,
        retention=RetentionSettings(
            size_cap_policy="drop_oldest", steady_state_headroom_bytes=6_000, keep_for_ns=500 * MILLISECOND_NS
        ),
    ),
    _profile("upkeep", keyed_share=0.0, ages=True, big_share=0.0, segment_target_size_bytes=20_000),
    _profile("transactions", transacts=True, retention=RetentionSettings(keep_for_ns=100 * MILLISECOND_NS)),
    _profile("segment_only transactions", transacts=True, durability="segment_only"),
    _profile(
        "full transactions",
        transacts=True,
        evicts=True,
        fills_disk=True,
        segment_target_size_bytes=3_000,
        retention=RetentionSettings(size_cap_policy="drop_oldest", steady_state_headroom_bytes=12_000),
    ),
    _profile("producers", keyed_share=0.8, segment_target_size_bytes=4_000),
)
