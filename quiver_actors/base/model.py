"""The nouns of Quiver: ids, receipts, durability, slot tables. Plain values, no I/O."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import NamedTuple

from quiver_actors.errors import InvalidId, UnknownSlot

SLOTS_MAX = 64
ENVELOPE_SLOT = 63
ENTRY_BODY_BYTES_MAX = 256 << 20
SEGMENT_BUNDLES_MAX = 65_535

DEFAULT_TOPIC = "default"
DEAD_LETTER_SUFFIX = "-dead"
"""Suffix of the topic that takes another topic's dead letters where the subscriber names no topic."""
ONLOOKER_PREFIX = "quiver-tail-"
"""Prefix of subscribers that only watch (`quiver tail`); a topic without other subscribers keeps everything."""
ARCHIVE_SUBSCRIBER = "quiver-archive"
"""The subscriber by which the archiver keeps from deletion what is not in the archive yet. It is nobody who needs bundles."""
ARCHIVER_CLIENT = "quiver/archiver"
"""The name by which the archiver's connections greet a worker. No other program has it: its own name has no slash."""

#: The slot names of a topic without a table of its own: those of the OpenTelemetry Arrow Protocol (OTAP).
OTAP_SLOTS: Mapping[str, int] = {
    "resource_attrs": 1,
    "scope_attrs": 2,
    "univariate_metrics": 10,
    "number_data_points": 11,
    "summary_data_points": 12,
    "histogram_data_points": 13,
    "exp_histogram_data_points": 14,
    "number_dp_attrs": 15,
    "summary_dp_attrs": 16,
    "histogram_dp_attrs": 17,
    "exp_histogram_dp_attrs": 18,
    "number_dp_exemplars": 19,
    "histogram_dp_exemplars": 20,
    "exp_histogram_dp_exemplars": 21,
    "number_dp_exemplar_attrs": 22,
    "histogram_dp_exemplar_attrs": 23,
    "exp_histogram_dp_exemplar_attrs": 24,
    "multivariate_metrics": 25,
    "metric_attrs": 26,
    "logs": 30,
    "log_attrs": 31,
    "spans": 40,
    "span_attrs": 41,
    "span_events": 42,
    "span_links": 43,
    "span_event_attrs": 44,
    "span_link_attrs": 45,
    "otlp_logs": 60,
    "otlp_traces": 61,
    "otlp_metrics": 62,
}

#: The slots of each signal in a topic without a table of its own. Attributes of resources and scopes belong to all of them.
OTAP_SIGNALS: Mapping[str, frozenset[int]] = {
    "logs": frozenset([30, 31, 60]),
    "metrics": frozenset([*range(10, 27), 62]),
    "traces": frozenset([*range(40, 46), 61]),
}

_ID = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
_RESERVED_IDS = frozenset(
    ["con", "prn", "aux", "nul", *(f"com{n}" for n in range(1, 10)), *(f"lpt{n}" for n in range(1, 10))]
)


def check_id(kind: str, value: str) -> str:
    """Return `value` if it may name a topic or a subscriber.

    Raises:
        InvalidId: wrong characters or length, or a device name that other systems reserve.
    """
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidId(f"{kind} id {value!r} is not allowed: expected 1 to 64 characters of A-Z a-z 0-9 _ -")
    if value.lower() in _RESERVED_IDS:
        raise InvalidId(f"{kind} id {value!r} is a reserved device name: choose another one")
    return value


class Durability(enum.IntEnum):
    """The promise of a receipt about a crash (docs/concepts.md, "Durability")."""

    OPEN_SEGMENT = 1
    """The bundle is in the open segment: a crash of the machine may lose it (`durability = "segment_only"`)."""
    WRITTEN = 2
    """Written to the log, synced by the flush timer: a crash of the machine may lose the last interval."""
    SYNCED = 3
    """A covering fdatasync is done: nothing is lost."""
    ARCHIVED = 4
    """Synced, and its segment is in the archive and recorded there: the loss of the disk loses nothing (`durability = "archived"`)."""


class BundleId(NamedTuple):
    """Where a bundle lives for ever: fixed when it is appended, before its segment is sealed."""

    topic: str
    core: int
    segment_seq: int
    bundle_index: int


class Receipt(NamedTuple):
    """The receipt that `push` returns: where the bundle is, and how durable."""

    bundle_id: BundleId
    sequence: int
    durability: Durability
    duplicate: bool = False
    """An idempotent producer had it stored before: this is where."""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from quiver_actors.base.notebook import facts_html  # Spark's registration loads as little as it can.

        facts = {**self.bundle_id._asdict(), "sequence": self.sequence, "durability": self.durability.name.lower()}
        return facts_html("Receipt", {**facts, "duplicate": True} if self.duplicate else facts)


class SlotTable:
    """Slot names of one topic and their ids (0..62). Immutable.

    An empty `declared` table means that the topic declares none: it then knows the OTAP names, takes any slot id, and its
    log carries the default `segment_cfg_hash`.
    """

    def __init__(self, declared: Mapping[str, int] | None = None) -> None:
        self.declared: dict[str, int] = dict(declared or {})
        for name, slot_id in self.declared.items():
            if not 0 <= slot_id < ENVELOPE_SLOT:
                raise UnknownSlot(f"slot {name!r} has id {slot_id}: expected 0..{ENVELOPE_SLOT - 1}")
        if len(set(self.declared.values())) != len(self.declared):
            raise UnknownSlot(f"two slots of the table share an id: {self.declared}")
        self._ids: Mapping[str, int] = self.declared or OTAP_SLOTS
        self._names = {slot_id: name for name, slot_id in self._ids.items()}

    def resolve(self, slot: str | int) -> int:
        """Turn a slot name or id into the id.

        Raises:
            UnknownSlot: the name is not in the table, or the id is outside 0..63 or not declared.
        """
        if isinstance(slot, str):
            found = self._ids.get(slot)
            if found is None:
                raise UnknownSlot(f"slot name {slot!r} is not in the topic's slot table: {self._expected_names(slot)}")
            return found
        if isinstance(slot, bool) or not isinstance(slot, int) or not 0 <= slot < SLOTS_MAX:
            raise UnknownSlot(f"slot id {slot!r} is outside 0..{SLOTS_MAX - 1}")
        if self.declared and slot not in self._names and slot != ENVELOPE_SLOT:
            raise UnknownSlot(f"slot id {slot} is not in the topic's slot table: expected one of {sorted(self._names)}")
        return slot

    def _expected_names(self, slot: str) -> str:
        if self.declared:
            return f"expected one of {sorted(self.declared)}, or a slot id"
        return (
            "it has none of its own, so expected a slot id (0 is that of a batch alone), or a name of OTAP such as 'logs'; a topic gets "
            f"names when it is created, as by `quiver topics create NAME slots={slot}=0`"
        )

    def name_of(self, slot_id: int) -> str | None:
        """The declared name of a slot id, None where the topic declares no table or no such slot."""
        return self._names.get(slot_id) if self.declared else None
