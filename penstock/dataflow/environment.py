"""`StreamExecutionEnvironment`: the context in which a program is built and executed.

Settings and execution are in `BaseEnvironment`; this module adds the sources and feedbacks, where
streams begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorKind, OperatorOutput
from penstock.dataflow.source import Source
from penstock.dataflow.stream import DataStream, FeedbackStream
from penstock.dataflow.time.watermarks import WatermarkStrategy, check_watermark_strategy

__all__ = ["StreamExecutionEnvironment"]


class StreamExecutionEnvironment(BaseEnvironment):
    """The context in which a streaming program is built and executed.

    A program gets its sources here, transforms their streams, and calls `execute`:

        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection(["a", "b", "a"]).key_by(lambda word: word).count().print()
        env.execute("count words")

    (Flink: `StreamExecutionEnvironment`.)

    Arguments:
        config: settings to begin with; None takes the defaults.
    """

    @staticmethod
    def get_execution_environment(
        configuration: JobConfig | None = None,
    ) -> StreamExecutionEnvironment:
        """Return a new environment.

        Arguments:
            configuration: settings to begin with; None takes the defaults.
        """
        return StreamExecutionEnvironment(configuration)

    # ---- sources

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str | None = None,
    ) -> DataStream:
        """Return the stream of the records of a source.

        Arguments:
            source: the source to read.
            watermark_strategy: None or `WatermarkStrategy.no_watermarks()`.
            source_name: shown in plans, reports and errors.

        Raises:
            GraphError: for a watermark strategy that would be ignored, or if the source finds a
                mistake in its arguments.
        """
        if not isinstance(source, Source):
            raise GraphError(f"from_source takes a Source, not {source!r}")
        check_watermark_strategy(watermark_strategy)
        source.validate()
        name = source_name or f"Source: {type(source).__name__}"
        operator = self._add_operator(OperatorKind.SOURCE, name, source)
        return DataStream(self, [OperatorOutput(operator)])

    def from_collection(self, collection: Iterable[Any], type_info: Any = None) -> DataStream:
        """Return the stream of the elements of a collection.

        Arguments:
            collection: read once, in this call.
            type_info: ignored; accepted for PyFlink programs.
        """
        del type_info
        from penstock.connectors import CollectionSource

        return self.from_source(CollectionSource(list(collection)), None, "Source: Collection")

    def from_sequence(self, start: int, end: int) -> DataStream:
        """Return the stream of the whole numbers from `start` to `end`, both included."""
        from penstock.connectors import SequenceSource

        return self.from_source(SequenceSource(start, end), None, "Source: Sequence")

    def from_generator(
        self,
        function: Callable[[int], Any],
        count: int | None = None,
        records_per_second: float | None = None,
    ) -> DataStream:
        """Return the stream `function(0)`, `function(1)`, … (Flink: `DataGeneratorSource`.)

        Arguments:
            function: returns the record with this index; must return the same one in every call.
            count: number of records; None never ends.
            records_per_second: largest rate of all subtasks together; None is unlimited.
        """
        from penstock.connectors import GeneratorSource

        source = GeneratorSource(function, count, records_per_second)
        return self.from_source(source, None, "Source: Generator")

    def from_iterable(self, factory: Callable[..., Iterable[Any]]) -> DataStream:
        """Return the stream of the items of one iterable in each subtask.

        Arguments:
            factory: called as `factory(subtask, parallelism)`; returns the subtask's iterable.
        """
        from penstock.connectors import IterableSource

        return self.from_source(IterableSource(factory), None, "Source: Iterable")

    def read_text_file(
        self, file_path: str | Path | Sequence[str | Path], charset_name: str = "utf-8"
    ) -> DataStream:
        """Return the stream of the lines of text files, without their line ends.

        Arguments:
            file_path: a file, a folder, a glob pattern, or several of these. Files that end in
                `.gz` are unpacked.
            charset_name: encoding of the files.
        """
        from penstock.connectors import FileSource, TextLines

        source = FileSource(file_path, TextLines(encoding=charset_name))
        return self.from_source(source, None, "Source: Text Files")

    def socket_text_stream(self, host: str, port: int, delimiter: str = "\n") -> DataStream:
        """Return the stream of the lines that a socket receives.

        A socket cannot be read again, so a failure may lose lines.

        Arguments:
            host: name or address to connect to.
            port: TCP port to connect to.
            delimiter: the text between two lines.
        """
        from penstock.connectors import SocketSource

        stream = self.from_source(SocketSource(host, port, delimiter), None, "Source: Socket")
        operator = stream._outputs[0].operator
        operator.parallelism, operator.non_parallel_reason = 1, "a socket has one reader"
        return stream

    # ---- loops

    def create_feedback(self, name: str) -> FeedbackStream:
        """Return a stream that is used now and given its records later, by `close_with`.

        `DataStream.iterate` is the short form for a stream that is united with a feedback of its
        own.

            again = env.create_feedback("again")
            steps = env.from_sequence(1, 9).union(again).map(lambda n: n - 1)
            again.close_with(steps.filter(lambda n: n > 0))

        Arguments:
            name: shown in errors; unique within the program.

        Raises:
            GraphError: for a name that is not a text, is empty, or is taken.
        """
        return FeedbackStream(self, [self._add_feedback(name)])
