"""Fixed structures field by field: where each stands, its value, and what it should be. Pure.

The decoders of the engine say whether a structure can be used; this says which of its bytes are wrong. A damaged structure is read
as far as it goes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from quiver_actors.inspection.findings import Finding, Severity
from quiver_actors.inspection.views import FieldView

Check = Callable[[Any], str | None]
"""Given a value: what was expected instead, None if the value is right."""


class Rule(NamedTuple):
    """One field: its name, its `struct` code without byte order, and its check."""

    name: str
    code: str
    check: Check = lambda _: None


def equals(wanted: int | bytes) -> Check:
    return lambda value: None if value == wanted else show(wanted)


def at_least(lowest: int) -> Check:
    return lambda value: None if value >= lowest else f"at least {lowest}"


def at_most(highest: int) -> Check:
    return lambda value: None if value <= highest else f"at most {highest}"


def one_of(*allowed: int) -> Check:
    return lambda value: None if value in allowed else " or ".join(map(str, allowed))


def zero(value: bytes) -> str | None:
    return "zeroes" if any(value) else None


def show(value: int | bytes) -> str:
    """A value as people read it: text where it is text, else hexadecimal."""
    if isinstance(value, int):
        return str(value)
    if not any(value):
        return "zeroes"
    printable = all(byte == 0 or 32 <= byte < 127 for byte in value)
    return repr(value)[2:-1] if printable else value.hex()


class Structure:
    """One fixed structure as it stands in a file: the fields that are there whole.

    Args:
        name: for messages; `code` for findings.
        data: the bytes from file offset `start` on; what is behind the structure is ignored.
    """

    def __init__(self, name: str, code: str, data: bytes, start: int, rules: Sequence[Rule]) -> None:
        self.name = name
        self.code = code
        self.start = start
        self.size_bytes = struct.calcsize("<" + "".join(rule.code for rule in rules))
        self.fields: list[FieldView] = []
        self._raw: dict[str, Any] = {}
        self._missing = 0
        at = 0
        for rule in rules:
            size = struct.calcsize("<" + rule.code)
            if at + size > len(data):
                self._missing = len(data)
                break
            self._add(rule, start + at, size, struct.unpack_from("<" + rule.code, data, at)[0])
            at += size
        self.is_whole = at == self.size_bytes

    def _add(self, rule: Rule, offset: int, size: int, value: Any) -> None:
        shown = value if isinstance(value, int) else show(value)
        view = FieldView(offset=offset, size_bytes=size, name=rule.name, value=shown, expected=rule.check(value))
        self.fields.append(view)
        self._raw[rule.name] = value

    def __getitem__(self, name: str) -> Any:
        """The value of a field that is there."""
        return self._raw[name]

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    @property
    def is_right(self) -> bool:
        return self.is_whole and all(field.expected is None for field in self.fields)

    def check_crc(self, name: str, computed: int) -> None:
        """Show a CRC field in hexadecimal, and as wrong if it is not `computed`."""
        for field in self.fields:
            if field.name == name:
                field.expected = None if self[name] == computed else f"{computed:#010x}"
                field.value = f"{self[name]:#010x}"

    def damage(self, path: str, action: str) -> list[Finding]:
        """One finding for each wrong field, and one if the structure ends too early."""
        found = [self._wrong(path, field, action) for field in self.fields if field.expected is not None]
        if not self.is_whole:
            found.append(
                Finding(
                    severity=Severity.DAMAGE,
                    code=self.code,
                    path=path,
                    offset=self.start + self._missing,
                    message=f"{self.name} ends too early",
                    expected=f"{self.size_bytes} bytes from {self.start} on",
                    found=f"{self._missing} bytes",
                    action=action,
                )
            )
        return found

    def _wrong(self, path: str, field: FieldView, action: str) -> Finding:
        return Finding(
            severity=Severity.DAMAGE,
            code=self.code,
            path=path,
            offset=field.offset,
            message=f"{self.name}: {field.name} is wrong",
            expected=field.expected,
            found=str(field.value),
            action=action,
        )
