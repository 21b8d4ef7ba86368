"""A disk in memory that knows what is durable: for tests of everything that writes through the disk seam.

Reads show everything that was written. `crash` gives the disk as a power loss (or a killed process) would leave it at this moment;
`crashes` has the rules. Nothing else ever becomes durable than what was synced.

Owner: any thread; each call is atomic. Files hold their bytes in memory; what was only allocated costs nothing.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from random import Random

import xxhash

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.held import HeldFile
from tests.disks.crashes import (
    CrashMode,
    FileImage,
    NameChange,
    apply_names,
    split_synced,
    surviving_names,
)
from tests.disks.names import Names
from tests.disks.paths import ROOT, normal_path, parent_of, parents_of
from tests.disks.simulated_files import BLOCK_BYTES, Directory, Inode, SimFile, SimHeldFile, SimLock, blocks_of, crashed

_UNLIMITED_BYTES = 1 << 50


UNUSED = Random(0)
"""Generator for places where nothing is left to chance."""


class SimDisk:
    """A disk in memory that implements `protocol.Disk` and knows what is durable.

    Args:
        capacity_bytes: blocks that all files together may take, None for no limit.
        no_space_errno: what running out of it is called: ENOSPC or EDQUOT.
        pause_in_sync: called in the middle of each sync of a file, where other threads may write: only what was written before
            the sync began becomes durable by it.
        shows_descriptors: files have one, for who hands them on to other processes.

    A file that was made read-only cannot be opened for writing again, as for any user but root.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        no_space_errno: int = errno.ENOSPC,
        pause_in_sync: Callable[[], None] = lambda: None,
        shows_descriptors: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.no_space_errno = no_space_errno
        self.pause_in_sync = pause_in_sync
        self.shows_descriptors = shows_descriptors
        self.mutex = threading.RLock()  # the end of a forgotten file comes at any moment, also inside of a call
        self._durable: dict[str, object] = {ROOT: Directory()}
        self._pending: list[NameChange] = []
        self._names = Names(self._durable)
        self._open_inodes: dict[int, Inode] = {}
        self._given: list[Inode] = []
        """Files that guests have, or have had."""

    # --- crashes ---------------------------------------------------------------------------------------------------------

    def crash(self, mode: CrashMode, seed: int = 0) -> SimDisk:
        """The disk as the next process finds it after a crash now. The same arguments give the same disk; this one is left alone.

        Nothing is open or locked on it. After a power loss nothing is pending either; after a mere kill (KEEP) all that was
        pending still is, and the next crash may take it.
        """
        if mode is CrashMode.KEEP:
            return self.copy()
        with self.mutex:
            is_chance = mode is not CrashMode.DROP and self.has_pending
            random = Random(f"{mode.value} {seed}") if is_chance else UNUSED  # to make one takes longer than the rest
            names = apply_names(self._durable, surviving_names(self._pending, mode, random))
            left = self._like_this()
            kept, files = left._durable, dict[int, Inode]()
            for path in sorted(names):
                node = names[path]
                if parent_of(path) not in kept:  # parents come first
                    continue
                if isinstance(node, Inode):
                    # One file may have two names.
                    found = files.get(id(node))
                    node = found or files.setdefault(id(node), crashed(node, mode, random))
                kept[path] = node
        left._names = Names(kept)
        return left

    @property
    def has_pending(self) -> bool:
        """Whether anything of what is to be seen would not survive every crash."""
        with self.mutex:
            return bool(self._pending) or any(node.pending for _, node in self._files())

    def copy(self) -> SimDisk:
        """The same disk at the same moment, with all that is pending, but nothing open or locked."""
        with self.mutex:
            nodes = [*self._durable.values(), *self._names.values()]
            nodes += [node for change in self._pending for _, node in change.names if node is not None]
            distinct = {id(node): node for node in nodes}
            distinct |= {id(node): node for node in self._kept_by_guests()}
            outlives = self.shows_descriptors
            copies = {
                key: node.copy(outlives=outlives) if isinstance(node, Inode) else node for key, node in distinct.items()
            }
            twin = self._like_this()
            twin._durable = {path: copies[id(node)] for path, node in self._durable.items()}
            twin._names = Names((path, copies[id(node)]) for path, node in self._names.items())
            twin._pending = [change.mapped(copies) for change in self._pending]
            twin._given = [copied for node in self._kept_by_guests() if isinstance(copied := copies[id(node)], Inode)]
        return twin

    def _like_this(self) -> SimDisk:
        return SimDisk(
            capacity_bytes=self.capacity_bytes,
            no_space_errno=self.no_space_errno,
            shows_descriptors=self.shows_descriptors,
        )

    def flip_bit(self, path: str, offset: int, bit: int) -> bool:
        """Flip a bit of a file that is durable, under everybody who has it open or mapped; False where something of it waits for a sync."""
        with self.mutex:
            inode = self._inode("flip", path)
            if inode.pending or offset >= len(inode.durable.data):
                return False
            inode.flip_bit(offset, bit)
            return True

    def contents(self) -> dict[str, bytes]:
        """Every file and its bytes, as a reader sees them now. Trailing zeroes count."""
        with self.mutex:
            return {path: node.read(node.size, 0) for path, node in sorted(self._files())}

    def fingerprint(self) -> int:
        """64 bits that are equal for disks that show the same to a reader, in any process."""
        digest = xxhash.xxh3_64()
        with self.mutex:
            for path in sorted(self._names):
                node = self._names[path]
                digest.update(path.encode())
                if isinstance(node, Inode):
                    data = node.data
                    if data[-1:] == b"\0":
                        data = data.rstrip(b"\0")
                    digest.update(b"\0%d %d %d\0" % (node.size, node.read_only, len(data)))
                    digest.update(data)
        return digest.intdigest()

    def _files(self) -> Iterator[tuple[str, Inode]]:
        return ((path, node) for path, node in self._names.items() if isinstance(node, Inode))

    # --- space -----------------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Blocks of all files that have a name or are open."""
        held = {*self._names.values(), *self._open_inodes.values(), *self._kept_by_guests()}
        return sum([node.allocated_bytes for node in held if isinstance(node, Inode)])

    def give(self, descriptor: int, guest: object) -> set[object] | None:
        """Note that a guest has the file that a descriptor shows. Returns the guests who have it, whom it leaves by taking itself out;
        None: no file of this disk is shown by it."""
        with self.mutex:
            for node in self._names.values():
                if isinstance(node, Inode) and node.is_shown_by(descriptor):
                    node.guests.add(guest)
                    self._given.append(node)
                    return node.guests
        return None

    def take_back(self, path: str) -> None:
        """No guest has the file at that path any more: a test is about to put another one into its place."""
        with self.mutex:
            self._inode("unlink", path).guests.clear()

    def guests_of(self, path: str) -> set[object]:
        """Guests who have a file open; whoever adds itself has it until it takes itself out."""
        with self.mutex:
            inode = self._inode("open", path)
            self._given.append(inode)
            return inode.guests

    def _kept_by_guests(self) -> list[Inode]:
        self._given = [node for node in self._given if node.guests]
        return self._given

    def hoarded_bytes(self) -> int:
        """Blocks of deleted files that guests have."""
        with self.mutex:
            kept = {id(node): node for node in self._kept_by_guests()}
            for path, node in self._files():
                if "/held/" not in path:
                    kept.pop(id(node), None)
            return sum(node.allocated_bytes for node in kept.values())

    def reserve(self, inode: Inode, size_bytes: int) -> int:
        """Take blocks so that the file holds `[0, size_bytes)`; returns the size up to which it can. For `SimFile`."""
        wanted = blocks_of(size_bytes)
        if wanted <= inode.allocated_bytes:
            return size_bytes
        if self.capacity_bytes is not None:
            free = max(0, self.capacity_bytes - self.used_bytes)
            wanted = min(wanted, inode.allocated_bytes + free // BLOCK_BYTES * BLOCK_BYTES)
        inode.allocated_bytes = wanted
        return min(size_bytes, wanted)

    # --- the seam --------------------------------------------------------------------------------------------------------

    def create(self, path: str) -> SimFile:
        with self.mutex:
            if self._node(path) is not None:
                self._check_writable("create", self._inode("create", path), path)
                self._change_names(((path, None),), parent_of(path))
            return self.opened(self._new_file("create", path), path, is_writable=True)

    def _new_file(self, operation: str, path: str) -> Inode:
        self._check_parent(operation, path, path)
        inode = Inode(FileImage())
        self._change_names(((path, inode),), parent_of(path))
        return inode

    def open_write(self, path: str) -> SimFile:
        with self.mutex:
            inode = self._inode("open", path)
            self._check_writable("open", inode, path)
            return self.opened(inode, path, is_writable=True)

    def open_read(self, path: str) -> SimFile:
        with self.mutex:
            return self.opened(self._inode("open", path), path, is_writable=False)

    def opened(self, inode: Inode, path: str, *, is_writable: bool) -> SimFile:
        inode.open_count += 1
        self._open_inodes[id(inode)] = inode
        return SimFile(self, inode, path, is_writable=is_writable)

    def closed(self, inode: Inode) -> None:
        """One descriptor less. For `SimFile`."""
        inode.open_count -= 1
        if not inode.open_count:
            del self._open_inodes[id(inode)]

    def is_named(self, inode: Inode) -> bool:
        """Whether a name leads to the file now. For `SimFile`."""
        return self.name_count(inode) > 0

    def name_count(self, inode: Inode) -> int:
        """How many names lead to the file now. For files."""
        return sum(node is inode for node in self._names.values())

    def rename(self, source: str, target: str) -> None:
        with self.mutex:
            operation, both = "rename", f"{source} to {target}"
            if self._node(source) is None:
                raise DiskError(operation, both, errno.ENOENT)
            self._check_parent(operation, target, both)
            if isinstance(self._node(source), Directory):
                self._rename_directory(normal_path(source), normal_path(target), both)
                return
            inode = self._inode(operation, source)
            if isinstance(self._node(target), Directory):
                raise DiskError(operation, both, errno.EISDIR)
            if source != target:
                self._change_names(((source, None), (target, inode)), parent_of(target))

    def _rename_directory(self, source: str, target: str, both: str) -> None:
        """Rename a directory with everything below it, in one step."""
        if self._node(target) is not None:
            raise DiskError("rename", both, errno.EEXIST)
        inside = [(path, node) for path, node in self._names.items() if path == source or path.startswith(source + "/")]
        gone = [(path, None) for path, _ in inside]
        come = [(target + path.removeprefix(source), node) for path, node in inside]
        self._change_names((*gone, *come), parent_of(target))

    def link(self, source: str, target: str) -> None:
        with self.mutex:
            operation, both = "link", f"{source} to {target}"
            inode = self._inode(operation, source)
            self._check_parent(operation, target, both)
            if self._node(target) is not None:
                raise DiskError(operation, both, errno.EEXIST)
            self._change_names(((target, inode),), parent_of(target))

    def unlink(self, path: str) -> None:
        with self.mutex:
            if self._node(path) is not None:
                self._inode("unlink", path)
                self._change_names(((path, None),), parent_of(path))

    def make_directory(self, path: str, *, needs_parent: bool = False) -> None:
        with self.mutex:
            if needs_parent:
                self._check_parent("mkdir", path, path)
            missing = [part for part in [*parents_of(path), path] if self._node(part) is None]
        for part in missing:
            with self.mutex:
                self._change_names(((part, Directory()),), parent_of(part))
            self.sync_directory(parent_of(part))

    def list_directory(self, path: str) -> list[str]:
        with self.mutex:
            node = self._node(path)
            if node is not None and not isinstance(node, Directory):
                raise DiskError("list", path, errno.ENOTDIR)
            return self._names.inside(normal_path(path))

    def sync_directory(self, path: str) -> None:
        with self.mutex:
            self._check_directory("fsync", path)
            synced, self._pending = split_synced(self._pending, normal_path(path))
            if synced:
                self._durable = apply_names(self._durable, synced)

    def exists(self, path: str) -> bool:
        with self.mutex:
            return self._node(path) is not None

    def file_id(self, path: str) -> tuple[int, int] | None:
        with self.mutex:
            node = self._node(path)
            return (0, node.id) if isinstance(node, Inode | Directory) else None

    def is_directory(self, path: str) -> bool:
        """Beside the seam, for tests that look around."""
        with self.mutex:
            return isinstance(self._node(path), Directory)

    def allocated_bytes(self, path: str) -> int:
        with self.mutex:
            node = self._node(path)
            return node.allocated_bytes if isinstance(node, Inode) else 0

    def keep(self, path: str) -> HeldFile | None:
        """No other process has a file of this disk unless `shows_descriptors` is set."""
        with self.mutex:
            node = self._node(path)
            return SimHeldFile(self, node) if self.shows_descriptors and isinstance(node, Inode) else None

    def free_bytes(self, path: str) -> int:
        with self.mutex:
            self._check_directory("statvfs", path)
            if self.capacity_bytes is None:
                return _UNLIMITED_BYTES
            return max(0, self.capacity_bytes - self.used_bytes)

    def lock(self, path: str, wait_seconds: float = 0.0) -> SimLock | None:
        with self.mutex:
            if self._node(path) is None:
                self._new_file("lock", path)
            inode = self._inode("lock", path)
            if inode.is_locked:
                return None
            inode.is_locked = True
            return SimLock(inode)

    # --- names -----------------------------------------------------------------------------------------------------------

    def _node(self, path: str) -> object | None:
        return self._names.get(normal_path(path))

    def _inode(self, operation: str, path: str) -> Inode:
        node = self._node(path)
        if isinstance(node, Inode):
            return node
        raise DiskError(operation, path, errno.ENOENT if node is None else errno.EISDIR)

    def _check_directory(self, operation: str, path: str) -> None:
        node = self._node(path)
        if not isinstance(node, Directory):
            raise DiskError(operation, path, errno.ENOENT if node is None else errno.ENOTDIR)

    def _check_parent(self, operation: str, path: str, shown: str) -> None:
        parent = self._names.get(parent_of(path))
        if not isinstance(parent, Directory):
            raise DiskError(operation, shown, errno.ENOENT if parent is None else errno.ENOTDIR)

    def _check_writable(self, operation: str, inode: Inode, path: str) -> None:
        if inode.read_only:
            raise DiskError(operation, path, errno.EACCES)

    def _change_names(self, names: tuple[tuple[str, object | None], ...], directory: str) -> None:
        change = NameChange(tuple([(normal_path(path), node) for path, node in names]), directory)
        self._names.change(change.names)
        self._pending.append(change)
