"""`format("quiver")`: where Spark meets Quiver.

Spark imports this module in every application's data source lookup, so it loads nothing but the base class; readers and writers, and
pyarrow with them, are imported when one is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from quiver_actors.errors import UsageError
from quiver_actors.spark.options import READ, WRITE, parse_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from quiver_actors.spark.reader import TopicReader
    from quiver_actors.spark.writer import TopicWriter


class QuiverSource(DataSource):
    """Batch read and batch write of one topic of the node that each task runs on. Append only, at least once."""

    @classmethod
    def name(cls) -> str:
        return "quiver"

    def schema(self) -> StructType:
        """The columns of everything that is stored in the topic now."""
        from quiver_actors.spark.reader import stored_schema

        return stored_schema(parse_options(self.options, READ))

    def reader(self, schema: StructType) -> TopicReader:
        from quiver_actors.spark.reader import TopicReader

        return TopicReader(parse_options(self.options, READ), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        from quiver_actors.spark.writer import TopicWriter

        if overwrite:
            raise UsageError('a topic can only be appended to: write with .mode("append")')
        return TopicWriter(parse_options(self.options, WRITE), schema)
