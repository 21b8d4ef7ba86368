"""Retired cores that a streaming query reads: those that its offsets name."""

from __future__ import annotations

import pytest

from quiver_actors.flight.contract import RetiredTerms
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.options import EARLIEST, SourceOptions
from quiver_actors.spark.starts import first_positions, retired_of


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        (None, None),
        ([], RetiredTerms(None)),
        ([Place("b", 0)], RetiredTerms(None)),
        ([Place("a", 3), Place("b", 7), Place("a", 0)], RetiredTerms([0, 3])),
    ],
)
def test_a_node_is_asked_for_the_cores_that_are_named_or_for_all_if_it_is_new(
    named: list[Place] | None, wanted: RetiredTerms | None
) -> None:
    assert retired_of(named, "a") == wanted


def test_a_query_from_the_earliest_on_names_nobody() -> None:
    assert first_positions(SourceOptions(starting_offsets=EARLIEST)) == {}
