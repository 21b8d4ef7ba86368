"""Token files: only a file that nobody else can use holds a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiver_actors.cli.main import main
from quiver_actors.errors import ConfigError, DiskError
from quiver_actors.flight.token_file import read_token

IS_ROOT = os.geteuid() == 0


def token_file(tmp_path: Path, mode: int, content: bytes = b"open sesame\n") -> str:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_a_file_of_this_user_alone_is_read(tmp_path: Path, mode: int) -> None:
    assert read_token(token_file(tmp_path, mode)) == "open sesame"


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o660, 0o620, 0o644, 0o444, 0o666])
def test_a_file_that_others_can_use_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path, mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}: others can use it; run: chmod 6[04]0 {path}"):
        read_token(path)


def test_the_group_of_a_file_of_root_may_read_it_and_of_another_not(tmp_path: Path) -> None:
    path = token_file(tmp_path, 0o640)
    if IS_ROOT:
        assert read_token(path) == "open sesame"
        os.chown(path, 65534, -1)
        with pytest.raises(ConfigError, match="belongs to user 65534"):
            read_token(path)
    else:
        with pytest.raises(ConfigError, match="mode 0640"):
            read_token(path)


@pytest.mark.parametrize("content", [b"", b" \n", b"a\nb", b"caf\xc3\xa9", b"\0", b"x" * 5000])
def test_what_is_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="holds no token"):
        read_token(token_file(tmp_path, 0o600, content))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="nowhere"):
        read_token(str(tmp_path / "nowhere"))


def test_serve_refuses_before_it_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = token_file(tmp_path, 0o644)
    assert main(["serve", "--run-dir", str(tmp_path / "run"), "--token-file", path]) == 2
    assert "mode 0644" in capsys.readouterr().err
