"""What Spark imports in every application stays small and never fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quiver_actors import spark as qs
from quiver_actors.errors import ConfigError, UsageError
from quiver_actors.spark.options import READ_STREAM, parse_options
from quiver_actors.spark.session import check_spark_version, session_conf
from quiver_actors.spark.source import QuiverSource
from quiver_actors.spark.stream_readers import check_old_options


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_registration_offers_the_source_and_loads_nothing_heavy() -> None:
    """Beyond Spark's own base class and Python it imports ten small modules: that is what 50 ms are spent on, and no time is measured."""
    answer = run_python(
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_quiver; "
        "print(pyspark_quiver.DefaultSource.name(), *sorted(set(sys.modules) - before))"
    )
    name, *new = answer.split()
    assert name == "quiver"
    own = [module for module in new if module.startswith(("quiver_actors", "pyspark_quiver"))]
    assert [module for module in new if module not in own and module not in sys.stdlib_module_names] == []
    assert len(own) <= 10, own


def test_registration_is_silent_where_spark_is_missing() -> None:
    answer = run_python(
        "import sys; sys.modules['pyspark'] = None; import pyspark_quiver; print(hasattr(pyspark_quiver, 'DefaultSource'))"
    )
    assert answer.strip() == "False"


def test_the_helpers_of_the_driver_load_neither_spark_nor_arrow() -> None:
    answer = run_python(
        "import sys; from quiver_actors import spark; spark.ensure_java, spark.use, spark.session_conf; "
        "print(sorted({'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    assert answer.strip() == "[]"


def test_planning_and_writing_load_no_pandas() -> None:
    """Spark starts a process for each: pyarrow.dataset, which loads pandas, took half of the time until it began."""
    answer = run_python(
        "import sys, quiver_actors.spark.reader, quiver_actors.spark.stream_readers, quiver_actors.spark.writer; "
        "print(sorted({'pandas', 'pyarrow.dataset'} & set(sys.modules)))"
    )
    assert answer.strip() == "[]"


def test_an_old_spark_is_named() -> None:
    check_spark_version("4.1.0")
    check_spark_version("10.0.1-SNAPSHOT")
    with pytest.raises(UsageError, match=r"4\.0\.5.*4\.1"):
        check_spark_version("4.0.5")


def test_a_source_in_an_old_spark_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    QuiverSource({"topic": "a"})
    monkeypatch.setattr("pyspark.__version__", "4.0.5")
    with pytest.raises(UsageError, match=r"4\.0\.5.*4\.1"):
        QuiverSource({"topic": "a"})


def test_options_that_an_older_spark_cannot_honour_are_refused() -> None:
    check_old_options(parse_options({"subscriber": "reader"}, READ_STREAM))
    for given, message in (
        ({"subscriber": "reader", "maxRowsPerTrigger": "5"}, "need Spark 4.2"),
        ({"subscriber": "reader", "maxBytesPerTrigger": "1MiB"}, "need Spark 4.2"),
        ({}, "on Spark 4.1 .* needs option 'subscriber'"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_old_options(parse_options(given, READ_STREAM))


def test_every_name_of_the_package_is_there() -> None:
    assert [name for name in qs.__all__ if not hasattr(qs, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = qs.other


def test_the_configuration_is_text() -> None:
    assert all(isinstance(value, str) for value in session_conf().values())
