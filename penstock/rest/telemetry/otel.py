"""Send metrics and traces of snapshots to an OpenTelemetry collector: `OpenTelemetryExporter`."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import trio
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

from penstock.rest.measurements import measurements
from penstock.rest.telemetry.failures import ExportFailures
from penstock.runtime.control.job_state import JobState, SnapshotRecord
from penstock.runtime.dispatcher.job_registry import JobRecord
from penstock.version import VERSION

#: The time between two exports of metrics, in seconds.
METRICS_SECONDS = 10.0
#: The time that one export may take, in seconds, and all of them when the service ends.
EXPORT_SECONDS, END_SECONDS = 5.0, 2.0
#: The number of spans that wait for the collector. A snapshot has one for each task.
WAITING_SPANS = 20_000


_BAD = re.compile(r"[^a-zA-Z0-9_.\-/]")


class OpenTelemetryExporter:
    """Sends metrics and snapshots of jobs by OTLP over HTTP.

    The names of metrics are those for Prometheus with dots behind `penstock` and the scope, in
    lower case, as the SDK writes them. Each
    snapshot is a trace: one span for the snapshot, and a child span for each task, from the begin
    of the snapshot until the task has written its part. Headers, certificates and compression are
    those of OpenTelemetry's variables, such as `OTEL_EXPORTER_OTLP_HEADERS`.

    Arguments:
        endpoint: the URL of the collector, such as `http://localhost:4318`.
        interval_seconds: the time between two exports of metrics.
    """

    def __init__(self, endpoint: str, interval_seconds: float = METRICS_SECONDS) -> None:
        base = endpoint.rstrip("/")
        self.failures = ExportFailures(f"the OpenTelemetry collector at {base}")
        self._interval = interval_seconds
        resource = Resource.create({"service.name": "penstock", "service.version": VERSION})
        metrics = _MetricExporter(self.failures, endpoint=f"{base}/v1/metrics")
        # Values are gathered where jobs are followed, so this object says when they are sent.
        self._reader = PeriodicExportingMetricReader(metrics, math.inf, EXPORT_SECONDS * 1000)
        self._meters = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self._meter = self._meters.get_meter("penstock", VERSION)
        self._values: dict[str, list[Observation]] = {}
        self._instruments: set[str] = set()
        spans = _SpanExporter(self.failures, endpoint=f"{base}/v1/traces")
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(BatchSpanProcessor(spans, WAITING_SPANS, 1000.0))
        self._tracer = self._traces.get_tracer("penstock", VERSION)
        # The failures are reported here, and once instead of at each attempt.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    # ---- as a `JobObserver`

    def event(self, record: JobRecord, state: JobState, event: dict[str, Any]) -> None:
        """Send the trace of a snapshot that has completed or failed."""
        del record
        if event["event"] in ("snapshot", "aborted"):
            found = state.snapshot(event["number"])
            if found is not None:
                self._send_snapshot(state, found)

    def ended(self, record: JobRecord, state: JobState) -> None:
        """Do nothing: the metrics of a job tell its end."""

    async def run(self, jobs: Callable[[], Sequence[JobState]]) -> None:
        """Send metrics at intervals, until cancelled."""
        try:
            while True:
                await trio.sleep(self._interval)
                self._gather(job for job in jobs() if not job.ended)
                await trio.to_thread.run_sync(self._flush, abandon_on_cancel=True)
        finally:
            with trio.move_on_after(END_SECONDS, shield=True):
                await trio.to_thread.run_sync(self._shut_down, abandon_on_cancel=True)

    # ---- metrics

    def _gather(self, jobs: Iterable[JobState]) -> None:
        values: dict[str, list[Observation]] = {}
        for job in jobs:
            for one in measurements(job):
                if not isinstance(one.value, str) and math.isfinite(one.value):
                    name = f"penstock.{one.scope.value}.{one.name}"
                    labels = {**(one.variables or {}), **one.labels}
                    values.setdefault(name, []).append(Observation(one.value, labels))
        self._values = values
        for name in values.keys() - self._instruments:
            self._instruments.add(name)
            self._meter.create_observable_gauge(_allowed(name), [self._callback(name)])

    def _callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: self._values.get(name, ())

    def _flush(self) -> None:
        try:
            self._reader.force_flush(EXPORT_SECONDS * 1000)
        except Exception as error:  # of the library, which promises no kinds
            self.failures.failed(str(error))

    def _shut_down(self) -> None:
        try:
            self._traces.shutdown()
            self._meters.shutdown(END_SECONDS * 1000)
        except Exception as error:
            self.failures.failed(str(error))

    # ---- traces

    def _send_snapshot(self, job: JobState, found: SnapshotRecord) -> None:
        begin = found.created_ms * 1_000_000
        attributes: dict[str, str | int] = {
            "penstock.job.id": job.id,
            "penstock.job.name": job.name,
            "penstock.snapshot.number": found.number,
            "penstock.snapshot.kind": found.kind,
        }
        root = self._tracer.start_span(
            f"{found.kind} {found.number}", attributes=attributes, start_time=begin
        )
        if found.figures is None:
            root.set_status(Status(StatusCode.ERROR, found.failure))
            root.end(max(begin, (found.failed_ms or found.created_ms) * 1_000_000))
            return
        root.set_attribute("penstock.snapshot.bytes_new", found.figures["bytes_new"])
        root.set_attribute("penstock.snapshot.bytes_total", found.figures["bytes_total"])
        names = {vertex["id"]: vertex["name"] for vertex in job.graph["vertices"]}
        for row in found.tasks:
            self._send_task(root, begin, names.get(row[0], ""), row)
        root.end(begin + int(found.figures["duration_ms"] * 1_000_000))

    def _send_task(self, root: Span, begin: int, name: str, row: list[Any]) -> None:
        _, subtask, acknowledged, aligned, written, new, total, records, *_ = row
        attributes = {
            "penstock.task.name": name,
            "penstock.task.subtask": subtask,
            "penstock.task.aligned_ms": aligned,
            "penstock.task.write_ms": written,
            "penstock.task.bytes_new": new,
            "penstock.task.bytes_total": total,
            "penstock.task.log_records": records,
        }
        span = self._tracer.start_span(
            f"{name} {subtask}",
            set_span_in_context(root),
            attributes=attributes,
            start_time=begin,
        )
        span.end(begin + int(acknowledged * 1_000_000))


class _MetricExporter(OTLPMetricExporter):
    """Counts exports that have failed."""

    def __init__(self, failures: ExportFailures, **settings: Any) -> None:
        super().__init__(timeout=EXPORT_SECONDS, **settings)
        self._failures = failures

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send metrics, and count a failure."""
        try:
            result = super().export(metrics_data, timeout_millis, **kwargs)
        except Exception as error:
            self._failures.failed(str(error))
            return MetricExportResult.FAILURE
        if result is MetricExportResult.SUCCESS:
            self._failures.succeeded()
        else:
            self._failures.failed("it does not answer, or refuses metrics")
        return result


class _SpanExporter(OTLPSpanExporter):
    """Counts exports that have failed."""

    def __init__(self, failures: ExportFailures, **settings: Any) -> None:
        super().__init__(timeout=EXPORT_SECONDS, **settings)
        self._failures = failures

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, and count a failure."""
        try:
            result = super().export(spans)
        except Exception as error:
            self._failures.failed(str(error))
            return SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._failures.succeeded()
        else:
            self._failures.failed("it does not answer, or refuses traces")
        return result


def _allowed(name: str) -> str:
    """Return the name of an instrument: OpenTelemetry allows letters, digits and `_.-/`."""
    return _BAD.sub("_", name)[:255]
