"""Test files that leave many descriptors are found, those that only left them to the collector are not."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.left_descriptors import LEFT_MAX, LeftDescriptors


class Held:
    """A descriptor of an object that leads to itself: the collector closes it."""

    def __init__(self, path: Path) -> None:
        self.itself = self
        weakref.finalize(self, os.close, os.open(path, os.O_RDONLY))


@pytest.fixture
def left() -> LeftDescriptors:
    gc.collect()
    return LeftDescriptors(patience_seconds=0.0)


@contextmanager
def opened(directory: Path, count: int) -> Iterator[None]:
    descriptors = [os.open(directory, os.O_RDONLY) for _ in range(count)]
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_a_file_that_leaves_many_is_named_with_what_they_are(left: LeftDescriptors, tmp_path: Path) -> None:
    with opened(tmp_path, LEFT_MAX):
        left.check("tests/one.py")
        expected = rf"tests/two\.py leave .*': {2 * LEFT_MAX + 1}\b"
        with opened(tmp_path, LEFT_MAX + 1), pytest.raises(AssertionError, match=expected):
            left.check("tests/two.py")


def test_those_that_wait_for_the_collector_are_no_fault(left: LeftDescriptors, tmp_path: Path) -> None:
    for _ in range(LEFT_MAX + 1):
        Held(tmp_path)
    left.check("tests/three.py")
