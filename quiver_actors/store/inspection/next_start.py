"""Predicts what the next start of a stopped engine will do with which entries: it runs the recovery on a disk that simulates changes.

So what is said before a start cannot differ from what the start does. A directory that is open in another process is left out: its start
is over. Memory: the logs of one engine, where the disk has not confirmed them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from quiver_actors.base.config import TopicSettings
from quiver_actors.errors import ConfigMismatch, DiskError, QuiverError, UnsupportedVersion
from quiver_actors.shm.errors import ShmError
from quiver_actors.shm.liveness import holder_alive
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.inspection import directory as directories
from quiver_actors.store.inspection.findings import Finding, Severity
from quiver_actors.store.inspection.preview import PreviewDisk, quiet_log
from quiver_actors.store.inspection.source import Tree, is_about_access
from quiver_actors.store.recovery import Recovery
from quiver_actors.store.recovery.findings import Effect, EffectKind
from quiver_actors.store.wal import layout

_PUT_BACK = "put the file back before the node is started; else those who lose by it are told by gap notices"
_EFFECTS = {
    EffectKind.ASIDE: (
        Severity.DAMAGE,
        "start.aside",
        "the next start moves it to quarantine/: ",
        "look at it before the node is started",
    ),
    EffectKind.SPAN_ASIDE: (
        Severity.DAMAGE,
        "start.span_aside",
        "the next start copies something to quarantine/: ",
        "find out who wrote it; a newer program may read it",
    ),
    EffectKind.LOST: (Severity.DAMAGE, "start.lost", "the next start tells of a loss: ", _PUT_BACK),
    EffectKind.RENUMBERED: (
        Severity.WARNING,
        "start.renumbered",
        "the next start renames: ",
        "nothing: it is delivered",
    ),
    EffectKind.ADOPTED: (Severity.NOTE, "start.adopted", "the next start adopts ", "nothing"),
    EffectKind.TAKEN_FOR_DELIVERED: (
        Severity.WARNING,
        "start.taken_for_delivered",
        "the next start is the first that keeps a record of other writers: ",
        "if it is new data, put it under a number above all watermarks before the node is started",
    ),
}


def next_start(tree: Tree, directory: str, known: Iterable[Finding]) -> Iterator[Finding]:
    """Say what the next start will do with the entries in one engine's directory.

    Args:
        known: what the look at its files has found: damage of a file, or at a byte, is not told again.

    Raises:
        DiskError: this user may not read something.
    """
    paths = EnginePaths(directory)
    if _is_open(tree, paths):
        return
    recovery = recovery_of(tree, PreviewDisk(tree.disk), directory)
    try:
        with quiet_log():
            recovery.run()
    except QuiverError as error:
        if _is_open(tree, paths):
            return
        yield from _failed(tree, paths, error)
    if _is_open(tree, paths):
        return  # it was started meanwhile
    told = {(each.path, each.offset) for each in known if each.severity is Severity.DAMAGE}
    damaged = {path for path, _ in told}
    for effect in recovery.effects:
        path = tree.named(effect.path)
        if (path, effect.offset) in told or (effect.kind is EffectKind.ASIDE and path in damaged):
            continue
        yield _finding(path, effect)


def recovery_of(tree: Tree, disk: Disk, directory: str) -> Recovery:
    """The recovery that a start of one engine runs, under the slot table that its newest log names.

    Args:
        disk: where its changes go.
    """
    paths = EnginePaths(directory)
    core_id, cfg_hash = directories.core_id_of(directory), _cfg_hash(tree, paths)
    return Recovery(disk, paths, TopicSettings(name="default"), core_id, cfg_hash=cfg_hash)


def _finding(path: str, effect: Effect) -> Finding:
    severity, code, what, action = _EFFECTS[effect.kind]
    return Finding(
        severity=severity, code=code, path=path, offset=effect.offset, message=what + effect.message, action=action
    )


def _failed(tree: Tree, paths: EnginePaths, error: QuiverError) -> Iterator[Finding]:
    """The finding that a start would not come to its end. It changes nothing then that a later start could miss."""
    if isinstance(error, DiskError) and is_about_access(error):
        raise error
    is_refusal = isinstance(error, UnsupportedVersion | ConfigMismatch)
    yield Finding(
        severity=Severity.WARNING if is_refusal else Severity.DAMAGE,
        code="start.refused" if is_refusal else "start.fails",
        path=tree.named(paths.root),
        message=f"the next start {'refuses the directory' if is_refusal else 'fails'}: {error}",
        action="use the program that wrote it" if is_refusal else "look at the disk, and try again",
    )


def _is_open(tree: Tree, paths: EnginePaths) -> bool:
    """Whether a process has the directory open. One that another user runs counts as one: its lock cannot be asked for."""
    try:
        return holder_alive(tree.named(paths.lock))
    except ShmError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM):
            return True
        raise DiskError("lock", paths.lock, cause.errno or 0 if isinstance(cause, OSError) else 0) from error


def _cfg_hash(tree: Tree, paths: EnginePaths) -> bytes:
    """The hash of the slot table that the newest log was written under; logs that disagree are the start's business."""
    hashes = [header.cfg_hash for header in directories.log_headers(tree.disk, paths)]
    return hashes[-1] if hashes else layout.DEFAULT_CFG_HASH
