"""The tables of a flatbuffer, read where they stand. Pure; a read outside of the buffer raises `struct.error`.

    table     i32 distance back to its vtable | its fields
    vtable    u16 its own size | u16 the table's size | u16 a field: where it is in the table, 0 = absent

A field is a number, or a u32 distance ahead to a table or vector.

Source: the FlatBuffers "Internals" page.
"""

from __future__ import annotations

import struct

from quiver_actors.errors import ArrowError

U8 = struct.Struct("<B").unpack_from
U16 = struct.Struct("<H").unpack_from
I16 = struct.Struct("<h").unpack_from
U32 = struct.Struct("<I").unpack_from
I32 = struct.Struct("<i").unpack_from
I64 = struct.Struct("<q").unpack_from


def vtable_of(flatbuffer: memoryview, table: int) -> int:
    """Position of a table's vtable."""
    vtable = table - int(I32(flatbuffer, table)[0])
    if vtable < 0:
        raise ArrowError("Arrow message has a flatbuffer table that points before its start")
    return vtable


def field_at(flatbuffer: memoryview, table: int, index: int) -> int:
    """Position of a table's field, 0 if it is absent."""
    vtable = vtable_of(flatbuffer, table)
    slot = 4 + 2 * index
    if slot >= U16(flatbuffer, vtable)[0]:
        return 0
    offset = int(U16(flatbuffer, vtable + slot)[0])
    return table + offset if offset else 0


def integer_in(flatbuffer: memoryview, table: int, index: int) -> int:
    """An i64 field, which flatbuffers leave out when it is 0."""
    at = field_at(flatbuffer, table, index)
    return int(I64(flatbuffer, at)[0]) if at else 0


def target_of(flatbuffer: memoryview, table: int, index: int) -> int:
    """Position of the table or vector that a field refers to, 0 if it is absent."""
    at = field_at(flatbuffer, table, index)
    return at + int(U32(flatbuffer, at)[0]) if at else 0
