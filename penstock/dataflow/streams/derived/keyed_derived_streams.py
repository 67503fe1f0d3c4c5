"""The methods of keyed streams that are built from process functions and keyed state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of, whole_number
from penstock.dataflow.arguments.fields import value_of
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.building import add_keyed_process, add_map
from penstock.dataflow.streams.history_join import HistoryJoin
from penstock.dataflow.streams.record_functions import StatefulMap, TopK
from penstock.dataflow.streams.state_tracking import StateTracking
from penstock.dataflow.time import TimeDomain

__all__ = ["KeyedDerivedStreams"]


class KeyedDerivedStreams:
    """Methods that a program could also write as a `KeyedProcessFunction`."""

    def map_with_state(self, func: Callable[[Any, Any], tuple[Any, Any]], initial: Any) -> Any:
        """Map each record with the state of its key.

            numbers = stream.key_by("user").map_with_state(lambda n, visit: (n + 1, (n, visit)), 0)

        Arguments:
            func: a function `(state, record)` that returns a pair (next state, result). If the next
                state is None, the state of the key is removed.
            initial: the first state; each key gets a copy. Or a function without arguments that
                returns it.

        Raises:
            GraphError: if `func` is not a function of two arguments, or if `initial` is None.
        """
        check_argument_count("map_with_state", func, 2, "(state, record)")
        if initial is None:
            raise GraphError(
                "map_with_state needs an initial state other than None, which means that a key has "
                "no state"
            )
        if callable(initial):
            check_argument_count("map_with_state (initial)", initial, 0, "()")
        return self._transform(add_map, "Map With State", StatefulMap(func, initial))

    def track(
        self,
        initialize: Callable[[Any, Any], Any],
        update: Callable[[Any, Any, Any], Any],
        timeout: DurationLike | None = None,
        time_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> Any:
        """Track a state of each key from event to event, and emit (key, state) after each event.

            sessions = events.key_by("user").track(
                lambda user, event: 1,
                lambda user, count, event: None if event.kind == "exit" else count + 1,
                timeout=Time.minutes(30),
            )

        When a state ends, (key, None) is emitted. The next event of the key begins another state.
        (Discretized Streams, section 3.3: `track`.)

        Arguments:
            initialize: a function `(key, event)` that returns the first state. If it returns None,
                the event is ignored.
            update: a function `(key, state, event)` that returns the next state. If it returns
                None, the state ends.
            timeout: the state ends when its key has had no event for this time. With None, there is
                no timeout.
            time_domain: whether the timeout is by event time or by processing time.

        Raises:
            GraphError: if an argument is wrong, or if the timeout is by event time and the records
                have no event times.
        """
        check_argument_count("track (initialize)", initialize, 2, "(key, event)")
        check_argument_count("track (update)", update, 3, "(key, state, event)")
        if not isinstance(time_domain, TimeDomain):
            raise GraphError(f"time_domain is a TimeDomain, not {time_domain!r}")
        timeout_ms = None if timeout is None else milliseconds_of("timeout", timeout, least=1)
        by_event_time = time_domain is TimeDomain.EVENT_TIME
        function = StateTracking(initialize, update, timeout_ms, by_event_time)
        return self._transform(add_keyed_process, "Track", function)

    def join_history(
        self,
        past: DurationLike,
        func: Any = None,
        late_tag: OutputTag | None = None,
    ) -> Any:
        """Join each record with the earlier records of its key, and emit the result of `func`.

            payments.key_by("card").join_history(
                Time.hours(1), lambda payment, earlier: (payment, sum(p.amount for p in earlier))
            )

        Records are joined in the order of their event times. So a record is emitted when the
        watermark has reached its time.

        Arguments:
            past: the maximum difference between the event times of a record and of an earlier
                record with which it is joined. The limit itself is included.
            func: a function `(record, earlier records)`. The earlier records are in the order of
                their times. With None, the pair (record, earlier records) is emitted.
            late_tag: the side output for late records, which arrive after the watermark. With None,
                they are dropped.

        Raises:
            GraphError: if an argument is wrong, or if the records have no event times.
        """
        past_ms = milliseconds_of("past", past)
        if func is not None:
            check_argument_count("join_history", func, 2, "(record, earlier records)")
        if late_tag is not None and not isinstance(late_tag, OutputTag):
            raise GraphError(f"late_tag is an OutputTag, not {late_tag!r}")
        function = HistoryJoin(past_ms, _pair if func is None else func, late_tag)
        return self._transform(add_keyed_process, "Join History", function)

    def top_k(self, k: int, by: Any = None) -> Any:
        """Emit (key, its `k` best records) whenever these have changed. The best one comes first.

        If two records have equal values, the earlier one is better.

        Arguments:
            k: the number of records, at least 1.
            by: the value by which records are compared, where the largest is best: a function of
                one record, or the position or name of a field. With None, it is the record itself.

        Raises:
            GraphError: if `k` or `by` is not one of these values.
        """
        function = TopK(whole_number("k", k, least=1), value_of("top_k", by))
        return self._transform(add_keyed_process, "Top K", function)

    @abstractmethod
    def _transform(self, add: Callable[..., OperatorOutput], *arguments: Any) -> Any:
        """Add an operator that reads this stream, and return a stream with its output."""


def _pair(record: Any, earlier: list[Any]) -> tuple[Any, list[Any]]:
    return record, earlier
