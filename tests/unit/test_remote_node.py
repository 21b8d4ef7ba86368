"""A node of another host, before anything is sent to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.errors import ConfigError
from quiver_actors.flight.remote import RemoteNode


def test_certificates_that_cannot_be_read_are_named_with_their_option(tmp_path: Path) -> None:
    """Regression: the file was a FileNotFoundError out of the middle of a query."""
    node = RemoteNode("node-a", "grpc+tls://127.0.0.1:1", tls_roots=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"none\.pem.*tlsRoots"):
        node.schemas("clicks")
