"""Tells which locations are URLs of stores that processes of several hosts may share. Opens nothing."""

from __future__ import annotations

import importlib.util
import re

REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""The schemes of providers' stores, which processes of several hosts may share."""
_UNKNOWN_TO_ARROW = ("az:", "azure:")
_SHARED = re.compile(rf"(?:{'|'.join(REMOTE_SCHEMES)})://[A-Za-z0-9._-]+(?:/[A-Za-z0-9._=+,~-]+)*/?")
"""Characters that need no escape, so that all libraries understand the same key."""


def goes_by_store(location: str) -> bool:
    """Whether this process uses a location through `open_store`, and not through Arrow's file systems.

    It does with the plain URL of a provider's store: no user, no query, no odd path. With more than that it is a URI for Arrow, which has
    options there. Without the package by which remote stores are reached, Arrow takes the URLs that it knows, too.
    """
    if _SHARED.fullmatch(location) is None:
        return False
    return location.startswith(_UNKNOWN_TO_ARROW) or importlib.util.find_spec("obstore") is not None
