"""Run the old and the new program over the same slice of input, and compare: `ShadowRun`.

Both runs are forks of the same snapshot in a temporary folder, and children of this process. If it
dies, they end, and the next shadow run or the next JobManager of the job removes the folder.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.runtime.client.job_connection import JobProcess
from penstock.runtime.client.stop_signals import kill_at_second_interrupt
from penstock.runtime.control.failures import recreate
from penstock.runtime.control.requests import decode_job, encode_job
from penstock.runtime.shadow.comparison import SinkComparison, SourceComparison, compare
from penstock.runtime.shadow.sliced_source import SliceFiles
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

#: The time after the end of the slice at which the user is told why a run goes on, in seconds.
HINT_SECONDS = 30.0
_STILL_READING = (
    "shadow: the slice has ended, and the old program still runs: it processes what it has read, "
    "or a source waits for its next record (Ctrl-C ends the comparison)"
)
#: The length of the end of a log that is shown if a JobManager has died, in characters.
LOG_LENGTH = 2_000


@dataclass(frozen=True)
class ShadowReport:
    """The result of a shadow run.

    Arguments:
        snapshot: the number of the snapshot from which both programs have started.
        snapshots: the number of snapshots that the old program has taken meanwhile.
        sources, sinks: the input and the output of both programs.
    """

    snapshot: int
    snapshots: int
    sources: list[SourceComparison]
    sinks: list[SinkComparison]

    @property
    def equal(self) -> bool:
        """Whether both programs have read and written the same records."""
        return not self.unequal_sources and all(sink.equal for sink in self.sinks)

    @property
    def unequal_sources(self) -> list[SourceComparison]:
        """The sources of which the programs have read different numbers of records."""
        return [source for source in self.sources if source.old != source.new]


@dataclass(frozen=True)
class ShadowProgram:
    """A program of a shadow run.

    Arguments:
        what: a text that names the program in messages, such as "the new program".
        request: the first frame for a JobManager of the program.
        folder: the working directory of the program.
    """

    what: str
    request: bytes
    folder: str


class ShadowRun:
    """Starts two programs from a snapshot, one after the other, and compares their output.

    Arguments:
        snapshot: the folder of the snapshot. The caller has a lease of it.
        number: the number of the snapshot.
        parent: the folder in which the temporary folder is made. If it is on the file system of the
            snapshot, its files are linked and not copied.
        report: called with each line that reports what happens.
    """

    def __init__(
        self, snapshot: Path, number: int, parent: Path, report: Callable[[str], None]
    ) -> None:
        self._snapshot, self._number, self._parent = snapshot, number, parent
        self._report = report

    def run(self, old: ShadowProgram, new: ShadowProgram, snapshots: int) -> ShadowReport:
        """Run the old program for some snapshots, then the new one with the same input.

        Raise the `PenstockError` with which one of them has failed.
        """
        with TemporaryFolder("shadow", str(self._parent)) as temporary:
            first, second = temporary.path / "old", temporary.path / "new"
            taken = self._run(old, first, snapshots)
            second.mkdir()
            shutil.copyfile(SliceFiles(first).read, SliceFiles(second).limits)
            # The old program has as many snapshots on the disk as the job retains.
            shutil.rmtree(first / "job", ignore_errors=True)
            self._run(new, second, 0)
            return ShadowReport(self._number, taken, *compare(first, second))

    def _run(self, program: ShadowProgram, folder: Path, snapshots: int) -> int:
        """Run a program to the end of the slice, and return the number of its snapshots.

        Arguments:
            program: the program.
            folder: the folder of the run.
            snapshots: the number of snapshots after which the slice ends; 0 if it is known.
        """
        folder.mkdir(exist_ok=True)
        self._report(f"shadow: {program.what} starts from snapshot {self._number}")
        with (folder / "log").open("wb") as log:
            job = JobProcess(self._frame(program, folder), log, folder=program.folder)
            taken, last = 0, None
            hint_at = math.inf
            try:
                for event in job.events():
                    if time.monotonic() > hint_at:
                        self._report(_STILL_READING)
                        hint_at = math.inf
                    match event["event"]:
                        case "snapshot" if event["kind"] == "checkpoint":
                            taken += 1
                            if taken == snapshots:
                                SliceFiles(folder).freeze.touch()
                                hint_at = time.monotonic() + HINT_SECONDS
                        case "restarting":
                            raise JobError(f"{program.what} was restarted: {event['message']}")
                        case "finished" | "failed":
                            last = event
            finally:
                if job.running and last is None:
                    job.stop()
                    with kill_at_second_interrupt(job.kill):
                        job.drain()
                how = job.wait()
        if last is None:
            said = (folder / "log").read_text(errors="replace")[-LOG_LENGTH:]
            raise JobError(f"the JobManager of {program.what} {how}\n{said}".rstrip())
        if last["event"] == "failed":
            raise recreate(last)
        if last["stopped"]:
            raise JobError(f"{program.what} was stopped before the end of the shadow run")
        return taken

    def _frame(self, program: ShadowProgram, folder: Path) -> bytes:
        """Return the first frame for the JobManager of the run."""
        job = decode_job(program.request)
        options: dict[str, Any] = {
            **job.options,
            "resume": str(self._snapshot),
            "fork": True,
            # The program was checked before. Without their sinks, the staged output and the state
            # of functions of sinks have no owner.
            "allow_dropped": True,
            "sink_markers": {},
            "lineage": "",
            "successor": False,
            "rejoin_address": "",
            "rejoin_token": b"",
            "shadow": str(folder),
        }
        return encode_job(replace(job, options=options))
