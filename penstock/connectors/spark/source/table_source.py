"""Read a Spark table, view, query or DataFrame as it was when the job began.

Before the job starts, the program *pins* the rows (`pin.py`): it stores them in the job's folder.
Only the program needs a Spark session and a JVM; the workers need neither. A resumed job reads the
pin that its snapshot names, even if the table has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.spark.active_session import require_spark, spark_session
from penstock.connectors.spark.source.pin import load_pin, new_pin_id, remove_pin
from penstock.connectors.spark.source.pin_reader import (
    PinReader,
    check_columns,
    find_pin,
    splits_of,
)
from penstock.connectors.spark.source.pin_writer import make_pin
from penstock.dataflow.errors import GraphError
from penstock.dataflow.source import (
    Preparation,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD_KINDS = ("dict", "tuple", "row", "arrow")


class SparkTableSource(Source):
    """Reads each row of a Spark table, view, query or DataFrame once.

    The table is pinned when the job is executed: its rows are stored in the job's folder. The job
    reads the rows of that moment, also after a restart or a resume. Later changes of the table have
    no effect. All workers must have access to the job's folder. Spark's executors need access too,
    unless the pin consists of links to the table's files. The order of the rows is undefined.

    Arguments:
        table: the name of a table or a view, or a (batch) DataFrame.
        query: a SQL query, instead of a table.
        columns: the columns to read, in this order. By default, these are all columns, or the
            fields of the class `as_`.
        where: one or more conditions, as SQL or as Spark columns. A row must meet all of them.
        as_: the kind of record. It is "dict", "tuple" (the fastest), "row" (a named tuple),
            "arrow", or a dataclass or named tuple of the program whose fields are column names.
            With "arrow", a record is a `pyarrow.RecordBatch` of at most 65,536 rows. It can be
            passed on only within an operator chain.
        conf, master: the settings and the master of a new session, if the program has no session;
            see `spark_session`.

    Raises:
        GraphError: if an argument is not valid, or if penstock[spark] is not installed.

    Examples:
        >>> spark = spark_session()
        >>> spark.range(3).createOrReplaceTempView("numbers")
        >>> source = SparkTableSource("numbers", where="id > 0", as_="tuple")
        >>> sorted(env.from_source(source).execute_and_collect())
        [(1,), (2,)]
    """

    has_event_times = False

    def __init__(
        self,
        table: str | DataFrame | None = None,
        *,
        query: str | None = None,
        columns: Sequence[str] | None = None,
        where: str | Column | Sequence[str | Column] | None = None,
        as_: str | type = "dict",
        conf: dict[str, Any] | None = None,
        master: str = "local[2]",
    ) -> None:
        require_spark()
        from pyspark.sql import Column, DataFrame

        if (table is None) == (query is None):
            raise GraphError("a Spark table source needs a table or a query, and not both")
        if not isinstance(table, str | DataFrame | None) or not isinstance(query, str | None):
            raise GraphError(
                f"a Spark table source takes the name of a table, a DataFrame or a query as text, "
                f"not {table if query is None else query!r}"
            )
        if isinstance(table, DataFrame) and table.isStreaming:
            raise GraphError("the DataFrame is a stream: read it with SparkStreamSource")
        if isinstance(columns, str) or (columns is not None and not columns):
            raise GraphError(f"columns is a list with at least one name, not {columns!r}")
        conditions = [where] if isinstance(where, str | Column) else where or ()
        if not isinstance(conditions, list | tuple) or not all(
            isinstance(condition, str | Column) for condition in conditions
        ):
            raise GraphError(f"where is SQL, a column of Spark, or a list of these, not {where!r}")
        self.columns, self.as_ = check_record_kind(columns, as_), as_
        self._table, self._query = table, query
        self._conditions = conditions
        self._conf, self._master = conf, master
        self._folder: Path | None = None
        self._pin_id: str | None = None
        #: The named tuple class of the records if `as_` is "row", and else None. `prepare` sets it.
        self._row_class: type | None = None
        self._row_columns: list[str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle: all except the objects that need the JVM."""
        left: dict[str, Any] = {"_table": None, "_query": None, "_conditions": [], "_conf": None}
        return {**vars(self), **left}

    def prepare(self, preparation: Preparation) -> None:
        """Pin the table, unless the job is resumed and has already pinned the table."""
        self._folder = folder = preparation.folder
        state = preparation.state
        if state is not None:
            # If this job is a fork, the pin may be in the folder of the original job.
            self._pin_id = str(state["pin"])
            pin = find_pin(folder, self._pin_id, state["at"])
        elif preparation.resuming and (pin_id := newest_pin(folder)) is not None:
            # An earlier run of the job made this pin, and ended before its first snapshot.
            self._pin_id = pin_id
            pin = load_pin(folder / pin_id)
        else:
            self._pin_id = new_pin_id()
            pin = make_pin(self._frame(), folder / self._pin_id)
        names = check_columns(pin.schema, self.columns)
        if self.as_ == "row":
            from penstock.connectors.spark.record_decoding import row_class

            # The class becomes an attribute of the source, so it is serialized with the job's code.
            self._row_class, self._row_columns = row_class(tuple(names)), names

    def _frame(self) -> DataFrame:
        from pyspark.errors import PySparkException
        from pyspark.sql import DataFrame

        try:
            if isinstance(self._table, DataFrame):
                frame = self._table
            else:
                session = spark_session(self._conf, self._master)
                if self._table is not None:
                    frame = session.table(self._table)
                else:
                    assert self._query is not None
                    frame = session.sql(self._query)
            for condition in self._conditions:
                frame = frame.where(condition)
            if self.columns is not None:
                frame = frame.select(*("`" + c.replace("`", "``") + "`" for c in self.columns))
        except PySparkException as error:
            what = self._query or self._table
            where = f" {what!r}" if isinstance(what, str) else ""
            raise GraphError(f"Spark cannot read the source{where}: {error}") from error
        return frame

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Create an enumerator that assigns the splits of the pin to readers."""
        del parallelism
        return _PinEnumerator(self._folder, self._pin_id, self._row_columns or self.columns)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Create a reader for the splits of the pin."""
        del context
        columns = self._row_columns or self.columns
        return PinReader(self._folder, columns, self._row_class or self.as_)


class _PinEnumerator(SplitEnumerator):
    """Assigns the splits of one pin to readers, in order and to any subtask.

    Arguments:
        folder: the folder that contains the pins of the source.
        pin_id: the id of the pin to read if the job does not restore a snapshot.
        columns: the names of the columns that the pin must have; None for no check.
    """

    def __init__(
        self, folder: Path | None, pin_id: str | None, columns: Sequence[str] | None
    ) -> None:
        self._folder = folder
        self._pin_id = pin_id
        self._columns = columns
        self._at = ""
        self._splits: list[Split] = []
        self._next = 0

    def start(self) -> None:
        if self._folder is None or self._pin_id is None:
            raise GraphError(
                "the Spark table was not pinned: this way of running a job does not prepare its "
                "sources in the program; use execute()"
            )
        self._open(self._pin_id, str(self._folder / self._pin_id))

    def _open(self, pin_id: str, at: str) -> None:
        pin = find_pin(self._folder, pin_id, at)
        check_columns(pin.schema, self._columns)
        self._pin_id, self._at = pin_id, str(pin.folder)
        self._splits = splits_of(pin_id, pin)

    def next_split(self, subtask: int) -> Split | None:
        del subtask
        if self._next >= len(self._splits):
            return None
        self._next += 1
        return self._splits[self._next - 1]

    def snapshot(self) -> Any:
        return {"pin": self._pin_id, "at": self._at, "next": self._next}

    def restore(self, state: Any) -> None:
        self._open(state["pin"], state["at"])
        self._next = state["next"]

    def retain(self, states: Sequence[Any], begun: Sequence[Split]) -> None:
        # Unneeded pins come from runs that ended before their first snapshot and from old forks.
        del begun
        assert self._folder is not None
        needed = {state["pin"] for state in states} | {self._pin_id}
        for path in self._folder.glob("*/pin.json"):
            if path.parent.name not in needed:
                remove_pin(path.parent)


def newest_pin(folder: Path) -> str | None:
    """Return the id of the newest pin in a source's folder; None if there is none."""
    found = sorted(path.parent.name for path in folder.glob("[!.]*/pin.json"))
    return found[-1] if found else None


def check_record_kind(columns: Sequence[str] | None, as_: str | type) -> list[str] | None:
    """Check a kind of record, and return the columns to read; None for all columns.

    Arguments:
        columns: the columns that the user has selected, if any.
        as_: the kind of record, as for `SparkTableSource`.

    Raises:
        GraphError: if there is no such kind of record, or if `columns` differs from the fields of
            the class `as_`.
    """
    if isinstance(as_, str):
        if as_ not in RECORD_KINDS:
            raise GraphError(f"as_ is one of {', '.join(RECORD_KINDS)} or a class, not {as_!r}")
        return None if columns is None else list(columns)
    from penstock.connectors.spark.record_decoding import class_fields

    names = class_fields(as_)
    if columns is not None and list(columns) != names:
        raise GraphError(
            f"columns is {list(columns)}, and {as_.__name__} has the fields {names}: leave "
            f"columns away, or give the names of the fields in their order"
        )
    return names
