"""Fixed structures on disk as tables of fields. Pure.

Each structure has one table, beside its codec. The codec takes its `struct` format from the table, `quiver inspect` shows and checks the
fields by the table, and docs/formats.md prints the table. Integers are little-endian; nothing is aligned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

Check = Callable[[Any], str | None]
"""Given a value: what was expected instead, None if the value is right."""


def equals(wanted: int | bytes) -> Check:
    """Return a check for one value."""
    return lambda value: None if value == wanted else show(wanted)


def at_least(lowest: int) -> Check:
    """Return a check for values from `lowest` on."""
    return lambda value: None if value >= lowest else f"at least {lowest}"


def at_most(highest: int) -> Check:
    """Return a check for values up to `highest`."""
    return lambda value: None if value <= highest else f"at most {highest}"


def one_of(*allowed: int) -> Check:
    """Return a check for a few values."""
    return lambda value: None if value in allowed else " or ".join(map(str, allowed))


def show(value: int | bytes) -> str:
    """Return a value as people read it: text where it is text, else hexadecimal."""
    if isinstance(value, int):
        return str(value)
    if not any(value):
        return "zeroes"
    printable = all(byte == 0 or 32 <= byte < 127 for byte in value)
    return repr(value)[2:-1] if printable else value.hex()


class Field(NamedTuple):
    """One field of a structure."""

    name: str
    code: str
    """The `struct` code without byte order; `<n>x` for zeroes that nobody reads."""
    meaning: str = ""
    constant: int | bytes | None = None
    """The value that this program always writes there."""
    check: Check | None = None
    """Values that a reader may find; None: the constant, or any value if there is none."""
    since: str = "1"
    """The version of the structure that has the field first; `+` behind it: an addition that other readers of that version skip."""

    @property
    def size_bytes(self) -> int:
        """Bytes that the field takes."""
        return struct.calcsize(self.format)

    @property
    def format(self) -> str:
        """The `struct` format of the field alone; padding is bytes."""
        return "<" + self.code.replace("x", "s")

    @property
    def is_padding(self) -> bool:
        """Whether the field is zeroes that nobody reads."""
        return self.code.endswith("x")

    def read(self, data: bytes, at: int) -> Any:
        """Return the value at offset `at`; of padding its bytes."""
        return struct.unpack_from(self.format, data, at)[0]

    def wrong(self, value: Any) -> str | None:
        """Return what should stand there instead of `value`; None if the value is right."""
        check = self.check or (None if self.constant is None else equals(self.constant))
        return check(value) if check else None


class FieldTable:
    """The fields of one structure, back to back.

    Attributes:
        struct: packs and unpacks all fields but the padding.
        offsets: where each field begins, by its name.
        constants: what this program always writes, by the name of the field.
    """

    def __init__(self, name: str, *fields: Field) -> None:
        self.name = name
        self.fields = tuple(
            each._replace(constant=bytes(each.size_bytes)) if each.is_padding else each for each in fields
        )
        self.struct = struct.Struct("<" + "".join(field.code for field in fields))
        starts = accumulate((field.size_bytes for field in fields), initial=0)
        self.offsets = {field.name: start for field, start in zip(fields, starts, strict=False)}
        self.constants = {field.name: field.constant for field in self.fields if field.constant is not None}
        self._read = [field.name for field in fields if not field.is_padding]

    @property
    def size(self) -> int:
        """Bytes of the structure."""
        return self.struct.size

    @property
    def magic(self) -> bytes:
        """The bytes by which readers know the structure."""
        return bytes(self.constants["magic"])

    def has_magic(self, data: bytes) -> bool:
        """Whether the magic stands in its place."""
        return data.startswith(self.magic, self.offsets["magic"])

    def pack(self, **values: Any) -> bytes:
        """Return the structure as bytes. Constants need no value."""
        filled = self.constants | values
        return self.struct.pack(*(filled[name] for name in self._read))

    def unpack(self, data: bytes | memoryview, at: int = 0) -> dict[str, Any]:
        """Return the values of the structure at offset `at`, by name."""
        return dict(zip(self._read, self.struct.unpack_from(data, at), strict=True))

    def rows(self, data: bytes | memoryview, at: int, count: int) -> list[tuple[Any, ...]]:
        """Return the values of `count` structures that stand one behind the other. Raises struct.error: the data ends before."""
        return [self.struct.unpack_from(data, at + self.size * number) for number in range(count)]

    def restored(self, data: bytes, *names: str) -> bytes:
        """Return the structure that `data` starts with, the constants of that name put right; all constants if no name is given."""
        found = bytearray(data[: self.size])
        for field in self.fields:
            if field.constant is not None and (not names or field.name in names):
                struct.pack_into(field.format, found, self.offsets[field.name], field.constant)
        return bytes(found)
