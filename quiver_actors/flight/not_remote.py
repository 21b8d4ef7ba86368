"""What a remote client or subscription does not have refuses by its name."""

from __future__ import annotations

from quiver_actors.errors import UsageError


class NotRemote(UsageError, AttributeError):
    """A method of the local client or subscription that a remote one does not have."""


def not_there(kind: str, local: type, name: str) -> AttributeError:
    """The error for an attribute that is not there: `NotRemote` if a local object has it."""
    if name.startswith("_") or not hasattr(local, name):
        return AttributeError(f"a {kind} has no attribute {name!r}")
    return NotRemote(
        f"a {kind} has no {name}(): use quiver_actors.connect() on the node's host, or a quiver command there"
    )
