"""The memory of the JobManager is bounded, also for a job that runs for months."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from penstock.connectors import GeneratorSource
from penstock.dataflow.config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.messages import Metrics
from penstock.runtime.control.packing import unpack_event
from penstock.runtime.jobmanager.job_clients import AttachedClient
from penstock.runtime.jobmanager.job_settings import JobOutcome
from penstock.runtime.jobmanager.process import MAX_BEHIND, JobServer
from penstock.runtime.jobmanager.reporting import job_history
from penstock.runtime.jobmanager.reporting.begun_tasks import BegunTasks
from penstock.runtime.jobmanager.reporting.job_events import (
    Committed,
    JobFinished,
    JobSnapshotCompleted,
)
from penstock.runtime.jobmanager.reporting.job_history import KEPT, JobHistory
from penstock.runtime.jobmanager.reporting.job_metrics import JobMetrics
from tests.simulation.run_program import program, run_program


def figures(number: int) -> dict[str, Any]:
    return {"number": number, "duration_ms": 2.0, "bytes_new": 10}


def test_the_history_keeps_the_last_hundred_and_the_sums_over_all():
    history = JobHistory()
    for number in range(1000):
        history.add_snapshot(figures(number))
        history.add_restart(f"cause {number}", 0.1, float(number))
        history.runs_again(number + 0.5, {"snapshot": number})
    report = history.figures()
    assert [s["number"] for s in report["snapshots"]] == list(range(1000 - KEPT, 1000))
    assert report["restarts"][-1]["cause"] == "cause 999"
    assert report["restarts"][-1]["snapshot"] == 999
    assert len(report["restarts"]) == KEPT
    assert report["totals"] == {
        "snapshots": 1000,
        "snapshot_ms": 2000.0,
        "snapshot_bytes_new": 10_000,
        "restarts": 1000,
        "restart_seconds": 500.0,
    }


def test_a_start_after_no_failure_is_no_restart():
    assert JobHistory().runs_again(1.0, {}) is None


def test_the_report_of_a_job_has_its_last_snapshots_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(job_history, "KEPT", 5)

    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, 30, 100.0, clock=trio.current_time)
        env.from_source(source, None, "numbers").print()

    config = JobConfig(name="job", checkpoint_dir=str(tmp_path), checkpoint_interval_seconds=0.01)
    ran = run_program(program(build, config))
    assert isinstance(ran.outcome, JobOutcome), ran
    taken = [event["number"] for event in ran.events if event["event"] == "snapshot"]
    assert len(taken) > 5
    assert ran.outcome.totals["snapshots"] == len(taken)
    assert [snapshot["number"] for snapshot in ran.outcome.snapshots] == taken[-5:]


def test_a_job_that_keeps_no_snapshots_reports_none():
    ran = run_program(
        program(lambda env: env.from_collection([1]).print() and None, JobConfig(name="job"))
    )
    assert isinstance(ran.outcome, JobOutcome), ran
    assert (ran.outcome.snapshots, ran.outcome.totals["snapshots"]) == ([], 0)
    assert "snapshot" not in [event["event"] for event in ran.events]


def test_metrics_of_attempts_that_are_over_are_added_up():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).map(str).uid("texts").print()
    plan = compile_graph(env._graph, env.config)
    metrics = JobMetrics(plan)
    for attempt in range(1, 501):
        metrics.begin_attempt(BegunTasks(plan))
        for seen in (1, 2):
            row = ["texts", 0, seen, 2 * seen, None, False]
            metrics.update(plan, Metrics(0, [row], [], [], [], 5, attempt))
    [texts] = [row for row in metrics.operators() if row["uid"] == "texts"]
    assert (texts["records_in"], texts["records_out"]) == (1000, 2000)
    assert metrics.peaks == {(0, 0): 500}
    assert len(metrics._operators) == 1


def test_a_client_that_does_not_read_holds_up_a_bounded_number_of_events():
    client = AttachedClient(Frames(trio.testing.memory_stream_pair()[0]))
    server = JobServer(client)
    for number in range(3 * MAX_BEHIND):
        server.observe(JobSnapshotCompleted(figures(number), []))
        server.observe(Committed())
    server.observe(JobFinished(JobOutcome(False, [], [], [], "", [], [], {})))
    assert client.behind == MAX_BEHIND + 1
    assert unpack_event(client._outbox._waiting[-1])["event"] == "finished"
