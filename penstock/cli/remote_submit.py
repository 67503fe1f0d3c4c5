"""Submit and upgrade jobs of a service on another machine, where their files are run.

On this machine nothing of the program is imported: it may need packages that only the machine of
the service has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import click

from penstock.cli.http_connection import HttpConnection
from penstock.cli.options import JobOptions, print_message
from penstock.cli.program_archive import ProgramArchive
from penstock.cli.progress import Progress
from penstock.cli.script import job_file, report_error
from penstock.cli.service_address import ServiceAddress
from penstock.cli.submitted_job import SubmittedJob
from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError, PenstockError
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.program import Program, RunOptions
from penstock.runtime.client.job_report import JobMonitor
from penstock.runtime.control.requests import Events, Show, SubmitScript, UpgradeScript


def submit_remotely(
    options: JobOptions, service: ServiceAddress, wait: bool, memory: str | None, as_json: bool
) -> int:
    """Submit a job, follow it if wanted, and return the exit code.

    Arguments:
        options: the options of the command.
        service: where the service is.
        wait: whether to wait until the job has ended.
        memory: the value of `--memory`.
        as_json: whether the job is printed as JSON.
    """
    path = job_file(options.job)
    if path is None:
        return 1
    began = time.perf_counter()
    words = submit_words(options)
    if memory is not None:
        words += ["--memory", memory]
    archive, folder = _send(options, service)
    request = SubmitScript(
        f"{folder}/{archive.job}", [*words, *archive.words], list(options.args), f"{folder}/job"
    )
    with service.connect() as connection:
        submitted = connection.ask(request)
        job = connection.ask(Show(submitted["id"]))["job"]
    progress = Progress(options.progress, options.resume is not None)
    with progress.showing(printing=False):
        progress(submitted)
        if wait:
            code = _follow(job, options, service, progress, began)
        else:
            if job["waiting"]:
                progress({"event": "queued", "reason": job["waiting"]})
            if not as_json:
                click.echo(job["id"])
            code = 0
    if as_json:
        with service.connect() as connection:
            click.echo(json.dumps(connection.ask(Show(job["id"]))["job"], indent=2))
    return code


def _follow(
    job: dict[str, Any],
    options: JobOptions,
    service: ServiceAddress,
    progress: Progress,
    began: float,
) -> int:
    """Follow a job to its end, and return the exit code."""
    config = JobConfig(name=job["name"], checkpoint_dir=job["checkpoint_dir"] or None)
    settings = RunOptions(report=options.report, progress=progress)
    monitor = JobMonitor(Program(JobGraph(), config), settings, began)
    with service.connect() as connection:
        events = connection.answers(Events(job["id"], follow=True))
        ended = SubmittedJob(service, job["id"], monitor).follow(events)
    try:
        result = monitor.result(ended)
    except PenstockError as error:
        report_error(error, Path(options.job))
        if config.checkpoint_dir and progress.last_snapshot is not None:
            again = replace(options, extra=service.words())
            print_message(f"resume with: {again.resume_command()}")
        return 1
    return 143 if result.stopped else 0


def upgrade_remotely(
    options: JobOptions, service: ServiceAddress, id: str, further: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Replace the program of a job; return the record of the job, and what the command has printed.

    Arguments:
        options: the options of the command.
        service: where the service is.
        id: the id of the job.
        further: options that only `upgrade` has.
    """
    if job_file(options.job) is None:
        raise SystemExit(1)
    words = [*further]
    if options.parallelism is not None:
        words += ["--parallelism", str(options.parallelism)]
    if options.allow_dropped:
        words.append("--allow-dropped")
    archive, folder = _send(options, service)
    request = UpgradeScript(
        id, f"{folder}/{archive.job}", [*words, *archive.words], list(options.args), f"{folder}/job"
    )
    with service.connect() as connection:
        record = connection.ask(request)
    del record["event"]
    return record, record.pop("output")


def _send(options: JobOptions, service: ServiceAddress) -> tuple[ProgramArchive, str]:
    archive = ProgramArchive(options)
    with service.connect() as connection:
        assert isinstance(connection, HttpConnection)
        return archive, connection.send_program(archive.data)


def submit_words(options: JobOptions) -> list[str]:
    """Return the options of `submit` that the service needs, without those that name files.

    Raises:
        GraphError: if a path has another meaning on the machine of the service.
    """
    words: list[str] = []
    folder = options.checkpoint_dir
    if folder is not None and not PurePosixPath(folder).is_absolute() and "://" not in folder:
        raise GraphError(
            f"--checkpoint-dir {folder} is relative, and the job runs on another machine: give the "
            f"whole path there"
        )
    if options.py_executable is not None:
        words += ["--py-executable", options.py_executable]
    interval = options.checkpoint_interval
    for option, value in (
        ("--name", options.name),
        ("--parallelism", options.parallelism),
        ("--checkpoint-dir", folder),
        ("--checkpoint-interval", None if interval is None else f"{interval:g}s"),
        ("--resume", options.resume),
        ("--log-level", options.log_level),
        ("--runtime-mode", options.runtime_mode),
        ("--on-lost-position", options.on_lost_position),
        ("--claim-mode", options.claim_mode),
    ):
        if value is not None:
            words += [option, str(value)]
    for option, given in (
        ("--fork", options.fork),
        ("--allow-dropped", options.allow_dropped),
        ("--install-requirements", options.install_requirements),
    ):
        words += [option] if given else []
    for option, values in (("--param", options.params), ("--sink-marker", options.sink_markers)):
        for value in values:
            words += [option, value]
    return words
