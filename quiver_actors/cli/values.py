"""Arrow values as commands print them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def value_of(column: pa.Array, row: int) -> Any:
    """Return the value as a Python object, or as Arrow's text where Python has no such value (a time after the year 9999)."""
    try:
        return column[row].as_py()
    except (ArithmeticError, LookupError, ValueError):
        return column.slice(row, 1).to_string(skip_new_lines=True)[1:-1].strip()


def json_text(document: Any) -> str:
    """Return a document as JSON on one line. Numbers that JSON does not have are null; what it has no form for is text, other decimals
    than whole ones, too."""
    text = json.dumps(document, default=_plain)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda _: None))
    return text


def _plain(value: Any) -> int | str:
    is_whole = isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent == 0
    return int(value) if is_whole else str(value)
