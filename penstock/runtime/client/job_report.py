"""Follows a job in the process of its program, and makes its result and report."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import StoreError
from penstock.dataflow.program import JobExecutionResult, Program, RunOptions
from penstock.runtime.client.job_warnings import JobWarnings
from penstock.runtime.control.failures import recreate


class JobMonitor:
    """Handles the events of one job, and makes its result and its report.

    Arguments:
        program: the program that runs.
        options: the options of the run, with the progress callback and the path of the report.
        began: the value of `time.perf_counter()` when the job started, in seconds.
    """

    def __init__(self, program: Program, options: RunOptions, began: float) -> None:
        self._program = program
        self._options = options
        self._began = began
        self._last: dict[str, Any] | None = None
        self._warnings = JobWarnings(shown=options.progress is not None)
        self.pids: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether the JobManager has reported how the job ended."""
        return self._last is not None

    @property
    def signal(self) -> int | None:
        """The number of the signal that has stopped the JobManager; None if there was none."""
        return None if self._last is None else self._last.get("signal")

    def handle(self, event: dict[str, Any]) -> None:
        """Handle an event of the job, and pass it to the progress callback."""
        kind = event["event"]
        if kind in ("finished", "failed"):
            self._last = event
        elif kind == "started":
            self.pids["jobmanager"] = event["pid"]
        elif kind == "workers":
            self.pids["workers"] = event["pids"]
        self._warnings.handle(event)
        if self._options.progress is not None:
            self._options.progress(event)

    def result(self, ended: str) -> JobExecutionResult:
        """Write the report, and return the result of the job.

        Arguments:
            ended: how the JobManager ended. It becomes part of the error message if the JobManager
                did not report the outcome of the job.

        Raises:
            PenstockError: if the job has failed, or if the report cannot be written.
        """
        wall = round(time.perf_counter() - self._began, 3)
        last = self._last or {
            "event": "failed",
            "family": "StoreError",
            "message": f"the JobManager process {ended}"
            + (
                "; the job can be resumed from its last snapshot with --resume"
                if self._program.config.checkpoint_dir
                else ""
            ),
        }
        try:
            self._write_report(last, wall)
        finally:
            # If the report cannot be written either, the error of the job replaces that error.
            if last["event"] == "failed":
                raise recreate(last)
        return JobExecutionResult(
            self._program.config.name,
            wall,
            last["restarts"],
            last["snapshots"],
            last["operators"],
            last["lineage"],
            last["stopped"],
            last["loops"],
            last["totals"],
            last["metrics"],
            rescales=last.get("rescales", []),
            stragglers=last.get("stragglers", []),
        )

    def _write_report(self, last: dict[str, Any], wall: float) -> None:
        if self._options.report is None:
            return
        figures = last if last["event"] == "finished" else last.get("report", {})
        status = "failed"
        if last["event"] == "finished":
            status = "stopped" if last["stopped"] else "finished"
        report = {
            "job": self._program.config.name,
            "status": status,
            "error": last.get("message"),
            "wall_seconds": wall,
            "operators": figures.get("operators", []),
            "loops": figures.get("loops", []),
            "metrics": figures.get("metrics", []),
            "snapshots": figures.get("snapshots", []),
            "restarts": figures.get("restarts", []),
            "rescales": figures.get("rescales", []),
            "stragglers": figures.get("stragglers", []),
            "totals": figures.get("totals", {}),
            "lineage": figures.get("lineage"),
            "peak_worker_bytes": figures.get("peak_bytes", []),
            "pids": self.pids,
        }
        path = Path(self._options.report)
        try:
            _write_whole(path.resolve(), json.dumps(report, indent=2) + "\n")
        except OSError as error:
            raise StoreError(f"the report cannot be written: {error.strerror}", path) from error


def _write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that other processes never see it incomplete."""
    if path.exists() and not path.is_file():
        path.write_text(text)  # the path is a pipe or a terminal, which cannot be replaced
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
