"""What collectors of OpenTelemetry and OpenLineage receive, and what happens when they are gone."""

import json
import logging
import subprocess
import sys
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio
from click.testing import CliRunner
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from penstock.cli import main
from penstock.rest.telemetry import lineage, otel
from penstock.rest.telemetry.failures import ExportFailures
from penstock.rest.telemetry.lineage import LineageReporter
from penstock.rest.telemetry.otel import OpenTelemetryExporter
from penstock.runtime.control.job_state import JobState
from penstock.runtime.dispatcher.job_registry import JobRecord
from tests.processes.harness import PATIENCE, wait_until
from tests.rest.served import RUNNING, began, program, restarting, snapshot, started, status
from tests.runtime.dispatcher.service import Service


class Collector:
    """A receiver of OTLP over HTTP in this process."""

    def __init__(self):
        self.spans, self.metrics, self.status = deque(), {}, 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.status == 200:
                    collector.take(self.path, body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def take(self, path, body):
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {one.name: one for one in scope.metrics}

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Give the last data so much time as the slowest machine may need, instead of 2 s."""
    for module in (lineage, otel):
        monkeypatch.setattr(module, "END_SECONDS", PATIENCE)


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.close()


def job(*events):
    state = JobState("1", "words")
    for event in (started(program()), RUNNING, *events):
        state.handle(event)
    return state


RECORD = JobRecord("1", "words", submitted=5.0, log="/home/1.log")


async def running(observer, body, *states):
    """Run an observer while a function runs in a thread."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(observer.run, lambda: states)
        await trio.to_thread.run_sync(body)
        nursery.cancel_scope.cancel()


def test_a_snapshot_is_a_trace_with_a_span_for_each_task(collector):
    exporter = OpenTelemetryExporter(collector.url, 0.01)
    state = job(began(2), snapshot(2), began(3), {"event": "aborted", "number": 3, "reason": "no"})
    exporter.event(RECORD, state, snapshot(2))
    exporter.event(RECORD, state, {"event": "aborted", "number": 3})
    exporter.event(RECORD, state, RUNNING)

    def body():
        wait_until(lambda: len(collector.spans) == 4, "all spans")

    trio.run(running, exporter, body, state)
    spans = {span.name: span for span in collector.spans}
    root = spans["checkpoint 2"]
    name = "Upper → Print to Std. Out"
    tasks = [spans[f"{name} 0"], spans[f"{name} 1"]]
    assert all(one.trace_id == root.trace_id for one in tasks)
    assert all(one.parent_span_id == root.span_id for one in tasks)
    assert root.start_time_unix_nano == 1_000_000_000
    assert root.end_time_unix_nano == 1_020_500_000
    assert tasks[1].end_time_unix_nano == 1_020_000_000
    attributes = {one.key: one.value for one in tasks[1].attributes}
    assert attributes["penstock.task.subtask"].int_value == 1
    assert attributes["penstock.task.bytes_new"].int_value == 60
    failed = spans["checkpoint 3"]
    assert (failed.status.code, failed.status.message) == (2, "no")
    assert failed.trace_id != root.trace_id and exporter.failures.count == 0


def test_metrics_have_the_names_and_labels_of_those_for_prometheus(collector):
    state = job(status(10), status(20))
    exporter = OpenTelemetryExporter(collector.url, 0.01)

    def body():
        names = "penstock.taskmanager_job_task.numrecordsin", "penstock.jobmanager_job.numrestarts"
        wait_until(lambda: all(name in collector.metrics for name in names), "metrics")

    trio.run(running, exporter, body, state)
    points = collector.metrics["penstock.taskmanager_job_task.numrecordsin"].gauge.data_points
    found = {
        (labels["task_id"], labels["subtask_index"]): point.as_int
        for point in points
        for labels in ({one.key: one.value.string_value for one in point.attributes},)
    }
    assert found[("1", "0")] == 20 and found[("1", "1")] == 40
    seen = collector.metrics["penstock.taskmanager_job_task_operator.topic.seen"]
    assert {one.key for one in seen.gauge.data_points[0].attributes} >= {"topic", "operator_id"}


def test_a_collector_that_refuses_or_is_gone_is_counted_and_told_once(collector, caplog):
    exporter = OpenTelemetryExporter(collector.url, 0.01)
    collector.status = 400

    def body():
        wait_until(lambda: exporter.failures.count > 2, "failures are counted")
        collector.status = 200
        wait_until(lambda: collector.metrics, "metrics come again")
        wait_until(lambda: "takes data again" in caplog.text, "it is said")

    with caplog.at_level(logging.WARNING, "penstock"):
        trio.run(running, exporter, body, job(status(10)))
    assert caplog.text.count("takes no data") == 1


def test_failures_are_counted_from_many_threads():
    failures = ExportFailures("x")
    threads = [
        threading.Thread(target=lambda: [failures.failed("no") for _ in range(100)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures.count == 800


# ---- lineage


def reported(tmp_path, every, record, *events, end=None):
    """Return the events of a run, as the file transport of OpenLineage writes them."""
    path = tmp_path / "events.json"
    transport = FileTransport(FileConfig(log_file_path=str(path), append=True))
    reporter = LineageReporter(every, client=OpenLineageClient(transport=transport))
    state = JobState(record.id, record.name)
    for event in events:
        state.handle(event)
        reporter.event(record, state, event)
    if end is not None:
        record.state, record.error = end
        reporter.ended(record, state)
    trio.run(running, reporter, lambda: None)
    assert reporter.failures.count == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def record():
    return JobRecord("1", "words", submitted=5.0, log="/home/1.log")


def test_a_run_is_reported_from_its_start_to_its_end(tmp_path):
    snapshots = [event for n in range(2, 7) for event in (began(n), snapshot(n))]
    events = reported(
        tmp_path, 2, record(), started(program()), RUNNING, *snapshots, end=("finished", None)
    )
    kinds = [event["eventType"] for event in events]
    assert kinds == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    assert len({event["run"]["runId"] for event in events}) == 1
    facet = events[1]["run"]["facets"]["penstock_snapshot"]
    assert (facet["number"], facet["bytesTotal"]) == (3, 150)
    assert events[0]["job"]["namespace"] == "penstock" and events[0]["job"]["name"] == "words"
    assert [one["name"] for one in events[0]["inputs"]] == ["words.Source: Words"] or (
        events[0]["inputs"][0]["name"] == "words.Words"
    )
    assert events[0]["outputs"][0]["name"] == "words.Print to Std. Out"


@pytest.mark.parametrize(
    ("state", "kind"), [("failed", "FAIL"), ("stopped", "ABORT"), ("killed", "ABORT")]
)
def test_the_end_says_how_a_run_has_ended(tmp_path, state, kind):
    last = reported(tmp_path, 1, record(), started(program()), end=(state, "it broke"))[-1]
    assert last["eventType"] == kind
    assert last["run"]["facets"]["errorMessage"]["message"] == "it broke"


def test_a_jobmanager_that_is_replaced_starts_no_run(tmp_path):
    again = started(program())
    events = reported(tmp_path, 1, record(), again, RUNNING, restarting(), again)
    assert [event["eventType"] for event in events] == ["START"]
    (tmp_path / "events.json").unlink()
    later = record()
    later.last_snapshot = 7
    # A service that was started later finds the run with the same id.
    events += reported(tmp_path, 1, later, again)
    assert [event["eventType"] for event in events] == ["START", "RUNNING"]
    assert events[0]["run"]["runId"] == events[1]["run"]["runId"]


def test_events_that_nobody_takes_are_dropped_and_counted(monkeypatch, caplog):
    monkeypatch.setattr(lineage, "WAITING", 3)

    class Broken:
        def emit(self, event):
            raise ConnectionError("nobody is there")

    reporter = LineageReporter(1, client=Broken())
    state = job()
    with caplog.at_level(logging.WARNING, "penstock"):
        for number in range(5):
            reporter.event(RECORD, state, snapshot(number))
        assert reporter.failures.count == 2
        trio.run(
            running, reporter, lambda: wait_until(lambda: reporter.failures.count == 5, "all fail")
        )
    assert caplog.text.count("takes no data") == 1


# ---- the service


def test_the_service_exports_and_its_jobs_do_not_mind_a_dead_collector(
    tmp_path, collector, monkeypatch
):
    path = tmp_path / "lineage.json"
    config = {"transport": {"type": "file", "log_file_path": str(path), "append": True}}
    (tmp_path / "openlineage.yml").write_text(json.dumps(config))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(tmp_path / "openlineage.yml"))
    service = Service(tmp_path)
    try:
        process = service.start(
            "--otel", collector.url, "--otel-interval", "100ms", "--lineage", "2"
        )
        id = service.submit()
        wait_until(lambda: any(one.parent_span_id for one in collector.spans), "spans of tasks")
        wait_until(lambda: collector.metrics, "metrics")
        collector.close()
        wait_until(lambda: "takes no data" in service.said(process), "it is said")
        before = service.job(id)["last_snapshot"]
        wait_until(lambda: service.job(id)["last_snapshot"] > before + 3, "the job goes on")
        assert service.job(id)["restarts"] == 0
        service.here("cancel", id)

        def kinds():
            text = path.read_text() if path.exists() else ""
            # The last line may not be written to its end.
            whole = text[: text.rfind("\n") + 1].splitlines()
            return [json.loads(line)["eventType"] for line in whole]

        wait_until(lambda: kinds()[-1:] == ["ABORT"], "the end is reported")
        assert kinds()[0] == "START" and "RUNNING" in kinds()
    finally:
        service.end()


PROGRAM = """
from penstock import StreamExecutionEnvironment
from penstock.rest.telemetry import lineage, otel

# As in the fixture `patient`, for the process of the program.
lineage.END_SECONDS = otel.END_SECONDS = 180.0
env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(20)
env.get_checkpoint_config().set_checkpoint_storage_dir(__file__ + ".snapshots")
numbers = env.from_generator(lambda i: i, COUNT, 500)
numbers.key_by(lambda i: i % 3).reduce(lambda a, b: a + b).map(lambda i: 1 // (i - BAD)).print()
env.execute("numbers")
"""


@pytest.mark.parametrize(("bad", "end"), [(-1, "COMPLETE"), (3, "FAIL")])
def test_a_program_exports_its_own_job(tmp_path, collector, monkeypatch, bad, end):
    path = tmp_path / "lineage.json"
    config = {"transport": {"type": "file", "log_file_path": str(path), "append": True}}
    (tmp_path / "openlineage.yml").write_text(json.dumps(config))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(tmp_path / "openlineage.yml"))
    job = tmp_path / "job.py"
    job.write_text(PROGRAM.replace("COUNT", "200").replace("BAD", str(bad)))
    telemetry = ("--otel", collector.url, "--otel-interval", "10ms", "--lineage", "1")
    words = [sys.executable, "-m", "penstock", "run", str(job), *telemetry]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode == 0) is (end == "COMPLETE"), done.stderr
    events = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [event["eventType"] for event in events]
    assert (kinds[0], kinds[-1]) == ("START", end)
    assert len({event["run"]["runId"] for event in events}) == 1
    if end == "FAIL":
        message = events[-1]["run"]["facets"]["errorMessage"]["message"]
        assert "ZeroDivisionError" in message
    else:
        assert "RUNNING" in kinds
        assert any(one.parent_span_id for one in collector.spans)


def test_wrong_options_are_refused(tmp_path):
    def output(*words):
        done = CliRunner().invoke(main, ["jobmanager", "--dir", str(tmp_path / "home"), *words])
        assert done.exit_code in (1, 2)
        return done.output

    assert "is no URL" in output("--otel", "host:4318")
    assert "goes together with --otel" in output("--otel-interval", "1s")
    assert "--lineage" in output("--lineage", "0")
