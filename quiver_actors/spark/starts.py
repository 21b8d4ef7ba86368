"""Where a new streaming query begins, and of which cores it reads that nodes do not have any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quiver_actors.flight.contract import Contents, Look, Node, RetiredTerms
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.options import EARLIEST, SourceOptions
from quiver_actors.spark.reader import end_of_stored, everything, position_at, wanted_of_archive


def first_positions(options: SourceOptions) -> dict[Place, int]:
    """The positions where a query of these options begins. Cores that nodes do not have any more are named, too, unless it is at the
    earliest of all: see `retired_of`."""
    if options.starting_offsets == EARLIEST:
        return {}
    nodes = node_set(options)
    if isinstance(options.starting_offsets, Mapping):
        known = nodes.ask_all(lambda node: node.look(Look(options.topic, retired=RetiredTerms())))
        begins = {Place(name, core.core): 0 for name, found in known.items() for core in found.cores if core.is_retired}
        return {**begins, **options.starting_offsets}
    # The newest bundles are on the disk, so nothing is asked of the archive for them.
    is_by_time = options.starting_unix_ns is not None

    def look(node: Node) -> Contents:
        return node.look(everything(options.topic, wanted_of_archive(options, node.name) if is_by_time else None))

    found = nodes.ask_all(look)
    positions: dict[Place, int] = {}
    for name, contents in found.items():
        for core in contents.cores:
            place = Place(name, core.core)
            if options.starting_unix_ns is None:
                positions[place] = end_of_stored(core)
            else:
                positions[place] = position_at(nodes.get(name), options, place, core, options.starting_unix_ns)
    return positions


def retired_of(named: Collection[Place] | None, node: str) -> RetiredTerms | None:
    """The cores to ask a node for that it does not have any more.

    A query reads those that its offsets name, so that one which stands behind them, or has begun when nothing of them was read, does not
    read them now. Of a node that its offsets do not name at all it reads everything.

    Args:
        named: the workers that the offsets name; None: they are not known.
    """
    if named is None:
        return None
    cores = sorted(place.core for place in named if place.node == node)
    return RetiredTerms(cores or None)
