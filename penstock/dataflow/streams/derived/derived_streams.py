"""The methods of all streams that are built from other methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic

from penstock.dataflow.arguments.durations import DurationLike
from penstock.dataflow.arguments.fields import value_of
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import ReduceFunction
from penstock.dataflow.graph.cached_streams import StoredRecords
from penstock.dataflow.graph.event_time import gives_timestamps
from penstock.dataflow.graph.job_graph import OperatorKind, OperatorOutput
from penstock.dataflow.state import StateTtlConfig
from penstock.dataflow.streams.building import add_filter, add_map
from penstock.dataflow.streams.record_functions import FirstOfKey, RandomSample
from penstock.dataflow.streams.windowed_stream import BaseWindowedStream
from penstock.dataflow.type_variables import S_co, T_co
from penstock.dataflow.windows import (
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    WindowAssigner,
)

__all__ = ["DerivedStreams", "windows_of"]


class DerivedStreams(Generic[T_co, S_co]):
    """Adds methods that a program could also build from the other methods of a stream."""

    _environment: BaseEnvironment

    def distinct(self, by: Any = None, ttl: StateTtlConfig | DurationLike | None = None) -> S_co:
        """Keep the first of equal records.

        The stream is partitioned by the compared values: the records, or the results of `by`.

        Arguments:
            by: the value that is compared: a function of one record, or the position or name of a
                field. With None, whole records are compared, and their type must be allowed for
                keys.
            ttl: how long a record is remembered, by processing time: a `StateTtlConfig`, or a time.
                With None, no record is forgotten, so the state may grow without limit.

        Raises:
            GraphError: if `by` or `ttl` is not one of these values.
        """
        if ttl is not None and not isinstance(ttl, StateTtlConfig):
            ttl = StateTtlConfig.new_builder(ttl).build()
        stream: S_co = self._filter_keyed(value_of("distinct", by), "Distinct", FirstOfKey(ttl))
        return stream

    def cache(self) -> Any:
        """Store the records when they are first computed, for later executions.

        Later executions of this environment read the stored records. The records are in files on
        this machine, which are removed when the program ends. (PyFlink: `cache`.)

        Returns:
            A `CachedDataStream`: this stream, with a method `invalidate`.

        Raises:
            GraphError: if the stream comes from an unbounded source.
        """
        from penstock.connectors.cache import RecordCache

        stream: Any = self._transform(add_map, "Cache", _same)
        output: OperatorOutput = stream._outputs[0]
        graph = self._environment._graph
        ids = graph.upstream([output.operator.id])
        before = [one for one in graph.operators if one.id in ids]
        for one in before:
            if one.kind is OperatorKind.SOURCE and not one.function.ends:
                raise GraphError(
                    f"cache() stores all records of a stream, and {one.name!r} is unbounded: write "
                    f"the records to a sink"
                )
        timed = any(map(gives_timestamps, before))
        records = RecordCache(timed, [one.function for one in before if one is not output.operator])
        self._environment._add_cache(output, records)
        return self._cached_stream_of(output, records)

    def sample(self, fraction: float, seed: int | None = None) -> S_co:
        """Keep each record with a probability.

        Arguments:
            fraction: the probability, from 0 to 1.
            seed: a whole number. With the same seed, the same records are kept, if the records of
                each subtask have the same order. With None, each run has a different sample.

        Raises:
            GraphError: if `fraction` is not from 0 to 1, or if `seed` is not a whole number.
        """
        number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not number or not 0 <= fraction <= 1:
            raise GraphError(f"the fraction of a sample is a number from 0 to 1, not {fraction!r}")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise GraphError(f"the seed of a sample is a whole number, not {seed!r}")
        stream: S_co = self._transform(add_filter, "Sample", RandomSample(fraction, seed))
        return stream

    def reduce_by_window(
        self,
        func: Callable[[T_co, T_co], T_co] | ReduceFunction[T_co],
        size: DurationLike,
        slide: DurationLike | None = None,
        inverse: Callable[[T_co, T_co], T_co] | ReduceFunction[T_co] | None = None,
    ) -> S_co:
        """Combine the records of each event-time window into one record.

        On a keyed stream, the records of each key are combined. Otherwise one subtask combines all
        records. (Discretized Streams: `reduceByWindow`.)

        Arguments:
            func: a function that combines two records.
            size: the length of a window, in milliseconds, as a `timedelta` or as a `Time`.
            slide: the time between the starts of two windows. With None, it is `size`.
            inverse: a function `(result, leaving)` that subtracts the part that leaves the window
                from the result. With it, only the records that enter and leave a window are
                processed, so the size of the window does not matter.

        Raises:
            GraphError: if an argument is wrong, or if the records have no event times.
        """
        stream: S_co = self._windowed(windows_of(size, slide)).reduce(func, inverse=inverse)
        return stream

    def _windowed(self, assigner: WindowAssigner) -> BaseWindowedStream[T_co, TimeWindow, S_co]:
        """Return this stream, grouped by windows."""
        windowed: BaseWindowedStream[T_co, TimeWindow, S_co] = self._window_all_of(assigner)
        return windowed

    @abstractmethod
    def _window_all_of(self, window_assigner: WindowAssigner) -> Any:
        """Return this stream, grouped by windows without keys."""

    @abstractmethod
    def _cached_stream_of(self, output: OperatorOutput, records: StoredRecords) -> Any:
        """Return a cached stream with this output."""

    @abstractmethod
    def _filter_keyed(self, key_of: Any, name: str, function: Any) -> Any:
        """Key the stream, and add a filter function with keyed state."""

    @abstractmethod
    def _transform(self, add: Callable[..., OperatorOutput], *arguments: Any) -> Any:
        """Add an operator that reads this stream, and return a stream with its output."""


def windows_of(size: DurationLike, slide: DurationLike | None) -> WindowAssigner[Any, TimeWindow]:
    """Return the assigner of event-time windows that slide, or that tumble if `slide` is None."""
    if slide is None:
        return TumblingEventTimeWindows.of(size)
    return SlidingEventTimeWindows.of(size, slide)


def _same(record: Any) -> Any:
    return record
