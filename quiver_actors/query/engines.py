"""The SQL engines: each runs one reading statement over given tables, and reaches neither files nor the network.

An engine is a function of a statement and tables. Packages of engines are loaded when they are first used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from quiver_actors.errors import QueryLimit, QuiverError, UsageError
from quiver_actors.query.dataset import TopicDataset
from quiver_actors.query.limits import SqlLimits, Statement, local_limits

_ROWS_AT_ONCE = 65_536
_OUT_OF_MEMORY = "Out of Memory Error"
"""DuckDB's words; while rows are read, its error comes as text."""


_IS_UNKNOWN = re.compile("does not exist|not found")
_AT_A_WORD = re.compile(r'(?<=syntax error at or near )"(\w+)"')
"""DuckDB's words, where a keyword stands in the place of a name."""


class Table(NamedTuple):
    """A table that a statement can name, as `schema.name`, or as `name` where there is no schema."""

    schema: str | None
    name: str
    content: TopicDataset | pa.Table

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


Engine: TypeAlias = Callable[[str, Sequence[Table], SqlLimits], pa.RecordBatchReader]


def run_statement(
    engine: str, statement: str, tables: Sequence[Table], limits: SqlLimits | None = None
) -> pa.RecordBatchReader:
    """Run a statement and return its rows, which are computed as they are read.

    Args:
        limits: what it may use; None: as much as one in the caller's own process.

    Raises:
        QueryLimit: it needs more; also while rows are read.
        UsageError: there is no such engine, its package is not installed, or it refuses the statement; the last also while rows are read.
        FormatError, DataLost, UnsupportedType: stored bundles cannot be read, also while rows are read.
    """
    run = ENGINES.get(engine)
    if run is None:
        raise UsageError(f"engine {engine!r} is unknown: expected one of {', '.join(ENGINES)}")
    limits = limits or local_limits()
    try:
        reader = run(statement, tables, limits)
    except QuiverError:
        raise
    except ImportError as error:
        raise UsageError(f"SQL with {engine} needs an extra: pip install 'quiver-actors[query]'") from error
    except Exception as error:
        raise _explained(engine, error, tables, limits) from error
    return pa.RecordBatchReader.from_batches(reader.schema, _explaining(engine, reader, tables, limits))


def _explaining(
    engine: str, reader: pa.RecordBatchReader, tables: Sequence[Table], limits: SqlLimits
) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except QueryLimit:
        raise
    except Exception as error:
        raise _explained(engine, error, tables, limits) from error


def _explained(engine: str, error: Exception, tables: Sequence[Table], limits: SqlLimits) -> QuiverError:
    """Return the error of a table that could not be read, which engines pass on as text only; otherwise the engine's own error."""
    if _OUT_OF_MEMORY in str(error):
        return limits.out_of_memory()
    failures = [each.content.failure for each in tables if isinstance(each.content, TopicDataset)]
    found = next((failure for failure in failures if failure is not None), None)
    return found or UsageError(f"{engine} cannot run the statement{_hint(tables, str(error))}: {error}")


def _hint(tables: Sequence[Table], told: str) -> str:
    """What the engine does not know: the tables, and that the name of one may be a word of SQL, as that of the topic `default` is."""
    if not tables:
        return "; it names no topic that there is (FROM quiver.topics lists them)" if _IS_UNKNOWN.search(told) else ""
    word = _AT_A_WORD.search(told)
    is_name = word is not None and any(word[1] in (each.schema, each.name) for each in tables)
    quoted = (
        f"; a name that is a word of SQL stands in double quotes: {word[0]}" if word is not None and is_name else ""
    )
    return f"; tables: {', '.join(map(str, tables))}{quoted}"


def _duckdb(statement: str, tables: Sequence[Table], limits: SqlLimits) -> pa.RecordBatchReader:
    import duckdb

    _check_letters(statement, tables)
    connection = _closed_duckdb(limits.memory_bytes)
    for number, table in enumerate(tables):
        connection.register(f"_quiver_{number}", table.content)
        schema = "main" if table.schema is None else table.schema
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        connection.execute(f"CREATE VIEW {_quoted(schema)}.{_quoted(table.name)} AS FROM _quiver_{number}")
    connection.execute("SET lock_configuration = true")
    reading = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    statements = connection.extract_statements(statement)
    if len(statements) != 1 or statements[0].type not in reading:
        raise UsageError("expected one statement that reads, such as SELECT, DESCRIBE, SUMMARIZE or EXPLAIN")
    running = Statement(limits, connection.interrupt)
    return running.begin(lambda: connection.sql(statement).to_arrow_reader(_ROWS_AT_ONCE))


def _closed_duckdb(memory_bytes: int) -> Any:
    """Return a connection to an empty database that reaches neither files nor the network, and tells no path of this host."""
    import duckdb

    closed = dict.fromkeys(
        ("autoinstall_known_extensions", "autoload_known_extensions", "python_enable_replacements"), "false"
    )
    connection = duckdb.connect(":memory:", config={**closed, "temp_directory": "", "memory_limit": f"{memory_bytes}B"})
    # Without it, DuckDB lets a statement read and write the files `:memory:` and `:memory:.wal` of the working directory.
    connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
    connection.execute("SET secret_directory = ''")  # its default tells the user's home
    # Not among the options above: then the setting allowed_paths would tell the working directory.
    connection.execute("SET enable_external_access = false")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _check_letters(statement: str, tables: Sequence[Table]) -> None:
    """Raises UsageError: the statement names a column that DuckDB would take for another one, as it does not look at the case of names."""
    for table in tables:
        alike: dict[str, list[str]] = {}
        for name in table.content.schema.names:
            alike.setdefault(name.casefold(), []).append(name)
        for names in alike.values():
            if len(names) > 1 and re.search(rf"(?<!\w){re.escape(names[0])}(?!\w)", statement, re.IGNORECASE):
                raise UsageError(
                    f"columns {', '.join(names)} of {table} differ in the case of letters only, and DuckDB takes them for one: use "
                    "the engine datafusion, with the names in double quotes"
                )


def _datafusion(statement: str, tables: Sequence[Table], limits: SqlLimits) -> pa.RecordBatchReader:
    import pyarrow.dataset as ds
    from datafusion import SessionContext, SQLOptions
    from datafusion.catalog import Schema
    from datafusion.catalog import Table as CatalogTable

    if limits.timeout_seconds:
        raise UsageError("a time limit needs the engine duckdb")
    context = SessionContext()
    catalog = context.catalog()
    schemas = {"": catalog.schema()}
    for table in tables:
        schema = table.schema or ""
        if schema not in schemas:
            schemas[schema] = Schema.memory_schema()
            catalog.register_schema(schema, schemas[schema])
        content = table.content if isinstance(table.content, TopicDataset) else ds.InMemoryDataset(table.content)
        schemas[schema].register_table(table.name, CatalogTable(content))
    reads_only = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    return pa.RecordBatchReader.from_stream(context.sql_with_options(statement, reads_only))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


ENGINES: dict[str, Engine] = {"duckdb": _duckdb, "datafusion": _datafusion}
