"""Tells which locations are URLs of stores that processes of several hosts may share. Loads nothing."""

from __future__ import annotations

import importlib.util
import re

REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""The schemes of providers' stores, which processes of several hosts may share."""
_SHARED = re.compile(rf"(?:{'|'.join(REMOTE_SCHEMES)})://[A-Za-z0-9._-]+(?:/[A-Za-z0-9._=+,~-]+)*/?")
"""Characters that need no escape, so that all libraries understand the same key."""


def is_shared_store(location: str) -> bool:
    """Whether a location is the plain URL of a provider's store, with which `open_store` can deal: no user, no query, no odd path.

    With more than that it is a URI for Arrow's file systems, which have options there. Every process finds the same, whatever is installed.
    """
    return _SHARED.fullmatch(location) is not None


def has_client() -> bool:
    """Whether the package is installed by which remote stores are reached."""
    return importlib.util.find_spec("obstore") is not None
