"""The error classes by their codes, as these travel between processes."""

from __future__ import annotations

from quiver_actors.errors import QuiverError


def error_classes() -> dict[str, type[QuiverError]]:
    """All error classes by their `code`, for turning a refusal on the wire back into an exception."""
    found: list[type[QuiverError]] = [QuiverError]
    for cls in found:
        found.extend(cls.__subclasses__())
    # A class without a code of its own is for one module: on the wire it is what it inherits from.
    return {cls.code: cls for cls in reversed(found)}
