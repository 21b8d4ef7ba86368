"""Users who are named, and what a path leads through."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiver_actors.base.trust import VARIABLE, named_users, trusted_directory
from quiver_actors.errors import ConfigError, UntrustedNode
from quiver_actors.spark.options import READ, parse_options


def test_users_are_named_by_the_call_and_by_the_environment() -> None:
    assert named_users(None, {}) == frozenset()
    assert named_users(7, {}) == {7}
    assert named_users(None, {VARIABLE: "8"}) == {8}
    assert named_users(7, {VARIABLE: "8"}) == {7, 8}


@pytest.mark.parametrize("uid", [-1, 1 << 32, (1 << 32) - 1, "7", True, 7.0])
def test_what_is_no_user_is_refused(uid: object) -> None:
    with pytest.raises(ConfigError, match=r"trusted_uid.*expected the number of a user"):
        named_users(uid, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["spark", "-1", "7,8", "4294967296", " 7", "²"])
def test_a_variable_that_names_no_user_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"{VARIABLE}.*expected the number of a user"):
        named_users(None, {VARIABLE: text})


def test_a_reader_of_spark_names_a_user() -> None:
    assert parse_options({"topic": "t", "trustedUid": "1001"}, READ).trusted_uid == 1001
    for wrong in ("spark", "-1", ""):
        with pytest.raises(ConfigError, match="'trustedUid'"):
            parse_options({"topic": "t", "trustedUid": wrong}, READ)


def test_a_trusted_directory_is_open_and_closed_again(tmp_path: Path) -> None:
    with trusted_directory(str(tmp_path), frozenset()) as directory:
        assert os.fstat(directory.descriptor).st_ino == tmp_path.stat().st_ino
        assert directory.peers == {0, os.geteuid()}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(directory.descriptor)


def test_links_without_an_end_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"), trusted_directory(str(tmp_path / "a"), frozenset()):
        pass


def test_a_chain_of_links_is_followed_to_its_end(tmp_path: Path) -> None:
    end = tmp_path / "end"
    end.mkdir(mode=0o700)
    for number in range(30):
        (tmp_path / f"link{number}").symlink_to("end" if not number else f"./link{number - 1}")
    with trusted_directory(str(tmp_path / "link29"), frozenset()) as directory:
        assert os.fstat(directory.descriptor).st_ino == end.stat().st_ino


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), trusted_directory(str(tmp_path / "file"), frozenset()):
        pass


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o702)
    with pytest.raises(UntrustedNode, match="mode 0702"), trusted_directory(str(tmp_path), frozenset()):
        pass
