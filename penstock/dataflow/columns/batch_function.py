"""The functions of `map_batches`, which take and return whole batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.columns.arrow import check_schema, require_pyarrow
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import Function
from penstock.dataflow.state import RuntimeContext
from penstock.dataflow.type_variables import UserValue

if TYPE_CHECKING:
    import pyarrow as pa

#: The forms in which a batch function may take its batches.
FORMATS = ("arrow", "pandas", "polars", "rows")


class BatchFunction(Function):
    """Maps whole batches. Unlike a plain function, it can open resources once.

    Examples:
        >>> class Double(BatchFunction):
        ...     def map_batch(self, batch):
        ...         import pyarrow.compute
        ...         doubled = pyarrow.compute.multiply(batch["amount"], 2)
        ...         return batch.set_column(0, "amount", doubled)
        >>> import pyarrow
        >>> rows = env.from_source(ArrowSource(pyarrow.table({"amount": [5, 7]})))
        >>> list(rows.map_batches(Double()).map(lambda row: row["amount"]).execute_and_collect())
        [10, 14]
    """

    @abstractmethod
    def map_batch(self, batch: UserValue) -> UserValue:
        """Return the rows for a batch, in any of the forms that `map_batches` accepts."""


class BatchOperation(Function):
    """Describes a call of `map_batches`: a batch function and the form of its batches.

    Arguments:
        function: a function of a batch, or a `BatchFunction`.
        format: the form of the batches: one of `FORMATS`.
        keep_rows: whether the function returns exactly one row for each row, in their order.
        timestamps: the column of the results with the event times; None if there is none.
        schema: the types of the columns, if the input consists of rows; None to infer them from the
            values.

    Raises:
        GraphError: if an argument is wrong, or a package is not installed.
    """

    def __init__(
        self,
        function: Callable[[UserValue], UserValue] | BatchFunction,
        format: str,
        keep_rows: bool,
        timestamps: str | None,
        schema: object,
    ) -> None:
        if format not in FORMATS:
            raise GraphError(
                f"the format of map_batches is one of {', '.join(FORMATS)}, not {format!r}"
            )
        if keep_rows and timestamps is not None:
            raise GraphError(
                "map_batches takes keep_rows or timestamps, not both: with keep_rows, each row "
                "keeps its event time"
            )
        if timestamps is not None and (not isinstance(timestamps, str) or not timestamps):
            raise GraphError(f"timestamps is the name of a column, not {timestamps!r}")
        if format != "rows":
            require_pyarrow(f'map_batches(format="{format}")')
        if format in ("pandas", "polars"):
            _require(format)
        self.function = function
        self.call = _callable_of(function)
        self.format, self.keep_rows, self.timestamps = format, keep_rows, timestamps
        self.schema: pa.Schema | None = check_schema("map_batches", schema)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function, if it has a method for this."""
        if isinstance(self.function, Function):
            self.function.open(runtime_context)

    def close(self) -> None:
        """Close the function, if it has a method for this."""
        if isinstance(self.function, Function):
            self.function.close()


def _callable_of(function: object) -> Callable[[UserValue], UserValue]:
    if isinstance(function, BatchFunction):
        return function.map_batch
    if isinstance(function, type) and issubclass(function, Function):
        raise GraphError(
            f"map_batches takes an object, not the class: write map_batches({function.__name__}())"
        )
    if isinstance(function, Function) or not callable(function):
        raise GraphError(f"map_batches takes a function or a BatchFunction, not {function!r}")
    check_argument_count("map_batches", function, 1, "(batch)")
    call: Callable[[UserValue], UserValue] = function
    return call


def _require(package: str) -> None:
    try:
        __import__(package)
    except ImportError as error:
        raise GraphError(
            f'map_batches(format="{package}") needs {package}: install it with '
            f'pip install "penstock[columns]"'
        ) from error
