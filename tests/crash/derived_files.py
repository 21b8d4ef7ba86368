"""What a life of the small store tells of files that only repeat what others say: one that cannot be written stops nothing."""

from __future__ import annotations

import logging

from tests.crash.small_store import Reporter


class _DerivedFiles(logging.Handler):
    """Tells of each file that could not be written although nothing depends on it: the failed call was met there."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        if "summaries.unsaved" in record.getMessage():
            self._reporter.say(b"D", 0)


def tell_of_derived_files(descriptor: int) -> None:
    """Have the log of this process tell of them. For a process that ends with its life: nothing else logs in it from then on."""
    logger = logging.getLogger("quiver")
    logger.addHandler(_DerivedFiles(Reporter(descriptor)))
    logger.propagate = False
    logging.disable(logging.NOTSET)
