"""What the list of cold segments says, for whoever compares the files of one engine: nothing is read of the cold disk."""

from __future__ import annotations

from collections.abc import Mapping

from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.files.cold_list import COLD_LIST_BYTES_MAX, ColdEntry, decode_cold_list
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.inspection.views import SegmentView
from quiver_actors.store.segment.codec import decode_footer


def cold_segments(disk: Disk, paths: EnginePaths) -> Mapping[int, ColdEntry]:
    """The segments that the list names; none where there is no list, or it cannot be read."""
    try:
        return decode_cold_list(read_whole(disk, paths.cold, COLD_LIST_BYTES_MAX)).segments
    except (DiskError, FormatError):
        return {}


def cold_views(disk: Disk, paths: EnginePaths) -> Mapping[int, SegmentView]:
    """The same as views of segments, as far as the list tells."""
    found = {}
    for segment_seq, entry in cold_segments(disk, paths).items():
        try:
            footer = decode_footer(entry.end, entry.size_bytes)
        except FormatError:
            continue
        view = found[segment_seq] = SegmentView(bundle_count=footer.bundle_count)
        if footer.extension is not None:
            view.row_count = footer.extension.row_count
            view.first_sequence = footer.extension.first_sequence
            view.last_sequence = footer.extension.last_sequence
            view.position_start = footer.extension.wal_position_start
            view.position_end = footer.extension.wal_position_end
            view.incarnation = footer.extension.incarnation.hex()
    return found
