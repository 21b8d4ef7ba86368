"""Facts of this machine, where this machine can tell whether they are right."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from quiver_actors.base.config import NodeArchiveSettings, NodeSettings
from quiver_actors.cli.host_checks.archive_check import archive_error
from quiver_actors.cli.host_checks.gathering import gather, mount_of, nearest_existing
from quiver_actors.store.objects.opening import open_store

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:26 / /mnt/data rw,noatime shared:2 - xfs /dev/sdb rw,nobarrier
31 22 0:27 / /mnt/with\\040space rw - nfs4 host:/x rw
32 30 0:28 / /mnt/data rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/mnt", "ext4"),
        ("/mnt/database", "ext4"),
        ("/mnt/data", "tmpfs"),
        ("/mnt/data/x", "tmpfs"),
        ("/mnt/with space/y", "nfs4"),
    ],
)
def test_the_nearest_and_latest_mount_decides(path: str, kind: str) -> None:
    assert mount_of(path, MOUNTS)[0] == kind


def test_options_are_those_of_the_mount_and_of_the_file_system() -> None:
    only_xfs = "\n".join(MOUNTS.splitlines()[:2])
    assert mount_of("/mnt/data", only_xfs) == ("xfs", ["noatime", "nobarrier", "rw"])


def test_the_nearest_existing_directory(tmp_path: Path) -> None:
    assert nearest_existing(str(tmp_path / "a" / "b")) == str(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert nearest_existing(str(tmp_path / "dangling")) == str(tmp_path / "dangling")


def test_facts_of_a_directory_and_nothing_left_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    facts = gather(NodeSettings(data_dir=str(data), run_dir=str(tmp_path / "run"), cores=3))
    assert list(data.iterdir()) == []
    assert facts.cores == 3
    assert facts.storage.probe_error is None
    assert 0 < facts.storage.sync_ns_median <= facts.storage.sync_ns_p99
    assert facts.storage.broken == []
    assert (facts.data_dir.exists, facts.data_dir.mode, facts.data_dir.owner_uid) == (True, 0o700, os.getuid())
    assert (facts.run_dir.exists, facts.run_dir.is_writable) == (False, True)
    assert facts.limits.memfd_error is None
    assert facts.limits.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert facts.software.packages["pyarrow"]


def test_a_place_that_others_may_change_and_a_link_are_seen(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    facts = gather(NodeSettings(data_dir=str(tmp_path / "open" / "data"), run_dir=str(tmp_path / "link")))
    assert facts.data_dir.shared_above == str(tmp_path / "open")
    assert facts.run_dir.is_symlink


def test_an_archive_is_tried_out_and_nothing_left_in_it(tmp_path: Path) -> None:
    def settings(url: str) -> NodeSettings:
        return NodeSettings(data_dir=str(tmp_path), node="anode", archive=NodeArchiveSettings(url=url))

    assert archive_error(settings("")) == ""
    assert archive_error(settings(f"file://{tmp_path}/archive")) == ""
    store = open_store(f"file://{tmp_path}/archive")
    assert list(store.objects("")) == []
    store.close()
    (tmp_path / "file").write_text("no directory")
    assert "file" in archive_error(settings(f"file://{tmp_path}/file/archive"))
