"""What a remote client or subscription does not have refuses by its name, and says what to do instead."""

from __future__ import annotations

from quiver_actors.errors import UsageError

_ON_HOST = "use quiver_actors.connect() on the node's host"
_TOPICS = "run `quiver topics` on the node's host: tokens give no rights to settings"
_SUBSCRIBERS = "run `quiver subscribers` on the node's host"
_TRANSACTIONS = (
    "use Spark, or quiver_actors.connect() on the node's host; push with producer= and sequence= to store a bundle once"
)
_INSTEAD = {
    **dict.fromkeys(("create_topic", "set_topic", "delete_topic"), _TOPICS),
    **dict.fromkeys(("unsubscribe", "seek", "share_subscriber", "drop_orphan"), _SUBSCRIBERS),
    **dict.fromkeys(
        (
            "stage",
            "staged",
            "staged_of",
            "transaction",
            "decide",
            "find_decision",
            "publish",
            "drop_stages",
            "abort_tokens",
        ),
        _TRANSACTIONS,
    ),
    **dict.fromkeys(
        ("read_segment", "read_part", "readable", "archived"), "use read() for bundles, or dataset() for rows"
    ),
    "schemas": "use schema(), to which all stored schemas conform",
    "statistics": "use dataset(where=...) or sql(), for which the node uses them",
    "hold": "use subscribe(): what it has not acknowledged stays stored",
    "register": "it is attached when it is made",
    "abort": "use close()",
}


class NotRemote(UsageError, AttributeError):
    """A method of the local client or subscription that a remote one does not have."""


def not_there(kind: str, local: type, name: str) -> AttributeError:
    """The error for an attribute that is not there: `NotRemote` if a local object has it."""
    if name.startswith("_") or not hasattr(local, name):
        return AttributeError(f"a {kind} has no attribute {name!r}")
    return NotRemote(f"a {kind} has no {name}(): {_INSTEAD.get(name, _ON_HOST)}")
