"""Fixed structures field by field: where each stands, its value, and what it should be. Pure.

The decoders of the engine say whether a structure can be used; this says which of its bytes are wrong. A damaged structure is read
as far as it goes.
"""

from __future__ import annotations

from typing import Any

from quiver_actors.store.format.fields import Field, FieldTable, show
from quiver_actors.store.inspection.findings import Finding, damage
from quiver_actors.store.inspection.views import FieldView


class Structure:
    """One fixed structure as it stands in a file: the fields that are there whole.

    Args:
        code: for findings.
        data: the bytes from file offset `start` on; what is behind the structure is ignored.
    """

    def __init__(self, code: str, data: bytes, start: int, table: FieldTable) -> None:
        self.name = table.name
        self.code = code
        self.start = start
        self.table = table
        self.fields: list[FieldView] = []
        self._raw: dict[str, Any] = {}
        there = [field for field in table.fields if table.offsets[field.name] + field.size_bytes <= len(data)]
        for field in there:
            self._add(field, data)
        self.is_whole = len(there) == len(table.fields)
        self._bytes_there = len(data)

    def _add(self, field: Field, data: bytes) -> None:
        at = self.table.offsets[field.name]
        self._raw[field.name] = value = field.read(data, at)
        self.fields.append(
            FieldView(
                offset=self.start + at,
                size_bytes=field.size_bytes,
                name=field.name,
                value=value if isinstance(value, int) else show(value),
                expected=field.wrong(value),
            )
        )

    def __getitem__(self, name: str) -> Any:
        """The value of a field that is there."""
        return self._raw[name]

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    @property
    def is_right(self) -> bool:
        """Whether all fields are there and none differs from what is expected."""
        return self.is_whole and all(field.expected is None for field in self.fields)

    def field(self, name: str) -> FieldView:
        """Return a field that is there, by its name."""
        return next(field for field in self.fields if field.name == name)

    def check_crc(self, computed: int) -> None:
        """Show the CRC in hexadecimal, and as wrong if it is not `computed`."""
        field = self.field("crc32")
        field.expected = None if self["crc32"] == computed else f"{computed:#010x}"
        field.value = f"{self['crc32']:#010x}"

    def damage(self, path: str, action: str) -> list[Finding]:
        """One finding for each wrong field, and one if the structure ends too early."""
        found = [
            damage(
                self.code,
                path,
                field.offset,
                f"{self.name}: {field.name} is wrong",
                action,
                field.expected,
                str(field.value),
            )
            for field in self.fields
            if field.expected is not None
        ]
        if not self.is_whole:
            end, expected = self.start + self._bytes_there, f"{self.table.size} bytes from {self.start} on"
            message, there = f"{self.name} ends too early", f"{self._bytes_there} bytes"
            found.append(damage(self.code, path, end, message, action, expected, there))
        return found
