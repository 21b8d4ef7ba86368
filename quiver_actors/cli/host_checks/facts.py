"""Facts about this machine that the judgement needs. Structs only."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, kw_only=True):
    """Resource limits of this process; None means unlimited."""

    open_files: int | None
    open_files_max: int | None
    """Hard limit, which the soft limit may be raised to."""
    locked_memory_bytes: int | None
    file_size_bytes: int | None
    memfd_error: str | None
    """Why memory cannot be shared, None when it can."""


class Memory(msgspec.Struct, kw_only=True):
    """Shared and main memory that a node could use, in bytes."""

    shm_size_bytes: int
    shm_free_bytes: int
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int
    available_bytes: int


class Processor(msgspec.Struct, kw_only=True):
    """Cores that this process may use."""

    allowed_cores: int
    quota_cores: float | None
    """Cores that the control group lets this process use on average."""


class Storage(msgspec.Struct, kw_only=True):
    """The file system below the data directory, tried out in a directory that was removed afterwards."""

    path: str
    kind: str
    """File system type as the kernel names it: `ext4`, `nfs4`, ..."""
    options: list[str]
    free_bytes: int
    size_bytes: int
    probe_error: str | None = None
    """Reason why nothing could be tried; None if it could."""
    broken: list[str] = []
    """Operations that misbehaved: `allocate`, `rename`, `mode`, `lock`, `sync_directory`."""
    sync_ns_median: int = 0
    sync_ns_p99: int = 0


class Place(msgspec.Struct, kw_only=True):
    """A directory that a node uses, or the nearest one above it that exists."""

    path: str
    exists: bool
    is_symlink: bool
    owner_uid: int
    mode: int
    is_writable: bool
    shared_above: str | None
    """A directory above that others may change without the sticky bit."""


class Software(msgspec.Struct, kw_only=True):
    """Versions of Python, packages and Java."""

    python: tuple[int, int]
    packages: dict[str, str]
    """Versions of what is installed."""
    java: int
    """Feature version, 0 when there is none."""
    has_java_wheel: bool
    unusable_java_home: str = ""
    """JAVA_HOME, where it is set and no Java for Spark is there."""


class Clock(msgspec.Struct, kw_only=True):
    """The wall clock, and whether it can be right."""

    unix_ns: int
    installed_unix_ns: int
    """When this package was installed: no right clock shows less."""
    is_synchronised: bool | None
    """None when the kernel does not say."""


class Session(msgspec.Struct, kw_only=True):
    """The user, and what the machine does with its shared memory at logout."""

    uid: int
    removes_ipc: bool
    """Logging out removes this user's shared memory (logind's RemoveIPC)."""
    node_version: str | None
    """Version of the node that runs in the run directory, None when none does."""


class Facts(msgspec.Struct, kw_only=True):
    """All facts together. `cores` and `arena_bytes` are the node's settings."""

    cores: int
    arena_bytes: int
    min_free_bytes: int
    limits: Limits
    memory: Memory
    processor: Processor
    storage: Storage
    data_dir: Place
    run_dir: Place
    software: Software
    clock: Clock
    session: Session
    archive_url: str = ""
    archive_error: str = ""
    """The reason for which the archive's object store cannot be written; empty where it can, or where there is no archive."""
    cold_errors: list[str] = []
    """Sentences about cores of topics whose cold disk is not there, or is another data directory's."""
