"""`quiver topics show --schema`: the columns of everything that a topic has stored, by slot."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from quiver_actors.cli import run_dir
from quiver_actors.cli.documents.json_document import print_json

if TYPE_CHECKING:
    import pyarrow as pa


def look_at_schemas(arguments: argparse.Namespace) -> int:
    """Print the one schema of each slot; 1 if stored schemas of a slot have no common one."""
    from quiver_actors.base.widening import SchemaConflict
    from quiver_actors.client.schemas import by_slot, widened

    with run_dir.connect_to_node(arguments) as client:
        slots = by_slot(client.schemas(arguments.topic))
        names = {slot_id: name for name, slot_id in client.topics()[arguments.topic].slots.items()}
    found: list[dict[str, Any]] = []
    exit_code = 0
    for slot_id, held in slots.items():
        entry: dict[str, Any] = {
            "slot": slot_id,
            "name": names.get(slot_id),
            "stored_schemas": len({each.message for each in held}),
        }
        try:
            entry["columns"] = _columns(widened(held))
        except SchemaConflict as error:
            entry["conflict"] = str(error)
            exit_code = 1
        found.append(entry)
    if arguments.json:
        print_json({"topic": arguments.topic, "slots": found})
    else:
        _print(arguments.topic, found)
    return exit_code


def _columns(schema: pa.Schema) -> list[dict[str, Any]]:
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]


def _print(topic: str, found: list[dict[str, Any]]) -> None:
    if not found:
        print(f"# topic {topic} has nothing stored: its columns are not known")
    for entry in found:
        named = f" {entry['name']}" if entry["name"] else ""
        count = entry["stored_schemas"]
        print(f"# slot {entry['slot']}{named}, {count} stored schema{'s' * (count != 1)}")
        if "conflict" in entry:
            print(f"quiver: slot {entry['slot']}: {entry['conflict']}", file=sys.stderr)
        for column in entry.get("columns", ()):
            print(f"{column['name']}: {column['type']}{'' if column['nullable'] else ' not null'}")
