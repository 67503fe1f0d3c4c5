"""Define `StreamExecutionEnvironment`, with which a program is built and executed.

`BaseEnvironment` contains the methods for settings and execution. This module adds the methods that
create streams from sources and from feedbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import overload

from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.config import Configuration, JobConfig
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.operators import specs
from penstock.dataflow.source import Source
from penstock.dataflow.streams import DataStream, FeedbackStream
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy, check_watermark_strategy
from penstock.dataflow.type_variables import R, T, UserFunction, UserValue
from penstock.dataflow.types import TypeInformation, check_type_info


class StreamExecutionEnvironment(BaseEnvironment):
    """The context in which a streaming program is built and executed.

    A program creates streams from sources, transforms the streams, and calls `execute`:

        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection(["a", "b", "a"]).key_by(lambda word: word).count().print()
        env.execute("count words")

    (Flink: `StreamExecutionEnvironment`.)

    Arguments:
        config: the initial settings. If it is None, they are those of `penstock.toml`, and else the
            defaults.

    Examples:
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> words = env.from_collection(["to", "be", "to"])
        >>> _ = words.key_by(lambda word: word).count().print()
        >>> _ = env.execute("words", in_process=True)
        ('to', 1)
        ('be', 1)
        ('to', 2)
    """

    @staticmethod
    def get_execution_environment(
        configuration: JobConfig | Configuration | None = None,
    ) -> StreamExecutionEnvironment:
        """Return a new environment.

        Arguments:
            configuration: the initial settings. If it is None, they are those of `penstock.toml`,
                and else the defaults.

        Raises:
            GraphError: if the value of a key of a `Configuration` is wrong.
        """
        if isinstance(configuration, Configuration):
            return StreamExecutionEnvironment().configure(configuration)
        return StreamExecutionEnvironment(configuration)

    # ---- methods that add sources

    def from_source(
        self,
        source: Source[T],
        watermark_strategy: WatermarkStrategy[T] | None = None,
        source_name: str | None = None,
        type_info: object = None,
    ) -> DataStream[T]:
        """Return a stream with the records of a source.

        Arguments:
            source: the source to read.
            watermark_strategy: how records get timestamps and watermarks; None if they
                have none.
            source_name: the name that plans, reports and errors show.
            type_info: the type of the records, which are checked; None if any type is allowed.
                With the type of a row, tuples and lists become `Row`s.

        Raises:
            GraphError: if `source` is not a `Source`, if `watermark_strategy` is not a
                `WatermarkStrategy`, or if the source finds a mistake in its own arguments.
        """
        if not isinstance(source, Source):
            raise GraphError(f"from_source takes a Source, not {source!r}")
        check_watermark_strategy(watermark_strategy)
        check_type_info("from_source", type_info)
        source.validate()
        name = source_name or f"Source: {type(source).__name__}"
        operator = self._add_operator(specs.source(source), name, source)
        if watermark_strategy is None and source.emits_watermarks:
            watermark_strategy = WatermarkStrategy.no_watermarks()  # the source has its own
        operator.watermark_strategy = watermark_strategy
        if isinstance(type_info, TypeInformation):
            operator.result_type = type_info
        return DataStream(self, [OperatorOutput(operator)])

    @overload
    def from_collection(self, collection: Iterable[T], type_info: None = None) -> DataStream[T]: ...

    @overload
    def from_collection(
        self, collection: Iterable[object], type_info: TypeInformation[R]
    ) -> DataStream[R]: ...

    @overload
    def from_collection(self, collection: Iterable[T], type_info: UserValue) -> DataStream[T]: ...

    def from_collection(
        self, collection: Iterable[object], type_info: UserValue = None
    ) -> DataStream:
        """Return a stream with the elements of a collection, in their order.

        The source has one subtask. Later operators have the parallelism of the job. To read a
        large collection in parallel, pass a `CollectionSource` to `from_source`.

        Arguments:
            collection: the elements. The collection is read once, during this call.
            type_info: the type of the elements, such as `Types.ROW([Types.STRING()])`; None if any
                type is allowed. With the type of a row, tuples and lists become `Row`s.

        Raises:
            GraphError: if an element is not of this type.
        """
        from penstock.connectors import CollectionSource

        source = CollectionSource(_elements(collection, type_info))
        stream = self.from_source(source, None, "Source: Collection", type_info)
        return _non_parallel(stream, "a collection is read in its order, by one reader")

    def from_sequence(self, start: int, end: int) -> DataStream[int]:
        """Return a stream with the whole numbers from `start` to `end`, both included."""
        from penstock.connectors import SequenceSource

        return self.from_source(SequenceSource(start, end), None, "Source: Sequence")

    def from_generator(
        self,
        function: Callable[[int], T],
        count: int | None = None,
        records_per_second: float | None = None,
    ) -> DataStream[T]:
        """Return a stream with the records `function(0)`, `function(1)`, …

        (Flink: `DataGeneratorSource`.)

        Arguments:
            function: a function that returns the record with the given index. It must return the
                same record for the same index in every call.
            count: the number of records. If it is None, the stream never ends.
            records_per_second: the largest rate of all subtasks together. If it is None, there is
                no limit.
        """
        from penstock.connectors import GeneratorSource

        source = GeneratorSource(function, count, records_per_second)
        return self.from_source(source, None, "Source: Generator")

    def from_iterable(self, factory: UserFunction[Iterable[T]]) -> DataStream[T]:
        """Return a stream with the items of iterables. Each subtask reads one iterable.

        Arguments:
            factory: a function that is called as `factory(subtask, parallelism)`, and returns the
                iterable that this subtask reads.
        """
        from penstock.connectors import IterableSource

        return self.from_source(IterableSource(factory), None, "Source: Iterable")

    def read_text_file(
        self, file_path: str | Path | Sequence[str | Path], charset_name: str = "utf-8"
    ) -> DataStream[str]:
        """Return a stream with the lines of text files, without line ends.

        Arguments:
            file_path: a file, a folder, a glob pattern, or a list of these. Files whose names end
                with `.gz` are decompressed.
            charset_name: the encoding of the files.
        """
        from penstock.connectors import FileSource, TextLines

        source = FileSource(file_path, TextLines(encoding=charset_name))
        return self.from_source(source, None, "Source: Text Files")

    def socket_text_stream(self, host: str, port: int, delimiter: str = "\n") -> DataStream[str]:
        """Return a stream with the lines that are received from a TCP server.

        A socket cannot be read a second time, so a failure may lose lines.

        Arguments:
            host: the name or address of the server.
            port: the TCP port of the server.
            delimiter: the text between two lines.
        """
        from penstock.connectors import SocketSource

        stream = self.from_source(SocketSource(host, port, delimiter), None, "Source: Socket")
        return _non_parallel(stream, "a socket has one reader")

    # ---- methods that build loops

    def create_feedback(self, name: str) -> FeedbackStream[R]:
        """Return a feedback: a stream whose records are defined later, with `close_with`.

        Use it to build loops. For the simple case, a loop around one stream, call
        `DataStream.iterate` instead.

            again = env.create_feedback("again")
            steps = env.from_sequence(1, 9).union(again).map(lambda n: n - 1)
            again.close_with(steps.filter(lambda n: n > 0))

        Arguments:
            name: the name that errors show. It must be unique within the program.

        Raises:
            GraphError: if `name` is not a string, is empty, or belongs to another feedback.
        """
        return FeedbackStream(self, [self._add_feedback(name)])


def _non_parallel(stream: DataStream[T], reason: str) -> DataStream[T]:
    """Give the source of a stream one subtask, which the program cannot change."""
    operator = stream._outputs[0].operator
    operator.parallelism, operator.non_parallel_reason = 1, reason
    return stream


def _elements(collection: Iterable[object], type_info: object) -> list[object]:
    """Return the elements of a collection as values of a type; see `from_collection`."""
    elements = list(collection)
    check_type_info("from_collection", type_info)
    if isinstance(type_info, TypeInformation):
        for index, element in enumerate(elements):
            try:
                elements[index] = type_info.converted(element)
            except ValueError as error:
                raise GraphError(f"element {index} of the collection: {error}") from None
    return elements
