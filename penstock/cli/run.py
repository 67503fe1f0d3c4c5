"""Run a job file or print its graph: `penstock run` and `penstock graph`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.api_options import ApiOptions, api_options, serving, with_api_words
from penstock.cli.options import (
    JobCommand,
    JobOptions,
    job_options,
    parallelism_option,
    reporting_errors,
)
from penstock.cli.telemetry_options import Telemetry, telemetry_options

if TYPE_CHECKING:
    from penstock.cli.script import Watch
    from penstock.dataflow.graph.job_graph import OperatorOutput
    from penstock.dataflow.program import CloseableIterator, JobExecutionResult, Program


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the job inside this process, so that breakpoint() and coverage work in it.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Run the workers on this Spark cluster: spark://HOST:PORT, yarn, k8s://..., local[2].",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --master: number of Spark slots that the job may take, one for each worker. It "
    "is also the parallelism, unless --parallelism sets it.",
)
@click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --master: a setting of Spark; may be given several times.",
)
@click.option(
    "--supervise",
    is_flag=True,
    help="Start the JobManager again if it dies, and let it take over the workers.",
)
@api_options
@telemetry_options
@reporting_errors
def run(
    options: JobOptions,
    master: str | None,
    slots: int | None,
    conf: tuple[str, ...],
    api: ApiOptions | None,
    telemetry: Telemetry,
) -> None:
    """Run a job to its end, on this machine or on a Spark cluster.

    JOB.py is run like any Python program, and its env.execute() runs the job. Options take
    precedence over settings of the program. Ctrl-C stops the job with a final snapshot.

    \b
    Examples:
      penstock run job.py --checkpoint-dir snapshots --resume
      penstock run job.py -p 4 --ui -- --topic clicks
      penstock run job.py --otel http://collector:4318
    """
    options = with_api_words(options, api)
    options = replace(options, extra=(*options.extra, *telemetry.words()))
    if master is not None:
        if options.in_process:
            raise click.UsageError("--in-process does not go together with --master.")
        if options.supervise:
            raise click.UsageError("--supervise does not go together with --master.")
        with serving(options, api, telemetry.observers()) as watch:
            raise SystemExit(_run_on_spark(options, master, slots, conf, watch))
    if slots is not None or conf:
        option = "--conf" if conf else "--slots"
        raise click.UsageError(f"{option} goes together with --master.")
    if options.supervise and options.in_process:
        raise click.UsageError("--supervise does not go together with --in-process.")
    with serving(options, api, telemetry.observers()) as watch:
        from penstock.cli.script import run_job

        raise SystemExit(run_job(options, None, watch))


def _run_on_spark(
    options: JobOptions,
    master: str,
    slots: int | None,
    conf: tuple[str, ...],
    watch: Watch | None,
) -> int:
    from penstock.cli.script import run_job
    from penstock.connectors.spark.active_session import spark_session
    from penstock.runtime.spark import SESSION_SETTINGS, SparkCluster

    settings = dict(SESSION_SETTINGS)
    extra = [*options.extra, "--master", master]
    for setting in conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {setting!r} is not KEY=VALUE.")
        settings[key] = value
        extra += ["--conf", setting]
    if slots is not None:
        extra += ["--slots", str(slots)]
    if options.py_executable is not None:
        os.environ["PYSPARK_PYTHON"] = options.py_executable
    # The session is created before the job file runs, so that the file uses the same session.
    spark = spark_session(settings, master, options.name or Path(options.job).stem)
    cluster = SparkCluster(spark, slots)
    try:
        options = replace(options, extra=tuple(extra), parallelism=options.parallelism or slots)
        return run_job(options, cluster, watch)
    finally:
        cluster.session.stop()


class _PlanExecutor:
    """An executor that prints the graph of a program instead of running the program.

    Arguments:
        format: the format of the output, "text" or "mermaid".
        as_json: whether the graph is printed as JSON, in no format.
    """

    def __init__(self, format: str, as_json: bool) -> None:
        self._format, self._as_json = format, as_json

    def execute(self, program: Program) -> JobExecutionResult:
        """Print the graph of the program, and end the job file by raising `SystemExit`."""
        from penstock.dataflow.graph.compile import compile_graph
        from penstock.dataflow.graph.plan import render
        from penstock.dataflow.graph.restart_parts import restart_parts
        from penstock.runtime.jobmanager.reporting.job_description import describe_graph

        plan = compile_graph(program.graph, program.config)
        parts = restart_parts(program.graph, program.config, plan)
        if self._as_json:
            click.echo(json.dumps({"workers": parts.slots, **describe_graph(plan)}, indent=2))
        else:
            click.echo(render(plan, parts, self._format))
        raise SystemExit(0)

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        """Print the graph with the sink that would collect records; end the job file."""
        from penstock.runtime.operators.collect_sink import CollectSink

        program.add_sink("Collect", outputs, CollectSink(""))
        self.execute(program)
        raise AssertionError("the job file has ended")


@click.command(cls=JobCommand, short_help="Print the graph of a job.")
@click.argument("job", metavar="JOB.py")
@click.argument("args", metavar="[-- JOB ARGS]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--format",
    type=click.Choice(["text", "mermaid"]),
    default="text",
    show_default=True,
    help="How to draw the graph.",
)
@parallelism_option
@click.option("--json", "as_json", is_flag=True, help="Print the vertices and edges as JSON.")
@reporting_errors
def graph(format: str, as_json: bool, **values: Any) -> None:
    """Print the graph that a job's program compiles to; nothing is executed.

    JOB.py is run up to its first env.execute() or execute_and_collect().

    \b
    Examples:
      penstock graph job.py
      penstock graph job.py --format mermaid > graph.mmd
    """
    from penstock.cli.script import run_job

    options = JobOptions("graph", progress="none", **values)
    raise SystemExit(run_job(options, _PlanExecutor(format, as_json)))
