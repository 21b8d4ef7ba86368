"""`format("quiver")`: where Spark meets Quiver.

Spark imports this module in every application's data source lookup, so it loads nothing but the base class; readers and writers, and
pyarrow with them, are imported when one is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from quiver_actors.errors import UsageError
from quiver_actors.spark.session import check_spark_version

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from quiver_actors.spark.options import SourceOptions
    from quiver_actors.spark.reader import TopicReader
    from quiver_actors.spark.stream import TopicStreamReader
    from quiver_actors.spark.writer import TopicStreamWriter, TopicWriter


class QuiverSource(DataSource):
    """Batch and streaming, read and write, of one topic. Append only."""

    def __init__(self, options: dict[str, str]) -> None:
        """
        Raises:
            UsageError: this Spark is too old.
        """
        check_spark_version(pyspark.__version__)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "quiver"

    def schema(self) -> StructType:
        """The columns of everything that is stored in the topic now."""
        from quiver_actors.spark.options import READS, check_topic_given, parse_options_of
        from quiver_actors.spark.reader import stored_schema

        check_topic_given(self.options)
        # Spark does not say whether the columns are for a batch or a stream.
        return stored_schema(parse_options_of(self.options, READS))

    def reader(self, schema: StructType) -> TopicReader:
        from quiver_actors.spark.options import READ
        from quiver_actors.spark.reader import TopicReader

        return TopicReader(self._parsed(READ), schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark calls it so
        from quiver_actors.spark.options import READ_STREAM
        from quiver_actors.spark.stream import stream_reader

        return stream_reader(self._parsed(READ_STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        from quiver_actors.spark.options import WRITE
        from quiver_actors.spark.writer import TopicWriter

        if overwrite:
            raise UsageError('a topic can only be appended to: write with .mode("append")')
        return TopicWriter(self._parsed(WRITE), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        from quiver_actors.spark.options import WRITE_STREAM
        from quiver_actors.spark.writer import TopicStreamWriter

        if overwrite:
            raise UsageError('a topic can only be appended to: write with .outputMode("append")')
        return TopicStreamWriter(self._parsed(WRITE_STREAM), schema)

    def _parsed(self, operation: str) -> SourceOptions:
        from quiver_actors.spark.options import check_topic_given, parse_options

        check_topic_given(self.options)
        return parse_options(self.options, operation)
