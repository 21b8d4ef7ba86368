"""`format("quiver")`: where Spark meets Quiver.

Spark imports this module in every application's data source lookup, so it loads nothing but the base class; readers and writers, and
pyarrow with them, are imported when one is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from quiver_actors.errors import UsageError
from quiver_actors.spark.message_first import message_first
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
        """Name of the format in `spark.read.format(...)`."""
        return "quiver"

    @message_first
    def schema(self) -> StructType:
        """The columns of everything that is stored in the topic now."""
        from quiver_actors.spark.options import READS, check_topic_given, parse_options_of
        from quiver_actors.spark.reader import stored_schema

        check_topic_given(self.options)
        # Spark does not say whether the columns are for a batch or a stream.
        return stored_schema(parse_options_of(self.options, READS))

    @message_first
    def reader(self, schema: StructType) -> TopicReader:
        """Return the reader of a batch read; `schema` is the read's schema, given or inferred."""
        from quiver_actors.spark.options import READ
        from quiver_actors.spark.reader import TopicReader

        return TopicReader(self._parsed(READ), schema)

    @message_first
    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark calls it so
        """Return the reader of a streaming query, with limits where Spark supports them."""
        from quiver_actors.spark.options import READ_STREAM
        from quiver_actors.spark.stream_readers import stream_reader

        return stream_reader(self._parsed(READ_STREAM), schema)

    @message_first
    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return the writer of a batch write. Raises UsageError for any mode but `append`."""
        from quiver_actors.spark.options import WRITE
        from quiver_actors.spark.writer import TopicWriter

        if overwrite:
            raise UsageError('a topic can only be appended to: write with .mode("append")')
        return TopicWriter(self._parsed_for_write(WRITE), schema)

    @message_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        """Return the writer of a streaming query. Raises UsageError for any output mode but `append`."""
        from quiver_actors.spark.options import WRITE_STREAM
        from quiver_actors.spark.writer import TopicStreamWriter

        if overwrite:
            raise UsageError('a topic can only be appended to: write with .outputMode("append")')
        return TopicStreamWriter(self._parsed_for_write(WRITE_STREAM), schema)

    def _parsed(self, operation: str) -> SourceOptions:
        from quiver_actors.spark.options import check_topic_given, parse_options

        check_topic_given(self.options)
        return parse_options(self.options, operation)

    def _parsed_for_write(self, operation: str) -> SourceOptions:
        """The options of a write, whose topic is there: a task would find out only after the query has computed its rows."""
        from quiver_actors.spark.nodes import node_set

        options = self._parsed(operation)
        node_set(options).check_topic(options.topic)
        return options
