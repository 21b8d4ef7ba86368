"""Errors of the supervisor itself. This package knows nothing of data, so it has errors of its own."""

from __future__ import annotations


class SupervisorError(Exception):
    """Root of the supervisor's errors."""


class IllegalTransition(SupervisorError):
    """A child was told something that its state does not allow: a bug of ours, never of the world."""


class UnsafeFork(SupervisorError):
    """The process may not fork: it has a second thread, or has loaded a library that does not survive a fork."""


class ControlError(SupervisorError):
    """The control socket's peer is gone, too slow, or does not follow the protocol."""
