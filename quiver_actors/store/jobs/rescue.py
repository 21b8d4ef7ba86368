"""Rescue of a damaged segment: what can be proven of it is sealed again under its number (`rebuild`), what cannot is lost.

| the file was | proof of a bundle | rebuilt as |
|---|---|---|
| sealed in place | its log entry's CRC; the entries are still there | log with a new tail |
| compacted | its `bundle_crc32` in the manifest | contiguous segment |
| written by Rust, or both of its ends are unreadable | none | nothing: the whole segment is lost |

Lost bundles keep their numbers as rows without slots, also behind the last one that is left, as far as it is known how many there
were: from the footer, from progress files, from where the next segment begins. What the disk does not give back (EIO) counts as
damaged. The damaged file goes to quarantine/ as it is.

Order: the new file is complete and synced as `<segment>.rescued`; the damaged one is moved; the new one takes its name. After a
crash in between `finish_rescues` does the rest, so that at any time one of the two has the segment's name or is about to get it.

Blocking; runs on the seal thread.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.disk.salvage import SalvageReader
from quiver_actors.store.files.own_directory import OwnDirectory
from quiver_actors.store.files.paths import RESCUED_SUFFIX, TEMPORARY_SUFFIX, EnginePaths, names_beside
from quiver_actors.store.files.quarantine import move_to_quarantine
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.rebuild import Hints, count_bundles, rebuild
from quiver_actors.store.jobs.rebuild_compacted import Rebuilt
from quiver_actors.store.segment.check import is_plausible, run_to_end, verify_steps
from quiver_actors.store.segment.codec import FooterExtension
from quiver_actors.store.segment.reader import read_footer
from quiver_actors.supervisor.log import log_event


@dataclass(frozen=True, slots=True)
class Rescued:
    """Outcome of the rescue of a damaged segment."""

    info: SegmentInfo | None
    """The segment as it is in the new file; None: nothing of the segment is left."""
    lost: tuple[int, ...]
    """Bundles of the new file without slots."""
    bundle_count: int
    """How many bundles the segment had, at least."""
    is_end_known: bool
    """Whether the segment had no more bundles than `bundle_count`."""
    kept_as: str
    """Where the damaged file is now."""
    is_in_place: bool = True
    """Whether the new file has the segment's name."""
    is_count_proven: bool = False
    """Whether the sequences of the segments before and behind it prove `bundle_count`; looked at where nothing of it is left."""


class RescueJob(Job):
    """Rescues one damaged segment. `damage` says why; `bundle_count_min` is how many bundles it is known to have had, exactly or at least.

    `keeps_unprovable`: a file of which nothing can be proven stays where it is, for a caller that must first make durable who loses what;
    so does one of which nobody knows how many bundles it had, because the rebuilt file cannot say so: `SwapJob` puts that in its place.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        segment_seq: int,
        damage: str,
        bundle_count_min: int,
        cfg_hash: bytes,
        *,
        is_count_known: bool = False,
        keeps_unprovable: bool = False,
        own: OwnDirectory | None = None,
    ) -> None:
        """
        Args:
            own: the directory of a running engine; None: nobody uses it, and a file that cannot be opened is an error of the job.
        """
        super().__init__()
        self.strays = names_beside(segment_seq)
        self._disk = disk
        self._paths = paths
        self._cfg_hash = cfg_hash
        self._bundle_count_min = bundle_count_min
        self._is_count_known = is_count_known
        self._keeps_unprovable = keeps_unprovable
        self.segment_seq = segment_seq
        self.damage = damage
        self.rescued: Rescued | None = None
        """The result. None after a job without error or fault: somebody else has deleted the file."""
        self.fault = ""
        """Why the file cannot be looked at now; empty if it can."""
        self._own = own

    def work(self) -> None:
        """Save what can be proven of the segment; sets `rescued`, or leaves it None if the file is gone."""
        try:
            self._rescue()
        except DiskError as error:
            # Somebody may have deleted it, also while it was being read.
            if self._own is None or error.errno != errno.ENOENT or self._is_there(self._own):
                raise

    def _rescue(self) -> None:
        following = self._extension_of(self.segment_seq + 1)
        between, known = self._bundles_between(following), (self._bundle_count_min, following, self._is_count_known)
        hints = Hints(self.segment_seq, self._cfg_hash, *known, between)
        found = _Rescue(self._disk, self._paths, hints).run(self._keeps_unprovable)
        if found.info is None and 0 < found.bundle_count == between:
            found = replace(found, is_count_proven=True)
        self.rescued = found
        fields: dict[str, object] = {
            "path": self._paths.segment(self.segment_seq),
            "lost": len(found.lost) if found.info else "all",
            "of": found.bundle_count,
            "kept": found.kept_as,
            "reason": self.damage,
        }
        log_event("segment.damage", fields, logging.WARNING)

    def _is_there(self, own: OwnDirectory) -> bool:
        try:
            return not own.lost_among([self.segment_seq])
        except DiskError as error:
            self.fault = str(error)
            return False

    def _bundles_between(self, following: FooterExtension | None) -> int:
        """How many bundles the segments with the numbers before and behind leave room for; 0 if one of them is not there. Before number 0
        there was nothing."""
        before = None if following is None else self._extension_of(self.segment_seq - 1)
        if following is None or (before is None and self.segment_seq):
            return 0
        if before is not None and before.incarnation != following.incarnation:
            return 0
        bundle_count = following.first_sequence - (0 if before is None else before.last_sequence + 1)
        return bundle_count if 0 < bundle_count <= SEGMENT_BUNDLES_MAX else 0

    def _extension_of(self, segment_seq: int) -> FooterExtension | None:
        path = self._paths.segment(segment_seq)
        if segment_seq < 0 or not self._disk.exists(path):
            return None
        file = self._disk.open_read(path)
        try:
            footer = read_footer(SalvageReader(file).read, file.size())
            return footer.extension if is_plausible(footer) else None
        except FormatError:
            return None
        finally:
            file.close()


class SwapJob(Job):
    """The second half of a rescue whose first half kept the damaged file where it was."""

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int, rescued: Rescued) -> None:
        super().__init__()
        self.strays = names_beside(segment_seq)
        self._disk = disk
        self._paths = paths
        self.segment_seq = segment_seq
        self.rescued = rescued

    def work(self) -> None:
        """Move the damaged file to quarantine and give the rescued one its name."""
        _swap(self._disk, self._paths, self.segment_seq)


def finish_rescues(disk: Disk, paths: EnginePaths, names: Iterable[str]) -> None:
    """Give rebuilt segments their names where the damaged file has been moved already; drop the others, to be made again.

    Args:
        names: the file names of rebuilt segments.
    """
    for name in names:
        path = f"{paths.segments}/{name}"
        target = path.removesuffix(RESCUED_SUFFIX)
        if disk.exists(target):
            disk.unlink(path)
        else:
            disk.rename(path, target)
        disk.sync_directory(paths.segments)


class _Rescue:
    """One rescue of one segment."""

    def __init__(self, disk: Disk, paths: EnginePaths, hints: Hints) -> None:
        self._disk = disk
        self._paths = paths
        self._hints = hints
        self._temporary = _temporary(paths, hints.segment_seq)

    def run(self, keeps_unprovable: bool) -> Rescued:
        path = self._paths.segment(self._hints.segment_seq)
        source = self._disk.open_read(path)
        try:
            salvaged = SalvageReader(source)
            found = self._write_rebuilt(salvaged)
            bundle_count = count_bundles(salvaged.read, salvaged.size_bytes, self._hints)
        finally:
            source.close()
        if found is None:
            self._disk.unlink(self._temporary)
            kept_as = path if keeps_unprovable else move_to_quarantine(self._disk, self._paths, path)
            return Rescued(None, (), bundle_count, bundle_count > 0, kept_as)
        is_in_place = found.is_end_known or not keeps_unprovable
        kept_as = _swap(self._disk, self._paths, self._hints.segment_seq) if is_in_place else path
        return Rescued(found.info, found.lost, found.info.bundle_count, found.is_end_known, kept_as, is_in_place)

    def _write_rebuilt(self, source: SalvageReader) -> Rebuilt | None:
        """The new file under its temporary name, synced and read back; None if nothing can be proven."""
        file = self._disk.create(self._temporary)
        try:
            found = rebuild(source.read, source.size_bytes, file, self._hints)
            if found is not None:
                file.fsync()
                run_to_end(verify_steps(file.read, found.info.size_bytes))
            return found
        except FormatError as error:
            # It would not get better by another try, and there must be an end: the damaged file is kept all the same.
            fields: dict[str, object] = {"path": self._paths.segment(self._hints.segment_seq), "reason": str(error)}
            log_event("segment.rescue_failed", fields, logging.ERROR)
            return None
        except DiskError:
            file.close()
            self._disk.unlink(self._temporary)
            raise
        finally:
            file.close()


def _temporary(paths: EnginePaths, segment_seq: int) -> str:
    """Path of the rebuilt file while it is being written."""
    return paths.rescued(segment_seq) + TEMPORARY_SUFFIX


def _swap(disk: Disk, paths: EnginePaths, segment_seq: int) -> str:
    """Put the new file in the damaged one's place. Returns where the damaged one is now."""
    path, rescued = paths.segment(segment_seq), paths.rescued(segment_seq)
    disk.rename(_temporary(paths, segment_seq), rescued)
    disk.sync_directory(paths.segments)
    # Somebody may have deleted the damaged file meanwhile.
    kept_as = move_to_quarantine(disk, paths, path) if disk.exists(path) else ""
    disk.rename(rescued, path)
    disk.sync_directory(paths.segments)
    file = disk.open_read(path)
    try:
        file.make_read_only()
    finally:
        file.close()
    return kept_as
