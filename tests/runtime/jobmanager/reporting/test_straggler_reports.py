"""Windows of figures from workers, and what is said about slow tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import CoMapFunction, StreamExecutionEnvironment
from penstock.connectors import GeneratorSource
from penstock.dataflow.graph.compile import compile_graph
from penstock.runtime.control.messages import Metrics, decode, encode
from penstock.runtime.jobmanager.reporting.begun_tasks import BegunTasks
from penstock.runtime.jobmanager.reporting.job_events import StragglerFound
from penstock.runtime.jobmanager.reporting.straggler_reports import (
    FORGOTTEN_AFTER,
    MOST_REPORTED,
    StragglerReports,
)

WINDOW = 10.0
SOURCE, KEYED = 0, 1

#: What a task does in a second: records, busy and blocked seconds, and more fields of its report.
Rate = tuple[float, float, float, dict[str, Any]]


def rate(records: float, busy: float, blocked: float = 0.0, **more: Any) -> Rate:
    return records, busy, blocked, more


class Workers:
    """Reports of the workers of a job: a source, and a keyed operator or another one.

    Arguments:
        parallelism: the number of workers.
        build: adds the operator behind the source.
        window_seconds: the setting.
    """

    def __init__(
        self,
        parallelism: int = 2,
        build: Callable[[Any], Any] = lambda numbers: numbers.key_by(abs).reduce(max),
        window_seconds: float = WINDOW,
    ) -> None:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(parallelism)
        source = env.from_source(GeneratorSource(lambda i: i), None, "numbers")
        build(source).name("Last").print()
        self.plan = compile_graph(env._graph, env.config)
        self.reports = StragglerReports(self.plan, 1.4, window_seconds)
        self.parallelism = parallelism
        self.now = 0.0
        self.sums: dict[tuple[int, int], list[float]] = {}
        self.process: dict[int, list[float]] = {}

    def restart(self) -> None:
        self.reports.begin_attempt(BegunTasks(self.plan))
        self.sums = {}

    def run(
        self, rates: dict[tuple[int, int], Rate], seconds: float = WINDOW, step: float = 0.5
    ) -> list[StragglerFound]:
        """Let the tasks work, and return what is reported. The others are idle."""
        found = []
        end = self.now + seconds
        while self.now < end:
            self.now += step
            for worker in range(self.parallelism):
                message = self._message(worker, rates, step)
                assert decode(encode(message)) == message
                found += self.reports.update(message, self.now)
        return found

    def _message(self, worker: int, rates: dict[tuple[int, int], Rate], step: float) -> Metrics:
        tasks, work = [], []
        for chain in (SOURCE, KEYED):
            records, busy, blocked, more = rates.get((chain, worker), rate(0, 0))
            sums = self.sums.setdefault((chain, worker), [0, 0.0, 0.0])
            for index, value in enumerate((records, busy, blocked)):
                sums[index] += value * step
            tasks.append([chain, worker, sums[1], sums[2], 0, 0, None])
            keys = more.get("keys", {})
            work.append(
                [
                    chain,
                    worker,
                    int(sums[0]),
                    0.0,
                    more.get("ended", False),
                    more.get("splits", []),
                    more.get("sampled", sum(keys.values())),
                    [[key, count] for key, count in keys.items()],
                ]
            )
        figures = self.process.get(worker, [])
        return Metrics(worker, [], tasks, [], [], 5, 5, self.now, work, figures)


HOT = {
    (KEYED, 0): rate(900, 0.9, keys={"'hot'": 8, "'a'": 1}, sampled=10),
    (KEYED, 1): rate(100, 0.1),
}


def test_a_hot_key_is_reported_with_what_helps():
    [found] = Workers().run(HOT, WINDOW + 1)
    assert found.text == (
        "'Last → Print to Std. Out' (subtask 0) was at work 9.0 times as long as its peers, over "
        "the last 10 s. It looks like hot key: the key 'hot' is 80% of its records. If 'Last' "
        "aggregates, aggregate in two stages. WINDOW is that of the operator, or a short one:\n"
        "    .map(lambda record: (random.randrange(8), record))\n"
        "    .key_by(lambda pair: (pair[0], KEY(pair[1])))\n"
        "    .window(WINDOW).reduce(lambda a, b: (a[0], ADD(a[1], b[1])))\n"
        "    .map(lambda pair: pair[1])\n"
        "    .key_by(KEY)  # and then 'Last' as now"
    )
    assert found.to_wire() == {
        "event": "warning",
        "text": found.text,
        "straggler": {
            "uid": found.straggler["uid"],
            "operator": "Last → Print to Std. Out",
            "subtask": 0,
            "cause": "hot key",
            "ratio": 9.0,
            "share": 0.8,
            "key": "'hot'",
        },
    }


def test_a_job_without_parallel_tasks_has_no_stragglers():
    assert Workers(1).run({(KEYED, 0): rate(900, 1.0)}, 50) == []


def test_idle_tasks_are_not_reported():
    assert Workers().run({}, 50) == []


def test_nothing_is_reported_before_the_end_of_the_first_window():
    workers = Workers()
    assert workers.run(HOT, WINDOW - 0.5) == []
    assert len(workers.run(HOT, 1.0)) == 1


def test_nothing_is_reported_with_a_window_of_0():
    assert Workers(window_seconds=0.0).run(HOT, 50) == []


def test_reports_without_the_work_of_tasks_are_ignored():
    reports = Workers().reports
    for second in range(30):
        assert reports.update(Metrics(0, [], [], [], [], 5, 5), float(second)) == []


def test_a_straggler_is_reported_once_and_again_when_it_was_none_for_a_while():
    workers = Workers()
    assert len(workers.run(HOT, 5 * WINDOW)) == 1
    workers.run({}, 3 * WINDOW)
    assert workers.run(HOT, 3 * WINDOW) == []
    workers.run({}, (FORGOTTEN_AFTER + 2) * WINDOW)
    assert len(workers.run(HOT, 3 * WINDOW)) == 1


def test_another_cause_of_the_same_task_is_reported():
    workers = Workers()
    workers.run(HOT, 2 * WINDOW)
    slow = {(KEYED, 0): rate(10, 0.9), (KEYED, 1): rate(100, 0.1)}
    [found] = workers.run(slow, 3 * WINDOW)
    assert found.straggler["cause"] == "slow records"


def test_a_restarted_job_begins_its_window_again():
    workers = Workers()
    workers.run({}, WINDOW)
    workers.run(HOT, WINDOW / 2)
    workers.restart()
    assert workers.run(HOT, WINDOW - 0.5) == []
    assert len(workers.run(HOT, WINDOW)) == 1


def test_figures_of_the_attempt_before_do_not_count():
    workers = Workers()
    workers.run({(KEYED, n): rate(100_000, 0.9) for n in range(2)}, 2 * WINDOW)
    workers.restart()
    [found] = workers.run(HOT, 2 * WINDOW)
    assert found.straggler["ratio"] == pytest.approx(9.0, rel=0.1)


def test_a_task_that_has_just_begun_to_report_is_judged_later():
    workers = Workers(3)
    workers.parallelism = 2
    workers.run({}, WINDOW - 1)
    workers.parallelism = 3
    busy = {(KEYED, 2): rate(900, 1.0)}
    assert workers.run(busy, 3) == []
    assert len(workers.run(busy, 2 * WINDOW)) == 1


def test_a_worker_that_has_not_reported_for_long_is_judged_by_all_that_time():
    workers = Workers()
    workers.run({}, 1.0)
    reported = workers.reports
    quiet = {(KEYED, 0): rate(2, 0.99), (KEYED, 1): rate(100, 0.1)}
    found = []
    # Worker 0 is busy with one record, and reports after 25 s.
    for second in range(1, 40):
        workers.now += 1.0
        for worker in range(2):
            message = workers._message(worker, quiet, 1.0)
            if worker or second > 25:
                found += reported.update(message, workers.now)
    assert [one.straggler["subtask"] for one in found] == [0]
    assert "slow records" in found[0].text


def test_tasks_that_have_ended_are_no_peers():
    rates = {(KEYED, 0): rate(900, 0.9), (KEYED, 1): rate(0, 0.0, ended=True)}
    assert Workers().run(rates, 2 * WINDOW) == []


def test_at_most_a_few_tasks_of_a_chain_are_reported_at_once():
    rates = {(KEYED, n): rate(500 if n < 8 else 10, 0.9 if n < 8 else 0.01) for n in range(20)}
    found = Workers(20).run(rates, WINDOW + 0.5)
    assert len(found) == MOST_REPORTED


def test_a_slow_split_is_named():
    slow = rate(10, 1.0, splits=["b.csv"])
    [found] = Workers().run({(SOURCE, 0): rate(100, 1.0), (SOURCE, 1): slow}, WINDOW + 1)
    assert found.straggler["splits"] == ["b.csv"]
    assert found.text == (
        "'numbers' (subtask 1) needed 10.0 times as long as its peers for a record, over "
        "the last 10 s. It looks like slow split: it reads split 'b.csv'. Other tasks take the "
        "splits that none has begun. Smaller splits would let them share this one, too"
    )


def test_a_source_without_a_reported_split_is_slow_all_the_same():
    [found] = Workers().run({(SOURCE, 0): rate(100, 1.0), (SOURCE, 1): rate(10, 1.0)}, WINDOW + 1)
    assert "it reads its splits" in found.text


def chained(numbers: Any) -> Any:
    return numbers.map(abs).start_new_chain()


BLOCKED = {
    (SOURCE, 0): rate(100, 1.0),
    (SOURCE, 1): rate(10, 0.1, 0.9),
    (KEYED, 1): rate(10, 0.8),
    (KEYED, 0): rate(10, 0.7),
}


def test_a_blocked_task_names_the_one_that_it_waits_for():
    [found] = Workers(build=chained).run(BLOCKED, WINDOW + 1)
    assert found.straggler["cause"] == "blocked downstream"
    assert found.text.endswith(
        "for 90% of the time its output waited for 'Last → Print to Std. Out' (subtask 1)"
    )


def test_of_tasks_that_all_wait_for_one_straggler_only_that_one_is_reported():
    rates = {**BLOCKED, (KEYED, 1): rate(10, 0.1), (KEYED, 0): rate(90, 0.9)}
    [found] = Workers().run(rates, 2 * WINDOW)
    assert found.straggler["operator"] == "Last → Print to Std. Out"
    assert found.straggler["cause"] == "more records"
    assert "it has more keys than its peers" in found.text


def test_records_that_are_not_divided_evenly_are_reported():
    rates = {(KEYED, 0): rate(90, 1.0), (KEYED, 1): rate(10, 0.1)}
    [found] = Workers(build=chained).run(rates, WINDOW + 1)
    assert "rebalance() before the operator" in found.text


def test_peers_with_nothing_to_do_are_said_to_have_nothing():
    [found] = Workers().run({(KEYED, 0): rate(90, 1.0)}, WINDOW + 1)
    assert "was at work, over the last 10 s, and its peers had nothing to do" in found.text
    assert found.straggler["ratio"] is None


def test_a_task_that_has_finished_no_record_is_said_to_have_finished_none():
    [found] = Workers().run({(KEYED, 0): rate(0, 1.0), (KEYED, 1): rate(10, 0.1)}, WINDOW + 1)
    assert "has finished no record, over the last 10 s, and its peers have" in found.text


class Both(CoMapFunction):
    def map1(self, value: int) -> int:
        return value

    def map2(self, value: int) -> int:
        return value


def test_two_stages_are_not_advised_for_joins():
    def joined(numbers: Any) -> Any:
        pairs = numbers.map(abs)
        both = numbers.connect(pairs).key_by(abs, abs)
        return both.map(Both())

    rates = {
        (KEYED, 0): rate(900, 0.9, keys={"0": 30}),
        (KEYED, 1): rate(100, 0.1),
    }
    [found] = Workers(build=joined).run(rates, WINDOW + 1)
    assert "broadcast the smaller input" in found.text


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ([0.5, 0, 300, 0, 0], "starved processor: for 50% of the time it waited for a processor"),
        ([0, 0, 0, 700, 0], "swapping: its process read 700 pages of memory a second from disk"),
        ([0, 0, 0, 0, 0.5], "garbage collection: Python's garbage collector took 50% of the time"),
    ],
)
def test_figures_of_the_process_are_named(figures: list[float], text: str):
    workers = Workers()
    rates = {(KEYED, 0): rate(10, 0.9), (KEYED, 1): rate(100, 0.9)}
    found = []
    for second in range(int(WINDOW) + 2):
        workers.process = {0: [second * figure for figure in figures], 1: [0.0] * 5}
        found += workers.run(rates, 1.0, 1.0)
    [straggler] = found
    assert f"It looks like {text}" in straggler.text
