"""A look at the gap notices of a subscriber. The file is read whole, and as far as it goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver_actors.errors import FormatError
from quiver_actors.store.format.framing import CRC
from quiver_actors.store.inspection.fields import Structure
from quiver_actors.store.inspection.findings import Finding, damage
from quiver_actors.store.inspection.small_files import BYTES_MAX, newer_version
from quiver_actors.store.inspection.source import Source
from quiver_actors.store.inspection.views import GapNoticeView, GapsView
from quiver_actors.store.subscriber.gaps import (
    FLAG_TOLD,
    GAPS,
    GAPS_TABLE,
    REASONS,
    RECORD_TABLE,
    decode_gaps,
    gaps_subscriber_of,
)

_ACTION = "start the node, or run `quiver repair`: the file goes to quarantine/, and the subscriber is not told of the losses that it named"


@dataclass(slots=True)
class GapsLook:
    """Result of looking at a gap file: the view to show and the findings."""

    view: GapsView
    findings: list[Finding] = field(default_factory=list)


def examine_gaps(source: Source, *, limit: int) -> GapsLook:
    """Look at a gap file.

    Args:
        limit: how many notices to show.
    """
    data = source.read(BYTES_MAX, 0)
    header = Structure("gaps.header", data, 0, GAPS_TABLE)
    is_sealed = len(data) >= GAPS_TABLE.size + CRC.size and GAPS.checksum_of(data) is not None
    look = GapsLook(GapsView(header=header.fields, subscriber=gaps_subscriber_of(source.name)))
    look.view.checksum = "CRC-32C" if is_sealed else "wrong"
    if header.is_whole:
        look.view.notice_count = header["record_count"]
        look.view.notices = _notices(data, header, limit)
    if is_sealed and GAPS.is_newer(data):
        look.findings.append(newer_version(source, "gaps.version", header.field("version")))
        return look
    look.findings += header.damage(source.path, _ACTION)
    if not is_sealed and header.is_whole:
        look.findings.append(_wrong_checksum(source, data))
    try:
        decode_gaps(data)
    except FormatError as error:
        if not look.findings:
            look.findings.append(damage("gaps.record", source.path, GAPS_TABLE.size, str(error), _ACTION))
    return look


def _wrong_checksum(source: Source, data: bytes) -> Finding:
    end = len(data) - CRC.size
    if end < GAPS_TABLE.size:
        message, there = "gap file ends too early", f"{len(data)} bytes"
        return damage("gaps.checksum", source.path, len(data), message, _ACTION, "a checksum", there)
    expected, stored = (f"{value:#010x}" for value in (GAPS.checksums[0](data[:end]), *CRC.unpack(data[end:])))
    message = "gap file: not the CRC-32C of its contents"
    return damage("gaps.checksum", source.path, end, message, _ACTION, expected, stored)


def _notices(data: bytes, header: Structure, limit: int) -> list[GapNoticeView]:
    """Return the first notices whose records the file holds."""
    start = header["header_size"]
    there = max(0, len(data) - CRC.size - start) // RECORD_TABLE.size
    count = min(header["record_count"], there, limit)
    return [_notice(data, start + number * RECORD_TABLE.size) for number in range(count)]


def _notice(data: bytes, at: int) -> GapNoticeView:
    record = RECORD_TABLE.unpack(data, at)
    reason, flags = record.pop("reason"), record.pop("flags")
    return GapNoticeView(
        offset=at,
        reason=REASONS[reason] if reason < len(REASONS) else f"unknown ({reason})",
        is_told=bool(flags & FLAG_TOLD),
        **record,
    )
