"""The document of a node for programs: a `dict` with the fields of `quiver status --json`."""

from __future__ import annotations

from typing import Any

import msgspec

from quiver_actors.base.notebook import table_html
from quiver_actors.store.status.status_document import StatusView
from quiver_actors.store.status.status_view import take_status


class NodeStatus(dict[str, Any]):
    """The document of `quiver status --json` (docs/cli.md); notebooks show its state, workers and topics as a table."""

    def _repr_html_(self) -> str:
        node = self.get("node", {})
        rows = [
            *((f"worker {each['core']}", each["state"], "") for each in self.get("workers", ())),
            *(
                (f"topic {each['topic']}, core {each['core']}", each["state"], f"{each['bundles_in']:,} bundles in")
                for each in self.get("engines", ())
            ),
            *((text, "", "") for name in ("problems", "warnings") for text in node.get(name, ())),
        ]
        return table_html(f"Node: {node.get('state')}", ("what", "state", ""), rows)

    @classmethod
    def of(cls, view: StatusView) -> NodeStatus:
        """Return a look at a node as its document."""
        return cls(msgspec.to_builtins(view))


def node_status(run_dir: str) -> NodeStatus:
    """Look at the node of a run directory. Raises NotRunning and NotAllowed, as `take_status`."""
    return NodeStatus.of(take_status(run_dir))
