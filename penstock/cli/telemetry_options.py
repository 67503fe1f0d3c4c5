"""The options that send metrics, traces of snapshots, and lineage of jobs to collectors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.options import duration
from penstock.dataflow.errors import GraphError

if TYPE_CHECKING:
    from penstock.rest.observers import JobObserver

Command = TypeVar("Command", bound=Callable[..., Any])

#: The URL of a collector on this machine; OpenTelemetry's.
DEFAULT_ENDPOINT = "http://localhost:4318"


@dataclass(frozen=True)
class Telemetry:
    """The options of telemetry.

    Arguments:
        endpoint: the URL of the OpenTelemetry collector; None for none.
        interval_seconds: the time between two exports of metrics; None for the default.
        lineage: each snapshot whose count is a multiple of this is reported as lineage; None for
            no lineage.
    """

    endpoint: str | None
    interval_seconds: float | None
    lineage: int | None

    def words(self) -> tuple[str, ...]:
        """Return the options as words of a command line."""
        words: tuple[str, ...] = ()
        if self.endpoint is not None:
            words += ("--otel", self.endpoint)
        if self.interval_seconds is not None:
            words += ("--otel-interval", f"{self.interval_seconds:g}s")
        if self.lineage is not None:
            words += ("--lineage", str(self.lineage))
        return words

    def observers(self) -> list[JobObserver]:
        """Return the observers that the options ask for.

        Raises:
            GraphError: if a package is not installed, or if a setting cannot be used.
        """
        found: list[JobObserver] = []
        endpoint = self.endpoint
        if endpoint is not None:
            if endpoint == DEFAULT_ENDPOINT:
                endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or endpoint
            if not endpoint.startswith(("http://", "https://")):
                raise GraphError(f"--otel {endpoint!r} is no URL: write http://HOST:4318")
            try:
                from penstock.rest.telemetry.otel import METRICS_SECONDS, OpenTelemetryExporter
            except ImportError as error:
                raise GraphError(_missing("--otel", "otel", error)) from error
            found.append(OpenTelemetryExporter(endpoint, self.interval_seconds or METRICS_SECONDS))
        if self.lineage is not None:
            try:
                from penstock.rest.telemetry.lineage import LineageReporter
            except ImportError as error:
                raise GraphError(_missing("--lineage", "lineage", error)) from error
            try:
                found.append(LineageReporter(self.lineage))
            except Exception as error:  # of the library, for a wrong setting
                raise GraphError(f"--lineage: OpenLineage's settings are wrong: {error}") from error
        return found


def telemetry_options(command: Command) -> Command:
    """Add the options `--otel`, `--otel-interval` and `--lineage` to a command.

    The command gets them as the argument `telemetry`.
    """

    @functools.wraps(command)
    def with_telemetry(**values: Any) -> Any:
        given = [values.pop(name) for name in ("otel", "otel_interval", "lineage")]
        if given[1] is not None and given[0] is None:
            raise click.UsageError("--otel-interval goes together with --otel.")
        return command(telemetry=Telemetry(*given), **values)

    decorated: Any = with_telemetry
    for decorate in (
        click.option(
            "--lineage",
            is_flag=False,
            flag_value=100,
            type=click.IntRange(min=1),
            metavar="[N]",
            help="Report the runs of jobs and each N-th snapshot as OpenLineage events; its own "
            "variables say where, such as OPENLINEAGE_URL.  [default: each 100th]",
        ),
        click.option(
            "--otel-interval",
            callback=duration,
            metavar="T",
            help="With --otel: time between two exports of metrics.  [default: 10s]",
        ),
        click.option(
            "--otel",
            is_flag=False,
            flag_value=DEFAULT_ENDPOINT,
            metavar="[URL]",
            help="Send metrics, and a trace of each snapshot, to this OpenTelemetry collector.  "
            f"[default: $OTEL_EXPORTER_OTLP_ENDPOINT, else {DEFAULT_ENDPOINT}]",
        ),
    ):
        decorated = decorate(decorated)
    return decorated  # type: ignore[no-any-return]


def _missing(option: str, extra: str, error: ImportError) -> str:
    return (
        f"{option} needs packages that are not installed ({error.name}): "
        f"pip install 'penstock[{extra}]'"
    )
