"""What Spark imports in every application stays small and never fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quiver_actors.errors import UsageError
from quiver_actors.spark.session import check_spark_version, session_conf
from quiver_actors.spark.source import QuiverSource


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_registration_offers_the_source_and_loads_nothing_heavy() -> None:
    answer = run_python(
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_quiver; "
        "new = set(sys.modules) - before; "
        "print(pyspark_quiver.DefaultSource.name(), sorted({'pyarrow', 'numpy', 'msgspec', 'quiver_actors.client'} & new))"
    )
    assert answer.split() == ["quiver", "[]"]


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


def test_the_configuration_is_text() -> None:
    assert all(isinstance(value, str) for value in session_conf().values())
