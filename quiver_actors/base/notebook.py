"""What a notebook shows of a value: a small table. No value of a bundle is in it, only what it is and how much of it there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def facts_html(title: str, facts: Mapping[str, object]) -> str:
    """A title, and a row for each fact."""
    return table_html(title, (), facts.items())


def table_html(title: str, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A title, and a table; all texts are escaped."""
    head = "".join(f"<th>{_escaped(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{_escaped(title)}</caption>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _escaped(value: object) -> str:
    import html  # Its tables are large, and processes without a notebook never need them.

    return html.escape(f"{value:,}" if type(value) is int else str(value))
