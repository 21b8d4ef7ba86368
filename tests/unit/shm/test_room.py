"""What the machine and its memory groups leave, read from made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.shm.room import available_bytes

GIB = 1 << 30
NO_LIMIT_V1 = str((1 << 63) - 4096)


def machine(root: Path, *, available_kib: int, groups: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:  99999999 kB\nMemAvailable:  {available_kib} kB\nHugePages_Total: 0\n"
    )
    (root / "proc/self/cgroup").write_text(groups)
    return root


def group(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text + "\n")


def version_2(limit: int | str, usage: int, inactive: int = 0, active: int = 0) -> dict[str, str]:
    stat = f"anon 1\nfile 999999999\ninactive_file {inactive}\nactive_file {active}"
    return {"memory.max": str(limit), "memory.current": str(usage), "memory.stat": stat}


def version_1(limit: int | str, usage: int, inactive: int = 0) -> dict[str, str]:
    stat = f"inactive_file 5\ntotal_inactive_file {inactive}\ntotal_active_file 0"
    return {"memory.limit_in_bytes": str(limit), "memory.usage_in_bytes": str(usage), "memory.stat": stat}


def test_room_without_groups_is_what_the_machine_has(tmp_path: Path) -> None:
    machine(tmp_path, available_kib=2048, groups="0::/\n")
    assert available_bytes(tmp_path) == 2048 * 1024


def test_room_is_the_smallest_of_all_enclosing_groups(tmp_path: Path) -> None:
    machine(tmp_path, available_kib=8 * GIB // 1024, groups="0::/pod/container\n")
    mount = tmp_path / "sys/fs/cgroup"
    group(mount / "pod", version_2(2 * GIB, GIB))
    group(mount / "pod/container", version_2("max", GIB))
    assert available_bytes(tmp_path) == GIB


def test_room_counts_file_cache_of_the_group_as_free(tmp_path: Path) -> None:
    machine(tmp_path, available_kib=8 * GIB // 1024, groups="0::/pod\n")
    group(tmp_path / "sys/fs/cgroup/pod", version_2(GIB, GIB, inactive=300, active=20))
    assert available_bytes(tmp_path) == 320


def test_room_in_a_container_is_read_at_the_mount(tmp_path: Path) -> None:
    """Inside a container the path of the group is the host's, or just /, while the mount shows the container's own group."""
    machine(tmp_path, available_kib=8 * GIB // 1024, groups="0::/../../host/path\n")
    group(tmp_path / "sys/fs/cgroup", version_2(GIB, 1000))
    assert available_bytes(tmp_path) == GIB - 1000


def test_room_of_version_1_groups(tmp_path: Path) -> None:
    listing = "9:name=systemd:/\n4:cpu,memory:/docker/1234\n3:cpuset:/\n"
    machine(tmp_path, available_kib=8 * GIB // 1024, groups=listing)
    mount = tmp_path / "sys/fs/cgroup/memory"
    group(mount, version_1(NO_LIMIT_V1, 5 * GIB))
    group(mount / "docker/1234", version_1(GIB, GIB // 2, inactive=100))
    assert available_bytes(tmp_path) == GIB // 2 + 100


def test_room_over_the_limit_is_none_left(tmp_path: Path) -> None:
    machine(tmp_path, available_kib=GIB // 1024, groups="0::/pod\n")
    group(tmp_path / "sys/fs/cgroup/pod", version_2(GIB, 2 * GIB))
    assert available_bytes(tmp_path) == 0


@pytest.mark.parametrize("listing", ["", "garbage\n", "0::/gone\n"])
def test_room_is_unknown_where_the_kernel_says_nothing(tmp_path: Path, listing: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(listing)
    assert available_bytes(tmp_path) is None


def test_room_on_this_machine_is_known() -> None:
    found = available_bytes()
    assert found is not None
    assert found > 0
