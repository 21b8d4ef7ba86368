"""Agreeing on one content where files cannot be made exclusively: object stores and HDFS, as Arrow offers them.

Taken for granted: a file that was written is in every listing from then on. Not taken for granted: clocks, and that anybody goes on.
Each process that wants something decided makes files of its own in one directory, none of which is ever made by two or changed:

| file | made | means |
|---|---|---|
| `<id>.claim` | first | this is what I want |
| `<id>.stand` | then, if nobody stood | my claim counts |
| `<id>.yield` | then, if somebody stood | my claim does not count |
| `<id>.veto` | by others | this claim was not settled for `Patience.veto_seconds`; it does not count |

Decided is at a moment at which every claim is settled: the smallest id that stands. Why everybody finds the same: who claims after such a
moment sees somebody stand, and yields; who claimed before it has settled. A claim that was vetoed and stands all the same, because its
process was slow and not dead, lets nobody decide any more: so a veto never undoes what somebody has found.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs


class Patience(NamedTuple):
    """How long others are waited for."""

    veto_seconds: float = 60.0
    """Time after which a silent process counts as dead, by the clock of the file system, which all processes see alike."""
    total_seconds: float = 90.0
    look_seconds: float = 0.1


PATIENCE = Patience()


def agree(
    files: pa_fs.FileSystem,
    directory: str,
    content: bytes,
    find_decided: Callable[[], bytes | None],
    patience: Patience,
) -> bytes:
    """Claim `content` and return what is decided: that, or what another process has claimed.

    Args:
        directory: of the claims to this one decision.
        find_decided: the decision, if somebody has written it down.

    Raises:
        OSError: the file system failed. Call again: it goes on from what is there.
        TimeoutError: a claim stays unsettled; the same.
    """
    claims = _Claims(files, directory)
    own_id = _claimed(claims, content)
    began = time.monotonic()
    while True:
        seen = claims.seen()
        decided = find_decided()
        if decided is not None:
            return decided
        if not seen.unsettled and not seen.disputed:
            return claims.content(min(seen.of("stand")))
        waited = time.monotonic() - began
        for claim_id in seen.unsettled:
            if seen.age_seconds(claim_id, own_id) + waited >= patience.veto_seconds:
                claims.make(claim_id, "veto")
        if waited >= patience.total_seconds:
            raise TimeoutError(_stuck(directory, seen))
        time.sleep(patience.look_seconds)


def _claimed(claims: _Claims, content: bytes) -> str:
    """Claim, and settle the claim; returns its id."""
    while True:
        own_id = secrets.token_hex(8)
        claims.make(own_id, "claim", content)
        seen = claims.seen()
        if own_id not in seen.of("veto"):
            claims.make(own_id, "yield" if seen.of("stand") else "stand")
            return own_id


def _stuck(directory: str, seen: _Seen) -> str:
    if seen.unsettled:
        return f"{directory}: claim {min(seen.unsettled)} is not settled yet; whoever made it is deciding now, or has just died"
    return (
        f"{directory}: claim {min(seen.disputed)} was vetoed and stands, since its process was stopped for a long time; if no process is "
        "deciding about this any more, delete its .stand file"
    )


class _Seen:
    """The files of one moment."""

    def __init__(self, written_ns: dict[str, int]) -> None:
        self.written_ns = written_ns
        """Time of writing, by file name."""

    def of(self, kind: str) -> set[str]:
        """Ids that have such a file."""
        return {claim_id for claim_id, _, found in (name.rpartition(".") for name in self.written_ns) if found == kind}

    @property
    def unsettled(self) -> set[str]:
        return self.of("claim") - self.of("stand") - self.of("yield") - self.of("veto")

    @property
    def disputed(self) -> set[str]:
        return self.of("stand") & self.of("veto")

    def age_seconds(self, claim_id: str, newer_id: str) -> float:
        """How much older one claim is than another one."""
        return (self.written_ns[f"{newer_id}.claim"] - self.written_ns[f"{claim_id}.claim"]) / 1e9


class _Claims:
    def __init__(self, files: pa_fs.FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        files.create_dir(directory, recursive=True)

    def make(self, claim_id: str, kind: str, content: bytes = b"") -> None:
        with self._files.open_output_stream(f"{self._directory}/{claim_id}.{kind}") as stream:
            stream.write(content)

    def content(self, claim_id: str) -> bytes:
        with self._files.open_input_stream(f"{self._directory}/{claim_id}.claim") as stream:
            return bytes(stream.readall())

    def seen(self) -> _Seen:
        """Return the files that existed at one moment: files are only added, so two equal listings show a moment between them."""
        before = self._listed()
        while (now := self._listed()).keys() != before.keys():
            before = now
        return _Seen(now)

    def _listed(self) -> dict[str, int]:
        import pyarrow.fs as pa_fs

        found = self._files.get_file_info(pa_fs.FileSelector(self._directory))
        return {info.base_name: info.mtime_ns or 0 for info in found if info.is_file}
