"""systemd's notify protocol: one datagram a message. Silent where nobody listens.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

MICROSECOND_NS = 1_000


class Notifier:
    """Tells the service manager how the node is."""

    def __init__(self, address: str = "", watchdog_interval_ns: int = 0) -> None:
        self._address = address
        self.watchdog_interval_ns = watchdog_interval_ns
        """How often `watchdog` is to be called, half of what the manager tolerates; 0: not at all."""

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str]) -> Notifier:
        """Read the manager's variables and remove them: children must not speak for the node."""
        address = environment.pop("NOTIFY_SOCKET", "")
        interval_us = environment.pop("WATCHDOG_USEC", "0")
        watched_pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        meant = interval_us.isdigit() and watched_pid == str(os.getpid())
        return cls(address, int(interval_us) * MICROSECOND_NS // 2 if meant else 0)

    def ready(self, status: str) -> None:
        """Tell the service manager that the node is ready, with a line of status."""
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Tell the service manager that the node is stopping."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Tell the service manager that the supervisor is alive."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of Linux' abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), address)
        except OSError:
            # The manager is gone or does not read, or no descriptor is left: no reason to stop, and the next call tries again.
            return
