"""Metrics: their values in functions, in the result of a job, and after restarts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import trio

from penstock import (
    Counter,
    GraphError,
    JobError,
    KeyedProcessFunction,
    MapFunction,
    Meter,
    MetricGroup,
    StreamExecutionEnvironment,
)
from penstock.connectors import GeneratorSource
from penstock.dataflow.config import JobConfig, RestartStrategies
from penstock.dataflow.program import RunOptions, run_options
from penstock.runtime.jobmanager.job_settings import JobOutcome
from penstock.testing import OperatorHarness
from tests.simulation.run_program import program, run_program


class Measure(MapFunction):
    """Has a metric of each kind, in groups."""

    def open(self, runtime_context):
        group = runtime_context.get_metrics_group()
        self.all = group.counter("all")
        self.even = group.add_group("numbers").add_group("parity", "even").counter("count")
        self.events = group.meter("events", time_span_in_seconds=30)
        self.values = group.distribution("values")
        group.gauge("last", lambda: self.last)
        group.gauge("state", lambda: "open")
        self.last = None

    def map(self, value):
        self.all.inc()
        self.even.count += value % 2 == 0
        self.events.mark_event(2)
        self.values.update(value)
        self.last = value
        return value


def rows_of(result):
    return {row["name"]: row for row in result.metrics}


def test_a_job_returns_the_metrics_of_its_functions():
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process()
    env.from_collection([1, 2, 3, 4]).map(Measure()).name("Measure").print()
    result = env.execute()
    assert result.metric("all") == 4
    assert result.metric("numbers.parity.even.count", operator="Measure") == 2
    assert result.metric("events")["count"] == 8
    assert result.metric("values") == {"count": 4, "sum": 10, "min": 1, "max": 4, "mean": 2.5}
    assert result.metric("last") == {"min": 4, "max": 4, "sum": 4}
    rows = rows_of(result)
    assert rows["numbers.parity.even.count"]["variables"] == {"parity": "even"}
    assert rows["all"]["subtasks"] == [4]
    assert (rows["state"]["value"], rows["state"]["subtasks"]) == (None, ["open"])


def test_the_metrics_of_subtasks_are_added_up():
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process()
    env.set_parallelism(3)
    env.from_sequence(1, 30).rebalance().map(Measure()).print()
    result = env.execute()
    assert result.metric("all") == 30
    row = rows_of(result)["all"]
    assert len(row["subtasks"]) == 3 and sum(row["subtasks"]) == 30
    values = result.metric("values")
    assert (values["count"], values["sum"], values["min"], values["max"]) == (30, 465, 1, 30)


def test_the_report_of_a_failed_job_has_its_metrics(tmp_path: Path):
    class Fail(Measure):
        def map(self, value):
            if value == 3:
                raise ValueError("three")
            return super().map(value)

    env = StreamExecutionEnvironment.get_execution_environment().set_in_process()
    env.from_collection([1, 2, 3]).map(Measure()).disable_chaining().map(Fail()).uid("b").print()
    path = tmp_path / "report.json"
    with run_options(RunOptions(report=str(path))), pytest.raises(JobError, match="three"):
        env.execute()
    report = json.loads(path.read_text())
    assert report["status"] == "failed"
    [seen] = [row for row in report["metrics"] if (row["uid"], row["name"]) == ("b", "all")]
    assert seen["value"] == 2


def test_a_metric_that_is_not_there_is_named_with_those_that_are():
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process()
    numbers = env.from_collection([1])
    numbers.map(Measure()).uid("a").print()
    numbers.map(Measure()).uid("b").print()
    result = env.execute()
    with pytest.raises(GraphError, match="no metric 'al'; its metrics are 'all', "):
        result.metric("al")
    with pytest.raises(GraphError, match=r"several operators have a metric 'all'.*\(a\).*\(b\)"):
        result.metric("all")
    assert result.metric("all", operator="a") == 1


def test_counters_begin_again_after_a_restart_and_the_report_adds_them_up(tmp_path: Path):
    class Fail(Measure):
        def open(self, runtime_context):
            super().open(runtime_context)
            self.attempt = runtime_context.get_attempt_number()

        def map(self, value):
            if value == 60 and not self.attempt:
                raise OSError("once")
            return super().map(value)

    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, 100, 100.0, clock=trio.current_time)
        env.from_source(source, None, "numbers").map(Fail()).print()

    config = JobConfig(
        checkpoint_dir=str(tmp_path),
        checkpoint_interval_seconds=10.0,
        restart=RestartStrategies.fixed_delay_restart(1, 0),
    )
    ran = run_program(program(build, config))
    assert isinstance(ran.outcome, JobOutcome), ran
    rows = {row["name"]: row for row in ran.outcome.metrics}
    # There was no snapshot, so the job began again with the first number.
    assert rows["all"]["subtasks"] == [100]
    before = rows["all"]["value"] - 100
    assert 0 < before <= 60
    assert rows["events"]["value"]["count"] == 2 * (100 + before)
    assert rows["values"]["value"]["count"] == 100 + before
    assert rows["last"]["value"] == {"min": 99, "max": 99, "sum": 99}


class CountKeys(KeyedProcessFunction):
    """Counts its records, and those with a negative number."""

    def open(self, runtime_context):
        group = runtime_context.get_metrics_group()
        self.records, self.negative = group.counter("records"), group.counter("negative")

    def process_element(self, value, ctx):
        del ctx
        self.records.inc()
        if value < 0:
            self.negative.inc()
        yield value


def test_a_harness_shows_the_metrics_of_its_function():
    harness = OperatorHarness(CountKeys(), key_selector=abs, parallelism=2)
    for value in (1, -1, 5, -7):
        harness.process_element(value)
    assert (harness.metric("records"), harness.metric("negative")) == (4, 2)
    with pytest.raises(GraphError, match="no metric 'other'"):
        harness.metric("other")


# ---- single metrics


def test_a_counter_counts_up_and_down():
    counter = Counter()
    counter.inc()
    counter.inc(5)
    counter.dec(2)
    counter.dec()
    assert counter.get_count() == counter.report() == 3


def test_a_meter_measures_the_rate_of_its_time_span():
    now = [100.0]
    meter = Meter(60, lambda: now[0])
    assert meter.get_rate() == 0.0
    for second in range(1, 31):
        now[0] = 100.0 + second
        meter.mark_event(4)
        meter.get_rate()
    assert meter.get_rate() == pytest.approx(4.0)  # of the 30 seconds since it was made
    for second in range(31, 91):
        now[0] = 100.0 + second
        meter.mark_event()
        meter.get_rate()
    assert meter.get_rate() == pytest.approx(1.0)
    assert meter.get_count() == 30 * 4 + 60
    now[0] += 1_000
    meter.get_rate()
    now[0] += 61
    assert meter.get_rate() == 0.0
    assert len(meter._samples) <= 62


def test_a_distribution_without_values_has_no_minimum():
    distribution = MetricGroup().distribution("d")
    assert distribution.report() == [0, 0, None, None]
    with pytest.raises(TypeError):
        distribution.update("x")  # type: ignore[arg-type]
    assert distribution.report() == [0, 0, None, None]


def test_a_gauge_that_raises_an_error_has_no_value_and_is_logged_once(caplog):
    group = MetricGroup(("Map", "0")).add_group("parser")
    group.gauge("ratio", lambda: 1 / 0)
    [(path, name, gauge)] = group.all_metrics()
    assert (path, name) == (("parser",), "ratio")
    with caplog.at_level(logging.WARNING, "penstock.metrics"):
        assert [gauge.report(), gauge.report()] == [None, None]
    [record] = caplog.records
    assert record.getMessage() == (
        "gauge Map.0.parser.ratio has no value, because its function raised ZeroDivisionError: "
        "division by zero"
    )


def test_values_of_other_types_become_plain_numbers_and_texts():
    np = pytest.importorskip("numpy")
    group = MetricGroup()
    values = [np.int64(7), np.float32(0.5), 1 << 70, "x" * 300, True, None, [1], 10**400]
    for number, value in enumerate(values):
        group.gauge(str(number), lambda value=value: value)
    found = [metric.report() for _, _, metric in group.all_metrics()]
    assert found == [7, 0.5, float(1 << 70), "x" * 200, True, None, "[1]", float("inf")]
    assert [type(value) for value in found[:3]] == [int, float, float]


def test_a_name_means_one_metric():
    group = MetricGroup(("Map", "3"))
    assert group.counter("a") is group.counter("a")
    assert group.add_group("g").counter("a") is group.add_group("g").counter("a")
    assert group.add_group("g").counter("a") is not group.counter("a")
    assert group.add_group("k", "v").counter("a") is not group.add_group("k").add_group(
        "v"
    ).counter("a")
    with pytest.raises(GraphError, match="'a' is a counter already: give the meter another name"):
        group.meter("a")
    with pytest.raises(GraphError, match="there is a metric 'a' already"):
        group.gauge("a", lambda: 1)


def test_groups_have_the_names_and_variables_of_pyflink():
    group = MetricGroup(("Map", "3")).add_group("parser").add_group("topic", "orders")
    assert group.get_scope_components() == ["Map", "3", "parser", "topic", "orders"]
    assert group.get_all_variables() == {"topic": "orders"}
    assert group.get_metric_identifier("bad") == "Map.3.parser.topic.orders.bad"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda group: group.counter(""), "the name of a metric is a text that is not empty"),
        (lambda group: group.add_group(5), "not 5"),
        (lambda group: group.add_group("topic", 5), "the value of a group"),
        (lambda group: group.gauge("g", 5), "takes a function without arguments, not 5"),
        (lambda group: group.meter("m", 0), "time span of meter 'm' is positive, not 0"),
    ],
)
def test_a_wrong_metric_is_refused(make, message):
    with pytest.raises(GraphError, match=message):
        make(MetricGroup())


def test_the_classes_are_in_the_modules_of_pyflink():
    from penstock.metrics import Counter as InPackage  # isort: skip
    from penstock.metrics.metricbase import MetricGroup as InModule

    assert (InPackage, InModule) == (Counter, MetricGroup)
