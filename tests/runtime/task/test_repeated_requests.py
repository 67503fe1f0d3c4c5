"""A restored task with requests emits the results of its predecessor without calls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    BatchedFunction,
    RequestCache,
)
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.elements import Barrier
from penstock.runtime.operators.async_wait.operator import AsyncWaitOperator
from penstock.runtime.user_code.async_caller import Outcome
from penstock.testing.harness.harness_snapshot import HarnessFolder
from tests.runtime.task.repeated_tasks import (
    Build,
    Input,
    Interleaving,
    LoneTask,
    Timed,
    program,
    repeat,
    steps_behind,
    without_codegen,
)
from tests.sizes import sized

SEEDS = sized(6, 60)
#: Milliseconds.
TIMEOUT = 60
TIMED_OUT, MORE = "timed out", "more"
#: The keys whose requests have no results, unless they time out.
NO_RESULTS = "ag"

plain = pytest.fixture(autouse=True)(without_codegen)

#: A record: its key, and a number that no other record has.
Record = tuple[str, int]
#: The results of each output channel, with their event times.
Output = dict[ChannelId, list[Timed]]


class DrawnCaller:
    """Keeps calls until the test ends them, each with another result.

    Arguments:
        rng: draws which calls end, and how.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._numbers = rng, count(rng.randrange(1_000_000))
        self._running: list[tuple[Any, Callable[[Outcome], None]]] = []
        #: The number of calls for each record, with those that failed.
        self.asked: Counter[Record] = Counter()

    def create(self, run_in: str) -> DrawnCaller:
        """Return itself."""
        return self

    def call(
        self, function: Callable[[Any], Any], value: Any, done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        call = value, done
        self._running.append(call)
        self.asked.update(value if isinstance(value, list) else [value])
        return lambda: self._running.remove(call) if call in self._running else None

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        function(*arguments)

    def end_some(self) -> None:
        """End calls that are drawn, some of them with an error."""
        self._rng.shuffle(self._running)
        for _ in range(self._rng.randint(1, 4)):
            if self._running:
                self._end(*self._running.pop(), fails=self._rng.random() < 0.2)

    def end_all(self) -> None:
        """End all calls without an error."""
        while self._running:
            self._end(*self._running.pop())

    def _end(self, value: Any, done: Callable[[Outcome], None], fails: bool = False) -> None:
        if fails:
            done(Outcome(error=ConnectionError("try again")))
        elif isinstance(value, list):
            done(Outcome([self._results(one) for one in value]))
        else:
            done(Outcome(self._results(value)))

    def _results(self, record: Record) -> list[Any]:
        """Return a result, and often another one; none for some keys."""
        if key_of(record) in NO_RESULTS:
            return []
        return [(record, next(self._numbers)), (record, MORE)][: self._rng.randint(1, 2)]


class _Asks(AsyncFunction):
    async def async_invoke(self, value: Record) -> list[Any]:
        raise AssertionError("the test ends all calls")

    def timeout(self, value: Record) -> list[Any]:
        return [(value, TIMED_OUT)]


class _AsksAll(BatchedFunction):
    async def invoke_batch(self, values: list[Record]) -> list[Any]:
        raise AssertionError("the test ends all calls")

    def timeout(self, values: list[Record]) -> list[Any]:
        return [[(value, TIMED_OUT)] for value in values]


def key_of(record: Record) -> str:
    return record[0]


RETRY = AsyncRetryStrategy.fixed_delay(
    1000, 10, exception_predicate=lambda error: isinstance(error, ConnectionError)
)


def single(ordered: bool, keyed: bool) -> Build:
    def build(stream: Any) -> list[Any]:
        sent = stream.key_by(key_of) if keyed else stream
        wait = AsyncDataStream.unordered_wait_with_retry
        if ordered:
            wait = AsyncDataStream.ordered_wait_with_retry
        return [wait(sent, _Asks(), TIMEOUT, RETRY, 6).set_parallelism(1)]

    return build


def batched(ordered: bool, **more: Any) -> Build:
    def build(stream: Any) -> list[Any]:
        waiting = AsyncDataStream.batched(
            stream.key_by(key_of),
            _AsksAll(),
            TIMEOUT,
            12,
            batch_size=3,
            batch_wait=5,
            max_calls=3,
            ordered=ordered,
            flatten=True,
            retry=RETRY,
            **more,
        )
        return [waiting.set_parallelism(1)]

    return build


BUILDS: dict[str, Build] = {
    "ordered": single(True, False),
    "unordered": single(False, False),
    "ordered, keyed": single(True, True),
    "unordered, keyed": single(False, True),
    "batched": batched(True),
    "batched, unordered": batched(False),
    "batched, with a limit": batched(False, calls_per_second=100),
    "batched, with a cache": batched(
        True,
        cache=RequestCache(4, key=key_of),
        combine=lambda record, result: (record, result[1]),
    ),
}


class _Asking(Interleaving):
    """Ends calls, too."""

    def __init__(self, rng: random.Random, task: LoneTask, caller: DrawnCaller) -> None:
        numbers = count()
        super().__init__(
            rng, list(task.inputs), lambda rng: (rng.choice("abcdefghijklm"), next(numbers))
        )
        self._caller = caller
        #: All records, also those before a barrier.
        self.all: list[Record] = []

    def _new_records(self, one: Input, number: int) -> list[Timed]:
        found = super()._new_records(one, number)
        self.all += [record for record, _ in found]
        return found

    def act(self, task: LoneTask) -> None:
        if self.rng.random() < 0.35:
            self._caller.end_some()
        else:
            super().act(task)


def answers(output: Output) -> Counter[Record]:
    """Return how often each record has a result."""
    emitted = [result for records in output.values() for result, _ in records]
    return Counter(record for record, result in emitted if result != MORE)


def requests_of(task: LoneTask) -> AsyncWaitOperator:
    requests = task.task.chain.requests
    assert isinstance(requests, AsyncWaitOperator)
    return requests


def in_flight(task: LoneTask) -> int:
    return requests_of(task).requests_in_flight()


def finish(task: LoneTask, caller: DrawnCaller) -> None:
    """End all calls without an error, until no requests are in flight."""
    for _ in range(10_000):
        caller.end_all()
        task.run()
        if not in_flight(task):
            return
        task.now += 10  # calls may have to wait for their turn, or for other records
    raise AssertionError(f"{in_flight(task)} requests do not end")


def run(name: str, seed: int) -> Counter[str]:
    """Run a task, and two that repeat its steps. Return what has happened."""
    code, chain = program(BUILDS[name], 1)
    rng, folder, happened = random.Random(seed), HarnessFolder(), Counter[str]()
    caller = DrawnCaller(rng)
    task = LoneTask(code, chain, 1000, folder, callers=caller)
    given = _Asking(rng, task, caller)
    for _ in range(rng.randint(0, 60)):
        given.act(task)
    requests_of(task).expect_barrier(5)
    given.barrier(task, 5)
    task.run()
    happened["requests in the snapshot"] = in_flight(task)
    for _ in range(rng.randint(1, 60)):
        given.act(task)
    task.run()
    happened["repeated calls"] = sum(times > 1 for times in caller.asked.values())
    handles, history = task.snapshots.handles, task.history(5)
    everything, expected = task.output(), task.output(after=5)
    marks = task.watermarks(history, after=5)
    done = answers({id: everything[id][: -len(expected[id]) or None] for id in everything})
    for attempt in range(2):
        where = f"{name}, seed {seed}, attempt {attempt}"
        happened["requests behind the log"] += in_flight(task)
        steps, now = steps_behind(task, chain, 5), task.now
        task.task.close()
        caller = DrawnCaller(rng)
        later = now + rng.choice((0, 1000))
        task = LoneTask(code, chain, later, folder, handles, 5, steps, caller)
        repeat(rng, task, {one.id: one.records for one in given.inputs.values()})
        found, found_marks = task.output(), task.watermarks(history)
        for id in expected:
            assert found[id][: len(expected[id])] == expected[id], f"{where}, {id}"
            assert found_marks[id][: len(marks[id])] == marks[id], f"{where}, {id}"
        logged = answers(expected)
        happened["repeated results"] += logged.total()
        happened["timeouts"] += sum(
            result == TIMED_OUT for records in expected.values() for (_, result), _ in records
        )
        assert not caller.asked.keys() & logged.keys(), where
        assert all(times == 1 for times in caller.asked.values()), where
        if attempt == 0:  # the next one repeats these steps, too
            for _ in range(rng.randint(0, 20)):
                caller.end_some()
                task.now += rng.choice((0, 0, 5, 50))
                task.run()
            expected, marks = task.output(), task.watermarks(history)
    finish(task, caller)
    if "cache" not in name:  # where requests share calls
        asked = {record for record in given.all if record not in done and record not in logged}
        some = {record for record in asked if key_of(record) not in NO_RESULTS}
        assert some <= caller.asked.keys(), where
    assert all(times == 1 for times in caller.asked.values()), where
    done += answers(task.output())
    for record in given.all:
        none = key_of(record) in NO_RESULTS and not done[record]
        assert none or done[record] == 1, (where, record)
    task.task.close()
    return happened


@pytest.mark.parametrize("name", BUILDS)
def test_a_task_repeats_results_without_calls(name: str) -> None:
    happened = Counter[str]()
    for seed in range(SEEDS):
        happened += run(name, seed)
    assert len(happened) == 5, happened


@pytest.mark.parametrize("name", BUILDS)
def test_requests_that_are_asked_again_have_the_whole_timeout(name: str) -> None:
    code, chain = program(BUILDS[name], 1)
    rng, folder = random.Random(0), HarnessFolder()
    first_caller, caller = DrawnCaller(rng), DrawnCaller(rng)
    first = LoneTask(code, chain, 1000, folder, callers=first_caller)
    (one, two), records = first.inputs, [((str(i), i), i) for i in range(1, 7)]
    for id in one, two:
        first.put(id, Barrier(5))
    first.run()
    first.put(one, records[:3])
    first.run()
    first_caller.end_all()
    first.run()
    first.put(one, records[3:])
    first.run()
    first.output()
    steps = steps_behind(first, chain, 5)
    assert answers(first.output()).total() == 3
    first.task.close()
    now = first.now + 100 * TIMEOUT
    again = LoneTask(code, chain, now, folder, first.snapshots.handles, 5, steps, caller)
    again.put(one, records)
    again.run()
    assert again.repeated
    again.now += TIMEOUT - 20
    again.run()
    finish(again, caller)
    results = [result for records in again.output().values() for result, _ in records]
    assert {record for record, _ in results} == {record for record, _ in records}
    assert not [record for record, result in results if result == TIMED_OUT]
    assert set(caller.asked.values()) == {1}
