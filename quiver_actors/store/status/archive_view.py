"""The archiver in the status document: what it says of itself in the run directory, and how far each topic is behind."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiver_actors.base.archive_status import ArchiveStatus, read_archive_status
from quiver_actors.base.units import format_duration, format_size


class ArchiveView(msgspec.Struct, kw_only=True):
    """The archiver as a whole."""

    url: str
    state: str
    """`starting`, `archiving`, `waiting`, `refused` or `fenced`; see `base.archive_status`."""
    working: int
    """1 where the last attempt succeeded, else 0."""
    error: str
    age_ns: int
    """How long ago the archiver said this."""
    epoch: int
    uploaded_segments: int
    uploaded_bytes: int
    merged_segments: int
    error_count: int
    cached_bytes: int
    """Fetched blocks of archived segments that are kept in the data directory for clients."""


class ArchiveStreamView(msgspec.Struct, kw_only=True):
    """One topic on one core."""

    topic: str
    core: int
    lag_segments: int
    lag_bytes: int
    lag_age_ns: int
    archived_through: int


class ArchiveViews(msgspec.Struct, kw_only=True):
    """The archiver of a run directory, and its topics; both empty where none runs."""

    archives: list[ArchiveView] = []
    archive_streams: list[ArchiveStreamView] = []

    def warnings(self) -> list[str]:
        """A line for each archiver that cannot work."""
        return [
            f"archive {each.state}: {each.error or each.url}"
            for each in self.archives
            if each.state in ("waiting", "refused", "fenced")
        ]


def archive_of(run_dir: str, unix_ns: int) -> ArchiveViews:
    """What the archiver of a run directory says of itself."""
    status = read_archive_status(run_dir)
    if status is None:
        return ArchiveViews()
    return ArchiveViews(archives=[_whole(status, unix_ns)], archive_streams=_streams(status, unix_ns))


def _whole(status: ArchiveStatus, unix_ns: int) -> ArchiveView:
    return ArchiveView(
        url=status.url,
        state=status.state,
        working=int(status.state == "archiving"),
        error=status.error,
        age_ns=max(0, unix_ns - status.updated_unix_ns),
        epoch=status.epoch,
        uploaded_segments=status.uploaded_segments,
        uploaded_bytes=status.uploaded_bytes,
        merged_segments=status.merged_segments,
        error_count=status.error_count,
        cached_bytes=status.cached_bytes,
    )


def _streams(status: ArchiveStatus, unix_ns: int) -> list[ArchiveStreamView]:
    found = [
        ArchiveStreamView(
            topic=each.topic,
            core=each.core,
            lag_segments=each.lag_segments,
            lag_bytes=each.lag_bytes,
            lag_age_ns=_age_ns(each.oldest_unix_ns, unix_ns),
            archived_through=each.archived_through,
        )
        for each in status.streams
    ]
    return sorted(found, key=lambda each: (-each.lag_bytes, each.topic, each.core))


def _age_ns(oldest_unix_ns: int, unix_ns: int) -> int:
    return max(0, unix_ns - oldest_unix_ns) if oldest_unix_ns else 0


def archive_lines(archives: Sequence[ArchiveView], streams: Sequence[ArchiveStreamView]) -> str:
    """The section of `quiver status`; empty without an archive."""
    segments, size_bytes = sum(each.lag_segments for each in streams), sum(each.lag_bytes for each in streams)
    oldest = format_duration(max((each.lag_age_ns for each in streams), default=0))
    return "\n".join(
        f"ARCHIVE  {each.state}  {each.url}  {each.uploaded_segments:,} segments ({format_size(each.uploaded_bytes)}) since its start, "
        f"{each.merged_segments:,} merged, {segments:,} ({format_size(size_bytes)}) to go, oldest {oldest}, {each.error_count:,} errors, "
        f"{format_size(each.cached_bytes)} cached"
        for each in archives
    )
