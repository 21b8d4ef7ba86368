"""How the tests are distributed over several processes: a file at a time, and together the files that share one Spark session.

This file also says how the JVMs of all tests run (`spark_classes`), and checks that the tests of a file close what they open.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.left_descriptors import LeftDescriptors
from tests.support.spark_classes import JVM_OPTIONS, archive_options

os.environ.setdefault("JDK_JAVA_OPTIONS", JVM_OPTIONS)
os.environ.setdefault("SPARK_SUBMIT_OPTS", archive_options())

# Started in the background of a shell, all processes would ignore the SIGINT with which tests end commands.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


_LEFT = LeftDescriptors()
_UNIT = Path(__file__).parent / "unit"
"""Where no fixture of a whole session keeps descriptors."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep what was imported out of the collector's way: it is most of a test process, and tests have garbage collected all the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Undo what every test may do, and look at what a file has left. No fixture of each test: ten thousand of them take seconds."""
    yield
    # Campaigns that run in this process switch logging off; tests behind them may look at logs.
    logging.disable(logging.NOTSET)
    if nextitem is None or nextitem.path != item.path:
        # Most tests need no pyarrow, which this would import.
        if (drivers := sys.modules.get("tests.support.engine_driver")) is not None:
            drivers.close_forgotten()
        if item.path.is_relative_to(_UNIT):
            _LEFT.check(item.nodeid.split("::")[0])
        else:
            _LEFT.pass_over()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.dispatching import FilesTogether

    return FilesTogether(config, log)
