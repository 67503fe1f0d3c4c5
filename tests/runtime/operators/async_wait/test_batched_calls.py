"""The operator of asynchronous requests with many records in a call; a test ends its calls."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from penstock import AsyncRetryStrategy, BatchedFunction, JobError, RequestCache
from penstock.dataflow.async_io import Batching
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.elements import EndOfInput
from penstock.runtime.operators.async_wait.call_pacer import LATENESS_MS
from tests.runtime.operators.async_wait.hand_calls import Bench

BATCHING = Batching(3, 10, 2)


def bench(subtask: int = 0, parallelism: int = 1, **changes: Any) -> Bench:
    """Return an operator: a call takes 3 records or waits 10 ms, and 2 run at the same time."""
    names = BATCHING.__dataclass_fields__
    batching = replace(BATCHING, **{k: changes.pop(k) for k in [*changes] if k in names})
    changes = {"capacity": 100, **changes}
    return Bench(subtask, parallelism, batching=batching, **changes).open()


class WithTimeout(BatchedFunction):
    def __init__(self, flat: bool = False) -> None:
        self.flat = flat

    def invoke_batch(self, values: list[Any]) -> list[Any]:
        return values

    def timeout(self, values: list[Any]) -> list[Any]:
        late = [("late", value) for value in values]
        return [[one] for one in late] if self.flat else late


# ---- which records a call has


def test_a_call_begins_when_there_are_enough_records() -> None:
    one = bench()
    one.send(1, 2)
    assert one.caller.values == [] and one.operator.next_processing_time() == 5_010
    one.send(3, 4)
    assert one.caller.values == [[1, 2, 3]]
    one.caller.end([1, 2, 3], ["a", "b", "c"])
    assert one.output() == ["a", "b", "c"] and one.operator.requests_in_flight() == 1


def test_a_call_begins_when_its_first_record_has_waited_long_enough() -> None:
    one = bench()
    one.send(1)
    one.advance(9)
    one.send(2)
    assert one.caller.values == []
    one.advance(1)
    assert one.caller.values == [[1, 2]]
    assert one.operator.next_processing_time() == 6_010  # the timeout
    one.send(3)
    assert one.operator.next_processing_time() == 5_020


def test_without_a_wait_a_call_takes_the_records_that_are_there() -> None:
    one = bench(wait_ms=0)
    one.send(1)
    one.send(2)
    one.send(3, 4, 5, 6, 7)
    assert one.caller.values == [[1], [2]]
    one.caller.end([1], ["a"])
    assert one.output() == ["a"] and one.caller.values == [[2], [3, 4, 5]]


def test_no_more_calls_run_than_allowed() -> None:
    one = bench()
    one.send(*range(9))
    assert one.caller.values == [[0, 1, 2], [3, 4, 5]]
    assert one.operator.next_processing_time() == 6_000  # no call can begin by time
    one.caller.end([3, 4, 5], ["abc"] * 3)
    assert one.output() == []
    assert one.caller.values == [[0, 1, 2], [6, 7, 8]]


def test_the_capacity_counts_records_until_they_are_emitted() -> None:
    one = bench(capacity=7)
    one.send(*range(7))
    assert one.operator.room == 0
    one.caller.end([3, 4, 5], [0, 0, 0])
    assert one.output() == [] and one.operator.room == 0
    one.caller.end([0, 1, 2], [0, 0, 0])
    assert len(one.output()) == 6 and one.operator.room == 6


def test_records_in_front_of_a_barrier_are_taken_and_wait_for_capacity() -> None:
    one = bench(capacity=3)
    one.operator.expect_barrier(1)
    assert one.operator.room > 1000
    one.send(*range(8))
    one.advance(10)
    assert one.caller.values == [[0, 1, 2]]  # the capacity is used up
    one.caller.end([0, 1, 2], [0, 1, 2])
    assert one.output() == [0, 1, 2] and one.caller.values == [[3, 4, 5]]


def test_at_the_end_of_the_input_no_record_waits_for_others() -> None:
    one = bench(wait_ms=10_000)
    one.send(1, 2)
    one.operator.hold("channel", EndOfInput())
    assert one.operator.next_processing_time() == 0
    one.advance(0)
    assert one.caller.values == [[1, 2]]
    one.caller.end([1, 2], ["a", "b"])
    assert one.output() == ["a", "b", EndOfInput()]


@pytest.mark.parametrize("ordered", [True, False])
def test_no_result_crosses_a_watermark_even_within_a_call(ordered: bool) -> None:
    one = bench(ordered=ordered)
    one.send("a", "b")
    one.operator.hold("channel", Watermark(5))
    one.send("c", "d", "e", "f")
    assert one.caller.values == [["a", "b", "c"], ["d", "e", "f"]]
    one.caller.end(["d", "e", "f"], ["D", "E", "F"])
    assert one.output() == []
    one.caller.end(["a", "b", "c"], ["A", "B", "C"])
    out = one.output()
    assert out[:3] == ["A", "B", Watermark(5)] and sorted(out[3:]) == ["C", "D", "E", "F"]
    assert not ordered or out[3:] == ["C", "D", "E", "F"]


def test_unordered_results_leave_when_their_call_has_ended() -> None:
    one = bench(ordered=False)
    one.send(*range(6))
    one.caller.end([3, 4, 5], [3, 4, 5])
    assert one.output() == [3, 4, 5]


# ---- results


def test_results_may_be_lists_of_records() -> None:
    one = bench(flatten=True)
    one.send(1, 2, 3)
    one.caller.end([1, 2, 3], [["a", "b"], [], ("c",)])
    assert one.output() == ["a", "b", "c"]


def test_a_result_is_combined_with_its_record() -> None:
    one = bench(combine=lambda record, result: (record, result), flatten=True)
    one.send(1, 2, 3)
    one.caller.end([1, 2, 3], [["a", "b"], [], ["c"]])
    assert one.output() == [(1, "a"), (1, "b"), (3, "c")]


def test_what_combine_changes_is_neither_the_snapshot_nor_the_cache() -> None:
    def combine(record: list[Any], result: list[Any]) -> list[Any]:
        record.append("seen")
        result.append("used")
        return [*record, *result]

    one = bench(combine=combine, cache=RequestCache(key=lambda record: record[0]), size=1)
    one.send([1, "x"])
    one.caller.end([[1, "x"]], [["r"]])
    one.send([1, "y"])
    assert one.output() == [[1, "x", "seen", "r", "used"], [1, "y", "seen", "r", "used"]]
    one.send([1, "z"])
    again = Bench(batching=BATCHING).open(one.states())
    assert again.caller.values == [] and again.operator._waiting[0].record == [1, "z"]
    assert one.output() == [[1, "z", "seen", "r", "used"]]


@pytest.mark.parametrize(
    ("returned", "flatten", "message"),
    [
        (None, False, r"the function returned None: it lacks a `return`"),
        ("abc", False, "the function returned a str: return a list with a result for each record"),
        ({1: 2}, False, "the function returned a dict: return a list with a result for each"),
        ([1, 2], False, r"got 3 records and returned 2 results: return one result for each record"),
        ([1, 2, 3, 4], False, "got 3 records and returned 4 results"),
        ([[1], 2, [3]], True, "a result of the function is an int: return a list of the records"),
        ([[1], "ab", [3]], True, "a result of the function is a str"),
    ],
)
def test_wrong_results_are_refused(returned: Any, flatten: bool, message: str) -> None:
    one = bench(flatten=flatten)
    one.send("a", "b", "c")
    one.caller.end(["a", "b", "c"], returned)
    with pytest.raises(JobError, match=message) as caught:
        one.output()
    assert caught.value.record == "'a', the first of 3"


def test_a_forgotten_async_is_named() -> None:
    async def forgotten() -> None:
        pass

    one = bench()
    one.send(1, 2, 3)
    one.caller.end([1, 2, 3], forgotten())
    with pytest.raises(
        JobError, match="returned a coroutine: define the function with `async def`"
    ):
        one.output()


# ---- errors and repetitions


def repeated(most: int = 2, delay: int = 100, **predicates: Any) -> AsyncRetryStrategy:
    if not predicates:
        predicates = {"exception_predicate": lambda error: isinstance(error, OSError)}
    return AsyncRetryStrategy.fixed_delay(most, delay, **predicates)


def test_an_error_of_a_call_names_its_records() -> None:
    one = bench()
    one.send("a", "b", "c")
    one.caller.end(["a", "b", "c"], error=ValueError("wrong"))
    with pytest.raises(JobError, match="ValueError in operator 'op'") as caught:
        one.output()
    assert caught.value.record == "'a', the first of 3"


def test_an_error_of_a_record_names_the_record() -> None:
    one = bench()
    one.send("a", "b", "c")
    one.caller.end(["a", "b", "c"], ["A", ValueError("wrong"), "C"])
    with pytest.raises(JobError, match="ValueError in operator 'op'") as caught:
        one.output()
    assert caught.value.record == "'b'"


def test_a_call_that_has_failed_is_repeated_with_its_records() -> None:
    one = bench(strategy=repeated())
    one.send(*range(4))
    one.caller.end([0, 1, 2], error=OSError("refused"))
    assert one.output() == [] and one.caller.values == []
    one.advance(10)
    assert one.caller.values == [[3]]  # other calls do not wait for it
    one.advance(90)
    assert one.caller.values == [[3], [0, 1, 2]]
    one.caller.end([0, 1, 2], [0, 1, 2])
    assert one.output() == [0, 1, 2]


def test_only_the_records_that_have_failed_are_repeated() -> None:
    one = bench(strategy=repeated(), ordered=False)
    one.send(1, 2, 3)
    one.caller.end([1, 2, 3], [OSError("busy"), "b", OSError("busy")])
    assert one.output() == ["b"]
    one.advance(100)
    one.caller.end([1, 3], ["a", OSError("busy")])
    assert one.output() == ["a"]
    one.advance(100)
    one.caller.end([3], [OSError("still busy")])
    with pytest.raises(JobError, match="OSError in operator 'op'") as caught:
        one.output()
    assert caught.value.record == "3"


def test_results_that_a_predicate_names_are_repeated() -> None:
    one = bench(flatten=True, strategy=repeated(1, result_predicate=lambda results: not results))
    one.send(1, 2, 3)
    one.caller.end([1, 2, 3], [["a"], [], []])
    assert one.output() == ["a"]
    one.advance(100)
    one.caller.end([2, 3], [["b"], []])  # the last attempt counts
    assert one.output() == ["b"] and one.operator.requests_in_flight() == 0


def test_a_repeated_call_counts_among_those_that_run() -> None:
    one = bench(strategy=repeated(delay=5))
    one.send(*range(9))
    one.caller.end([0, 1, 2], error=OSError("refused"))
    assert one.output() == []
    assert one.caller.values == [[3, 4, 5], [6, 7, 8]]
    one.advance(5)
    assert one.caller.values == [[3, 4, 5], [6, 7, 8]]
    one.caller.end([3, 4, 5], [3, 4, 5])
    assert one.output() == [] and one.caller.values == [[6, 7, 8], [0, 1, 2]]


# ---- timeouts


def test_a_call_that_takes_too_long_fails_the_job() -> None:
    one = bench()
    one.send(1, 2, 3)
    with pytest.raises(
        JobError, match=r"within 1000 ms; .* timeout\(values\) of a Batched"
    ) as caught:
        one.advance(1000)
    assert one.caller.cancelled == [[1, 2, 3]] and caught.value.record == "1, the first of 3"


def test_the_function_may_return_results_after_a_timeout() -> None:
    one = bench(function=WithTimeout(), strategy=repeated(), timeout_ms=150)
    one.send(1, 2, 3)
    one.caller.end([1, 2, 3], ["a", OSError("busy"), OSError("busy")])
    assert one.output() == ["a"]
    one.advance(100)
    assert one.caller.values == [[2, 3]]
    one.advance(50)
    assert one.caller.cancelled == [[2, 3]]
    assert one.output() == [("late", 2), ("late", 3)]
    one.caller.end([2, 3], ["too", "late"])
    assert one.output() == [] and one.operator.next_processing_time() is None


def test_a_call_may_time_out_while_it_waits_for_its_repetition() -> None:
    one = bench(function=WithTimeout(), strategy=repeated(delay=5), timeout_ms=50, max_calls=1)
    one.send(1, 2, 3, 4)
    one.caller.end([1, 2, 3], error=OSError("busy"))
    assert one.output() == []
    one.advance(10)
    assert one.caller.values == [[1, 2, 3]]  # the repetition comes before the new call
    one.caller.end([1, 2, 3], error=OSError("busy"))
    assert one.output() == [] and one.caller.values == [[4]]
    one.advance(40)  # due, but another call runs; and then too late
    assert one.output() == [("late", 1), ("late", 2), ("late", 3)]
    one.caller.end([4], ["d"])
    assert one.output() == ["d"] and one.caller.values == []


# ---- rates


def sent(one: Bench, until: int) -> list[tuple[int, int]]:
    """Return the times and sizes of all calls until a time; each call ends at once."""
    seen: list[tuple[int, int]] = []
    while True:
        for values in one.caller.values:
            seen.append((one.now, len(values)))
            one.caller.end(values, values)
        one.output()
        if one.caller.values:
            continue
        due = one.operator.next_processing_time()
        if due is None or due > until:
            return seen
        one.advance(max(0, due - one.now))


@pytest.mark.parametrize("rate", [1, 7.5, 100, 3000])
@pytest.mark.parametrize("of_records", [True, False])
def test_rates_are_kept_in_every_stretch_of_time(rate: float, of_records: bool) -> None:
    limit = {"records_per_second" if of_records else "calls_per_second": rate}
    one = bench(wait_ms=0, timeout_ms=0, capacity=100_000, size=10, **limit)
    one.send(*range(4000))
    calls = sent(one, 5_000 + 3_000)
    costs = [(time, size if of_records else 1) for time, size in calls]
    largest = 10 if of_records else 1
    for index, (start, _) in enumerate(costs):
        total = 0
        for time, cost in costs[index:]:
            total += cost
            assert total <= rate * (time - start + LATENESS_MS) / 1000 + largest + 1e-6
    total = sum(cost for _, cost in costs)
    assert total >= min(4000 if of_records else 400, rate * 3 - largest)


def test_each_subtask_gets_an_equal_share_of_a_rate() -> None:
    one = bench(2, 4, wait_ms=0, timeout_ms=0, calls_per_second=40, size=1)
    one.send(*range(100))
    assert len(sent(one, 5_000 + 999)) == 11  # one more by `LATENESS_MS`


def test_a_task_that_is_late_makes_up_for_a_moment_only() -> None:
    one = bench(wait_ms=0, timeout_ms=0, calls_per_second=1000, size=1, max_calls=100)
    one.send(*range(50))
    assert len(one.caller.values) == 1 + LATENESS_MS
    one.advance(1000)
    assert len(one.caller.values) == 2 * (1 + LATENESS_MS)


# ---- the cache


def test_records_with_equal_keys_share_a_call() -> None:
    one = bench(cache=RequestCache(key=lambda record: record[0]), combine=lambda r, x: (r[1], x))
    one.send(("k", 1), ("k", 2), ("l", 3))
    one.send(("k", 4), ("m", 5))
    assert one.caller.values == [[("k", 1), ("l", 3), ("m", 5)]]
    one.caller.end(one.caller.values[0], ["K", "L", "M"])
    assert one.output() == [(1, "K"), (2, "K"), (3, "L"), (4, "K"), (5, "M")]
    one.send(("l", 6))
    assert one.output() == [(6, "L")] and one.caller.values == []
    assert one.operator._cache_hits.count == 3 and one.operator._records_in_calls.count == 3


def test_kept_results_wait_for_their_turn() -> None:
    one = bench(cache=RequestCache(), size=1)
    one.send(1)
    one.caller.end([1], ["a"])
    assert one.output() == ["a"]
    one.send(2, 1)
    assert one.output() == []
    one.caller.end([2], ["b"])
    assert one.output() == ["b", "a"]


def test_results_are_kept_for_their_time() -> None:
    one = bench(cache=RequestCache(ttl=50), size=1)
    one.send(1)
    one.advance(30)
    one.caller.end([1], ["a"])
    assert one.output() == ["a"]
    one.advance(49)
    one.send(1)
    assert one.output() == ["a"]
    one.advance(1)
    one.send(1)
    assert one.output() == [] and one.caller.values == [[1]]


def test_the_result_that_was_not_used_for_longest_is_removed() -> None:
    one = bench(cache=RequestCache(max_entries=2), size=1)
    for value in (1, 2, 1, 3):  # 2 is removed
        one.send(value)
        if one.caller.values:
            one.caller.end([value], [value])
        assert one.output() == [value]
    one.send(1, 3)
    assert one.output() == [1, 3]
    one.send(2)
    assert one.caller.values == [[2]]


def test_a_cache_without_entries_shares_what_is_in_flight() -> None:
    one = bench(cache=RequestCache(max_entries=0), size=1)
    one.send(1, 1)
    assert one.caller.values == [[1]]
    one.caller.end([1], ["a"])
    assert one.output() == ["a", "a"]
    one.send(1)
    assert one.caller.values == [[1]]


def test_errors_and_timeouts_are_not_kept() -> None:
    one = bench(cache=RequestCache(), size=1, function=WithTimeout(), strategy=repeated())
    one.send(1, 1)
    one.caller.end([1], error=OSError("busy"))
    assert one.output() == []
    one.advance(100)
    assert one.caller.values == [[1]]
    one.advance(900)
    assert one.output() == [("late", 1), ("late", 1)]
    one.send(1)
    assert len(one.caller.values) == 2


def test_a_key_that_cannot_be_hashed_names_its_record() -> None:
    one = bench(cache=RequestCache())
    with pytest.raises(
        JobError, match="unhashable type: 'list'\nTypeError in operator 'op'"
    ) as caught:
        one.send([1])
    assert caught.value.record == "[1]"


def test_shared_results_are_copies() -> None:
    one = bench(cache=RequestCache(), size=1)
    one.send(1, 1)
    one.caller.end([1], [{"name": ["Ada"]}])
    first, second = one.output()
    first["name"].append("changed")
    assert second == {"name": ["Ada"]}
    one.send(1)
    assert one.output() == [{"name": ["Ada"]}]


def test_many_records_of_one_key_do_not_use_up_the_capacity_of_their_call() -> None:
    one = bench(cache=RequestCache(), capacity=3, size=3)
    one.operator.expect_barrier(1)
    one.send(*[1] * 20, 2, 3)
    one.advance(10)
    assert one.caller.values == [[1, 2, 3]]
    one.caller.end([1, 2, 3], ["abc"] * 3)
    assert len(one.output()) == 22


# ---- snapshots


def test_all_records_without_emitted_results_are_in_the_snapshot_and_sent_again() -> None:
    one = bench(cache=RequestCache(), ordered=False, strategy=repeated())
    one.send(*range(8), 0)
    one.caller.end([3, 4, 5], [3, OSError("busy"), 5])
    assert one.output() == [3, 5]
    assert one.operator.requests_in_flight() == 7
    again = Bench(batching=BATCHING, capacity=100).open(one.states())
    assert again.caller.values == [[0, 1, 2], [4, 6, 7]]
    again.advance(10)
    for values in [*again.caller.values]:
        again.caller.end(values, values)
    assert again.output() == [0, 1, 2, 4, 6, 7]
    assert again.caller.values == [[0]]


def test_a_snapshot_of_single_requests_is_restored_into_batches_and_back() -> None:
    single = Bench(capacity=100).open()
    single.send(*range(4))
    batched = Bench(batching=BATCHING, capacity=100).open(single.states())
    assert batched.caller.values == [[0, 1, 2]]
    again = Bench(capacity=100).open(batched.states())
    assert again.caller.values == [0, 1, 2, 3]


def test_closing_cancels_the_calls_that_run() -> None:
    one = bench()
    one.send(*range(7))
    one.operator.close()
    assert one.caller.cancelled == [[0, 1, 2], [3, 4, 5]]


# ---- everything together


@pytest.mark.parametrize("seed", range(60))
def test_random_calls_lose_and_double_nothing(seed: int) -> None:
    rng = random.Random(seed)
    ordered, cached, flat = rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.5
    changes: dict[str, Any] = {
        "ordered": ordered,
        "size": rng.randint(1, 5),
        "wait_ms": rng.choice([0, 3, 20]),
        "max_calls": rng.randint(1, 4),
        "capacity": rng.randint(5, 30),
        "flatten": flat,
        "combine": lambda record, result: (record, result),
        "cache": RequestCache(rng.choice([None, 15]), rng.choice([0, 2, 50]), lambda r: r % 7)
        if cached
        else None,
        "records_per_second": rng.choice([None, 500]),
        "calls_per_second": rng.choice([None, 100]),
        "function": WithTimeout(flat),
        "timeout_ms": rng.choice([0, 40]),
        "strategy": repeated(1000, 4),
    }
    one = bench(**changes)
    todo, expected, out = list(range(rng.randint(0, 120))), 0, list[Any]()
    expected = len(todo)
    watermarks = 0
    while todo or one.operator.requests_in_flight():
        action = rng.random()
        room = min(one.operator.room, len(todo), rng.randint(1, 6))
        if action < 0.3 and room > 0:
            one.send(*todo[:room])
            del todo[:room]
        elif action < 0.35 and watermarks < 20:
            watermarks += 1
            one.operator.hold("channel", Watermark(len(todo)))
        elif action < 0.7 and one.caller.calls:
            values = rng.choice(one.caller.values)
            if rng.random() < 0.2:
                one.caller.end(values, error=OSError("busy"))
            else:
                results: list[Any] = [[v % 7] if flat else v % 7 for v in values]
                if rng.random() < 0.3:
                    results[rng.randrange(len(values))] = OSError("busy")
                one.caller.end(values, results)
        elif action < 0.8:
            one.advance(rng.choice([0, 1, 5, 20]))
        elif action < 0.83 and not cached:
            states = one.states()
            again = Bench(**one_settings(one)).open(states)
            again.now = one.now
            one = again  # What was emitted before the snapshot stays. The rest is sent again.
        else:
            out += one.output()
    out += one.output()
    records = [item for item in out if isinstance(item, tuple)]
    of = [record for record, _ in records]
    assert sorted(of) == list(range(expected)), f"seed {seed}"
    assert all(result in (record % 7, ("late", record)) for record, result in records)
    if ordered:
        assert of == list(range(expected)), f"seed {seed}"


def one_settings(one: Bench) -> dict[str, Any]:
    operation = one.operator._operation
    return {name: getattr(operation, name) for name in operation.__dataclass_fields__}
