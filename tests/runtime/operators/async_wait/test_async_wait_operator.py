"""The operator of asynchronous requests by itself: a test ends its requests by hand."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from penstock import AsyncFunction, AsyncRetryStrategy, JobError, Row
from penstock.dataflow.time.watermark import NO_TIMESTAMP, Watermark
from penstock.runtime.operators.async_wait.request import Request
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.state.operator_state import redistribute
from tests.runtime.operators.async_wait.hand_calls import Bench


class WithTimeout(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]

    def timeout(self, value: Any) -> list[Any]:
        return [("late", value)]


def test_results_leave_in_order_with_the_times_of_their_records() -> None:
    bench = Bench().open()
    bench.send("a", "b", timestamps=[7, NO_TIMESTAMP])
    assert bench.caller.values == ["a", "b"] and not bench.operator.ready
    bench.caller.end("b", ["b1"])
    assert bench.woken == 1 and bench.output() == []
    bench.caller.end("a", ["a1", "a2"])
    out = bench.operator.next_output()
    assert isinstance(out, RecordBatch)
    assert out.rows() == ["a1", "a2", "b1"] and out.timestamps == [7, 7, NO_TIMESTAMP]


def test_no_more_requests_run_than_the_capacity_allows() -> None:
    bench = Bench().open()
    bench.send(*range(5))
    assert bench.caller.values == [0, 1, 2] and bench.operator.room == 0
    bench.caller.end(0, [])
    assert bench.output() == [] and bench.caller.values == [1, 2, 3]
    bench.caller.end(2, ["second"])  # whose result waits for that of 1
    assert bench.output() == [] and bench.caller.values == [1, 3]
    bench.caller.end(1, ["first"])
    assert bench.output() == ["first", "second"] and bench.caller.values == [3, 4]
    assert bench.operator.room == 1


def test_a_held_element_waits_for_the_requests_before_it() -> None:
    bench = Bench(ordered=False).open()
    assert not bench.operator.holds
    bench.send("a", "b")
    bench.operator.hold("channel", Watermark(5))
    bench.send("c")
    bench.caller.end("c", ["c"])
    bench.caller.end("b", ["b"])
    assert bench.output() == ["b"]
    bench.caller.end("a", ["a"])
    assert bench.output() == ["a", Watermark(5), "c"] and not bench.operator.holds


def test_an_error_has_the_traceback_the_operator_and_the_record() -> None:
    bench = Bench(ordered=False).open()
    bench.send("good", "bad")

    def fail() -> None:
        raise KeyError("no such user")

    try:
        fail()
    except KeyError as error:
        bench.caller.end("bad", error=error)
    with pytest.raises(JobError, match=r"KeyError in operator 'op'") as caught:
        bench.output()
    assert caught.value.record == "'bad'" and caught.value.operator == "op"
    assert 'raise KeyError("no such user")' in (caught.value.user_traceback or "")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (7, "the function returned an int: return a list of the records to emit"),
        (None, r"the function returned None: it lacks a `return`, or must return \[\]"),
        ("text", "returned a str: return a list"),
        ({"id": 1}, r"returned a dict: return a list .* for example \[result\]"),
        (Row(1, 2), "returned a Row: return a list"),
    ],
)
def test_a_result_that_is_no_list_is_refused(returned: Any, message: str) -> None:
    bench = Bench().open()
    bench.send("a")
    bench.caller.end("a", returned)
    with pytest.raises(JobError, match=message) as caught:
        bench.output()
    assert caught.value.record == "'a'"


@pytest.mark.parametrize("returned", [["x", "y"], ("x", "y"), iter("xy"), {"x": 1, "y": 2}.keys()])
def test_any_other_iterable_is_taken(returned: Any) -> None:
    bench = Bench().open()
    bench.send("a")
    bench.caller.end("a", returned)
    assert bench.output() == ["x", "y"]


# ---- timeouts


def test_a_request_that_takes_too_long_fails_the_job() -> None:
    bench = Bench().open()
    assert bench.operator.next_processing_time() is None
    bench.send("a")
    assert bench.operator.next_processing_time() == 6_000
    bench.advance(999)
    with pytest.raises(JobError, match=r"not ended within 1000 ms; .* define timeout\(value\)"):
        bench.advance(1)
    assert bench.caller.cancelled == ["a"]


def test_the_function_may_say_what_to_emit_after_a_timeout() -> None:
    bench = Bench(function=WithTimeout()).open()
    bench.send("a", "b")
    bench.caller.end("a", ["a"])
    bench.advance(1000)  # The outcome of a is here, although the task has not looked at it yet.
    bench.caller.end("b", ["too late"])
    assert bench.output() == ["a", ("late", "b")]
    assert bench.operator.next_processing_time() is None


def test_without_a_timeout_a_request_may_take_for_ever() -> None:
    bench = Bench(timeout_ms=0).open()
    bench.send("a")
    assert bench.operator.next_processing_time() is None


def test_the_time_of_a_request_begins_when_it_is_sent() -> None:
    bench = Bench(capacity=1, function=WithTimeout()).open()
    bench.send("a", "b")
    bench.advance(900)
    bench.caller.end("a", ["a"])
    assert bench.output() == ["a"]
    bench.advance(900)
    assert bench.output() == []
    bench.advance(100)
    assert bench.output() == [("late", "b")]


def requests_and_records() -> tuple[int, int]:
    """Count the requests, and the records and results like those of the test, in memory."""
    gc.collect()
    objects = gc.get_objects()
    dicts = [each for each in objects if type(each) is dict]
    return (
        sum(type(each) is Request for each in objects),
        sum("value" in each or "result" in each for each in dicts),
    )


@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_request_that_hangs_keeps_no_others_in_memory(ordered: bool, retried: bool) -> None:
    strategy = AsyncRetryStrategy.fixed_delay(
        5, 100, result_predicate=lambda results: results == ["again"]
    )
    bench = Bench(
        ordered=ordered, function=WithTimeout(), capacity=10, timeout_ms=10**9, strategy=strategy
    ).open()
    others = requests_and_records()
    bench.send({"hangs": [0]})
    done = 0
    for number in range(0, 6000, 3):
        # In an ordered queue, the results behind the request that hangs wait.
        if ordered and done == 9:
            bench.caller.end({"hangs": [0]}, [])
            assert len(bench.output()) == 9
            bench.send({"hangs": [0]})
            done = 0
        values = [{"value": [number + more]} for more in range(3)]
        bench.send(*values)
        if retried:
            for value in values:
                bench.caller.end(value, ["again"])
            assert bench.output() == []
            bench.advance(100)
        for value in values:
            bench.caller.end(value, [{"result": value["value"]}])
        done += 3
        emitted = len(bench.output())
        assert emitted == (0 if ordered else 3)
    del values, value
    requests, records = requests_and_records()
    assert requests - others[0] <= 2 * 10 + 1024 + 10
    assert records - others[1] <= 4 * 10
    assert len(bench.caller.calls) == 1


def test_only_open_requests_time_out_after_many_have_ended() -> None:
    bench = Bench(ordered=False, function=WithTimeout(), capacity=5000).open()
    for start in range(0, 5000, 50):
        bench.send(*range(start, start + 50))
        bench.now += 1
    left = set(range(0, 5000, 700))
    for value in set(range(5000)) - left:
        bench.caller.end(value, [])
    assert bench.output() == []
    late = []
    while (due := bench.operator.next_processing_time()) is not None:
        bench.advance(due - bench.now)
        late += bench.output()
    assert late == [("late", value) for value in sorted(left)]


# ---- repetitions


def retrying(most: int = 2, **predicates: Any) -> AsyncRetryStrategy:
    return AsyncRetryStrategy.fixed_delay(most, 100, **predicates)


def test_a_request_is_repeated_after_an_empty_result() -> None:
    strategy = retrying(result_predicate=lambda result: not result)
    bench = Bench(strategy=strategy).open()
    bench.send("a", "b")
    bench.caller.end("a", [])
    bench.caller.end("b", ["b"])
    assert bench.output() == [] and bench.caller.values == []
    assert bench.operator.next_processing_time() == 5_100
    bench.advance(100)
    assert bench.caller.values == ["a"]
    bench.caller.end("a", ["a"])
    assert bench.output() == ["a", "b"]


def test_after_the_last_repetition_its_outcome_counts() -> None:
    strategy = retrying(1, exception_predicate=lambda error: isinstance(error, OSError))
    bench = Bench(strategy=strategy).open()
    bench.send("a")
    for _ in range(2):
        bench.caller.end("a", error=OSError("refused"))
        if bench.operator.requests_in_flight() and not bench.caller.values:
            try:
                bench.output()
            except JobError as error:
                assert "OSError" in error.message and error.record == "'a'"
                return
            bench.advance(100)
    raise AssertionError("the job went on")


def test_an_error_that_the_predicate_does_not_name_is_not_repeated() -> None:
    strategy = retrying(exception_predicate=lambda error: isinstance(error, OSError))
    bench = Bench(strategy=strategy).open()
    bench.send("a")
    bench.caller.end("a", error=ValueError("wrong"))
    with pytest.raises(JobError, match="ValueError in operator 'op'"):
        bench.output()


def test_the_timeout_holds_for_all_repetitions_together() -> None:
    strategy = retrying(100, exception_predicate=lambda error: True)
    bench = Bench(strategy=strategy, function=WithTimeout()).open()
    bench.send("a")
    for _ in range(9):
        bench.caller.end("a", error=OSError("refused"))
        assert bench.output() == []
        bench.advance(100)
    bench.caller.end("a", error=OSError("refused"))
    assert bench.output() == []
    bench.advance(100)
    assert bench.output() == [("late", "a")] and bench.caller.values == []


def test_an_error_in_a_predicate_names_the_record() -> None:
    strategy = retrying(result_predicate=lambda result: result[0] > 0)
    bench = Bench(strategy=strategy).open()
    bench.send("a")
    bench.caller.end("a", [])
    with pytest.raises(JobError, match="IndexError in operator 'op'") as caught:
        bench.output()
    assert caught.value.record == "'a'"


# ---- values that change


def test_the_function_cannot_change_what_a_snapshot_holds() -> None:
    bench = Bench().open()
    bench.send(["a"])
    bench.caller.values[0].append("changed")
    states = bench.states()
    again = Bench().open(states)
    assert again.caller.values == [["a"]]


def test_what_the_function_keeps_is_not_what_it_has_emitted() -> None:
    bench = Bench().open()
    bench.send("a")
    cached = {"name": "Ada"}
    bench.caller.end("a", [cached])
    (emitted,) = bench.output()
    assert emitted == cached and emitted is not cached


# ---- snapshots


def test_requests_are_repeated_after_a_restore_and_results_are_not_lost() -> None:
    bench = Bench(ordered=False).open()
    bench.send("a", "b", "c", "d", timestamps=[1, 2, 3, 4])
    bench.caller.end("b", ["emitted"])
    assert bench.output() == ["emitted"]
    bench.caller.end("a", ["not emitted"])  # before the barrier, but the task did not look
    assert bench.operator.requests_in_flight() == 3
    again = Bench().open(bench.states())
    assert again.caller.values == ["a", "c", "d"]
    for value in ("a", "c", "d"):
        again.caller.end(value, [value])
    out = again.operator.next_output()
    assert isinstance(out, RecordBatch)
    assert out.rows() == ["a", "c", "d"] and out.timestamps == [1, 3, 4]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 2), (2, 2)])
def test_requests_are_divided_at_another_parallelism(before: int, after: int, keyed: bool) -> None:
    selector = (lambda value: value % 5) if keyed else None
    shares: list[list[int]] = []
    numbers = range(24)
    from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
    from penstock.dataflow.graph.keys import canonical

    def owner(value: int, parallelism: int) -> int:
        if not keyed:
            return value % parallelism
        return subtask_of_key_group(key_group(canonical(value % 5), 8), 8, parallelism)

    states = {}
    for subtask in range(before):
        bench = Bench(subtask, before, key_selector=selector, capacity=100).open()
        bench.send(*(n for n in numbers if owner(n, before) == subtask))
        states[subtask] = bench.states()
    for subtask in range(after):
        own = redistribute(states, subtask, after, rescaled=before != after)
        bench = Bench(subtask, after, key_selector=selector, capacity=100).open(own)
        shares.append(bench.caller.values)
    assert sorted(n for share in shares for n in share) == list(numbers)
    if keyed:
        for subtask, share in enumerate(shares):
            assert all(owner(n, after) == subtask for n in share)
            for key in range(5):
                same = [n for n in share if n % 5 == key]
                assert same == sorted(same)


def test_closing_cancels_what_runs() -> None:
    bench = Bench().open()
    bench.send("a", "b")
    bench.caller.end("a", ["a"])
    bench.output()
    bench.operator.close()
    assert bench.caller.cancelled == ["b"]
