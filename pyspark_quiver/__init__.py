"""Makes `format("quiver")` known to Spark, which imports every top-level `pyspark_*` package at its first Python data source lookup.

That lookup happens in any application, also in those that never use Quiver: importing this is cheap, loads no pyarrow, and
never fails (a lookup that raises would take all Python data sources down with it).
"""

from contextlib import suppress

with suppress(ImportError):
    from quiver_actors.spark.source import QuiverSource as DefaultSource  # noqa: F401
