"""File systems that Arrow knows, by URI. pyarrow is imported when one is opened: most programs never do."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs

_HADOOP_NAMES = {"s3a": "s3", "s3n": "s3"}
"""Schemes that Spark and Hadoop have other names for."""


def open_uri(uri: str) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system of a URI, and the path on it without a slash at its end. `s3a://` means `s3://`.

    Raises:
        OSError: there is no such file system, or it cannot be reached.
    """
    import pyarrow as pa
    import pyarrow.fs as pa_fs

    scheme, separator, rest = uri.partition("://")
    plain = f"{_HADOOP_NAMES.get(scheme, scheme)}{separator}{rest}"
    try:
        files, path = pa_fs.FileSystem.from_uri(plain)
    except pa.ArrowException as error:
        # Arrow shows the URI, which may have a password.
        reason = str(error).replace(plain, shown(plain))
        raise OSError(errno.EINVAL, f"{shown(uri)} is not a file system that pyarrow.fs knows: {reason}") from error
    return files, path.rstrip("/") or "/"


def below(location: str, name: str) -> str:
    """The location of an entry of a directory: a path, or a URI, whose query stays behind it."""
    if "://" not in location:
        return f"{location.rstrip('/')}/{name}"
    # Not by urlunsplit: it writes `hdfs:///x`, the default file system's, as `hdfs:/x`, which is no URI here.
    path, query = re.split(r"(?=[?#])|$", location, maxsplit=1)
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.rstrip('/')}/{name}{query}"


def shown(location: str) -> str:
    """Return the location as messages may show it: without a password, its user, and the options of a URI, which may be secret."""
    if "://" not in location:
        return location
    scheme, _, rest = location.partition("://")
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = place.partition("/")
    user, _, rest = host.rpartition("@")
    return f"{scheme}://{rest if ':' in user else host}{slash}{path}"
