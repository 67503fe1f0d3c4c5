"""The methods of a stream that write its records to a sink, or return them to the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Generic, overload

from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import SinkFunction, check_function
from penstock.dataflow.program import CloseableIterator
from penstock.dataflow.sink import Sink
from penstock.dataflow.streams.building import OperatorInput, add_sink, keeps_type
from penstock.dataflow.streams.operator_settings import DataStreamSink, OperatorSettings
from penstock.dataflow.streams.record_table import RecordTable
from penstock.dataflow.type_variables import T, T_co
from penstock.dataflow.types import TypeInformation, Types

__all__ = ["StreamResults"]

#: The type of streams without a declared type.
ANY = Types.PICKLED_BYTE_ARRAY()


class StreamResults(OperatorSettings, Generic[T_co]):
    """Methods that use the records of a stream."""

    #: The function that returns the key of a record; None if the stream is not keyed.
    _selector: Any = None

    def sink_to(self, sink: Sink[T_co]) -> DataStreamSink:
        """Write the records to a sink.

        Raises:
            GraphError: if `sink` is not a `Sink`, or if the sink finds a mistake in its arguments.
        """
        if not isinstance(sink, Sink):
            raise GraphError(f"sink_to takes a Sink, not {sink!r}; for a function use add_sink")
        sink.validate()
        output = add_sink(self._input, sink)
        return DataStreamSink(self._environment, [output])

    def add_sink(
        self, sink_func: Callable[[T_co], object] | SinkFunction[T_co] | Sink[T_co]
    ) -> DataStreamSink:
        """Call a function with each record, at least once.

        After a failure, the function may be called with the same records again.
        """
        if isinstance(sink_func, Sink):
            return self.sink_to(sink_func)
        # The import is inside the method because connectors import this package.
        from penstock.connectors import FunctionSink

        return self.sink_to(FunctionSink(check_function(sink_func, SinkFunction, "add_sink")))

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Print the records. If there are several subtasks, also print the subtask's number.

        Records of a declared type are printed as Flink prints them, others as Python does.

        Arguments:
            sink_identifier: a text that is printed before each record.
        """
        from penstock.connectors import PrintSink

        kind = self.get_type()
        sink = PrintSink(sink_identifier, type_info=kind if kind != ANY else None)
        return self.sink_to(sink).name("Print to Std. Out")

    @overload
    def execute_and_collect(
        self,
        job_execution_name: str | None = None,
        limit: None = None,
        *,
        in_process: bool | None = None,
    ) -> CloseableIterator[T_co]: ...

    @overload
    def execute_and_collect(
        self, job_execution_name: str | None, limit: int, *, in_process: bool | None = None
    ) -> list[T_co]: ...

    @overload
    def execute_and_collect(
        self,
        job_execution_name: str | None = None,
        *,
        limit: int,
        in_process: bool | None = None,
    ) -> list[T_co]: ...

    def execute_and_collect(
        self,
        job_execution_name: str | None = None,
        limit: int | None = None,
        *,
        in_process: bool | None = None,
    ) -> Any:
        """Run the operators that this stream depends on, and return its records.

        No sink of the program runs. Sinks that were added before wait for `execute`, and a warning
        names them, because in PyFlink they would run.

        Arguments:
            job_execution_name: the name of the job. If it is None, the name in the settings is
                used.
            limit: the number of records to return. If it is None, all records are returned.
            in_process: whether to run the job inside this process. The job then makes progress
                only while the program waits for the next record.

        Returns:
            A list of records if `limit` is given, else a `CloseableIterator` over the records.

        Raises:
            GraphError, JobError, StoreError: as for `StreamExecutionEnvironment.execute`.
        """
        self._environment._warn_of_pending_sinks()
        records = self._environment._collect(self._outputs, job_execution_name, in_process)
        return records if limit is None else _first(records, limit)

    def get_type(self) -> TypeInformation[Any]:
        """Return the declared type of the records.

        It is `Types.PICKLED_BYTE_ARRAY()`, the type of any record, if no type was declared, for
        side outputs, and for a union of streams of several types.
        """
        return self._common_type((output.operator.id, output.tag) for output in self._outputs)

    def _common_type(self, outputs: Iterable[tuple[int, str | None]]) -> TypeInformation[Any]:
        """Return the type of outputs, each an operator's id with the tag of a side output."""
        types = {self._type_of(*output) for output in outputs}
        return types.pop() if len(types) == 1 else ANY

    def _type_of(self, id: int, tag: str | None) -> TypeInformation[Any]:
        if tag is not None:
            return ANY
        graph = self._environment._graph
        operator = next(one for one in graph.operators if one.id == id)
        if operator.result_type is None and keeps_type(operator.kind):
            return self._common_type((edge.source, edge.tag) for edge in graph.inputs_of(id))
        declared: TypeInformation[Any] = operator.result_type or ANY
        return declared

    def take(self, n: int, *, in_process: bool | None = None) -> list[T_co]:
        """Run the operators that this stream depends on, and return its first `n` records.

        The job is then stopped. The list is shorter if the stream ends before. No sink of the
        program runs: `execute` runs them.

        Arguments:
            n: the number of records.
            in_process: as for `execute_and_collect`.

        Raises:
            GraphError, JobError, StoreError: as for `StreamExecutionEnvironment.execute`.
        """
        limit = whole_number("the number of records", n, least=1)
        return _first(self._environment._collect(self._outputs, None, in_process), limit)

    def show(self, n: int = 20, *, in_process: bool | None = None) -> None:
        """Run the operators that this stream depends on, and show its first records as a table.

        In a notebook the table is a part of the page; else it is printed. No sink of the program
        runs: `execute` runs them.

        Arguments:
            n: the largest number of records.
            in_process: as for `execute_and_collect`.

        Raises:
            GraphError, JobError, StoreError: as for `StreamExecutionEnvironment.execute`.
        """
        n = whole_number("the number of records", n, least=1)
        records = self.take(n + 1, in_process=in_process)
        RecordTable(records[:n], more=len(records) > n).display()

    @property
    def _input(self) -> OperatorInput:
        """The records of this stream, for the next operator."""
        return OperatorInput(self._environment, self._outputs, self._selector)


def _first(records: CloseableIterator[T], limit: int) -> list[T]:
    with records:
        return list(islice(records, limit))
