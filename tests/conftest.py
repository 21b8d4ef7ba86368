"""How the tests are distributed over several processes: a file at a time, and together the files that share one Spark session.

And how the JVMs of all tests run: see `spark_classes`.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.spark_classes import JVM_OPTIONS, archive_options

os.environ.setdefault("JDK_JAVA_OPTIONS", JVM_OPTIONS)
os.environ.setdefault("SPARK_SUBMIT_OPTS", archive_options())

# Started in the background of a shell, all processes would ignore the SIGINT with which tests end commands.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Campaigns that run in this process switch logging off; tests behind them may look at logs."""
    disabled = logging.root.manager.disable
    yield
    logging.disable(disabled)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.dispatching import FilesTogether

    return FilesTogether(config, log)
