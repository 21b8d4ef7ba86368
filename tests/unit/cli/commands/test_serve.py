"""Where `quiver serve` listens, and what it asks for before it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.config import parse_config
from quiver_actors.base.rights import Caller
from quiver_actors.cli.main import main
from quiver_actors.errors import ConfigError
from quiver_actors.flight.callers import holders_of


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIVER_TOKEN", raising=False)


def token_file(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:0", "node-7.example:0"])
def test_an_address_that_others_reach_needs_a_token_and_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    serve = ["serve", "--run-dir", str(tmp_path / "run"), "--listen", address]
    assert main(serve) == 2
    assert "needs a token" in capsys.readouterr().err
    assert main([*serve, "--insecure"]) == 2
    assert "needs a token" in capsys.readouterr().err
    token = ["--token-file", token_file(tmp_path, "t", "sesame")]
    assert main([*serve, *token]) == 2
    assert "needs TLS" in capsys.readouterr().err
    assert main([*serve, *token, "--insecure"]) == 3, "only the node is missing"


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.9.9.9:0", "[::1]:0", "localhost:0"])
def test_loopback_needs_neither(tmp_path: Path, address: str) -> None:
    assert main(["serve", "--run-dir", str(tmp_path / "run"), "--listen", address]) == 3
    assert main(["serve", "--run-dir", str(tmp_path / "run")]) == 3


def test_tokens_of_the_configuration_name_roles_and_topics(tmp_path: Path) -> None:
    rows = {
        "spark": {"file": token_file(tmp_path, "spark", "one"), "role": "write"},
        "reports": {"file": token_file(tmp_path, "reports", "two"), "role": "read", "topics": ["clicks"]},
    }
    found = holders_of(parse_config({"serve": {"tokens": rows}}).serve.tokens)
    assert {token: (holder.name, holder.role) for token, holder in found.items()} == {
        "one": ("spark", Caller.WRITE),
        "two": ("reports", Caller.READ),
    }
    assert found["two"].caller("clicks") is Caller.READ
    assert found["two"].caller("other") is Caller.STRANGER
    assert found["one"].caller("other") is Caller.WRITE
    token_file(tmp_path, "reports", "one")
    with pytest.raises(ConfigError, match="have the same value"):
        holders_of(parse_config({"serve": {"tokens": rows}}).serve.tokens)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"file": "/t", "role": "owner"}, "'owner' is not one of read, write, admin"),
        ({"file": "t", "role": "read"}, "not an absolute path"),
        ({"role": "read"}, "file"),
        ({"file": "/t", "role": "read", "topics": "clicks"}, "topics"),
        ({"file": "/t", "role": "read", "topics": ["a/b"]}, "a/b"),
        ({"file": "/t", "role": "read", "topic": ["a"]}, "topic is unknown"),
        ("/t", "spark"),
    ],
)
def test_rows_that_are_wrong_are_named(row: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"serve.tokens.*spark.*{said}"):
        parse_config({"serve": {"tokens": {"spark": row}}})
