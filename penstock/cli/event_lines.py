"""Print the events of a running job as lines of text: `EventLines`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.cli.text_format import loop_text, size_text
from penstock.runtime.client.job_warnings import logging_shows
from penstock.runtime.control.metric_texts import metric_texts
from penstock.runtime.control.warning_texts import WarningTexts

#: The shortest time between two printed lines about snapshots, in seconds.
SNAPSHOT_LINE_SECONDS = 1.0
#: Bytes of back-edge records on disk. A loop is reported first at twice this size, and again each
#: time the size has doubled.
SPILL_LINE_BYTES = 16_000_000


class EventLines:
    """Prints the events of a job as lines of text.

    Arguments:
        print_line: called with each line.
        resuming: whether the user gave `--resume`.
        snapshots: whether to print lines about completed snapshots.
        clock: returns the current time, in seconds.
    """

    def __init__(
        self,
        print_line: Callable[[str], None],
        resuming: bool = False,
        snapshots: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._print = print_line
        self._resuming = resuming
        self._snapshots = snapshots
        self._clock = clock
        self._began = clock()
        self._last_snapshot_line = float("-inf")
        self._skipped_snapshots = 0
        self._pids: list[int] = []
        self._busy: list[int] = []
        self._spilled: dict[str, int] = {}
        self._texts = WarningTexts()

    def __call__(self, event: dict[str, Any]) -> None:
        """Print the lines that describe an event. Some events are not printed."""
        match event["event"]:
            case "submitted":
                self._print(f"submitted as job {event['id']}, its output goes to {event['log']}")
            case "queued":
                self._print(f"queued: {event['reason']}")
            case "started":
                self._print(f"started: JobManager pid {event['pid']}")
            case "resumed":
                self._resuming = False
                self._print(f"resumed from snapshot {event['number']}")
            case "workers":
                self._pids = list(event["pids"])
                if self._resuming:
                    self._resuming = False
                    self._print("there is no snapshot to resume from: starting from the beginning")
                self._print(f"workers: pids {', '.join(map(str, event['pids']))}")
            case "snapshot":
                self._snapshot(event)
            case "aborted":
                self._print(f"snapshot {event['number']} aborted: {event['reason']}")
            case "delayed":
                self._print(
                    f"snapshot {event['number']} has been under way for {event['seconds']:.0f} s: "
                    f"waiting for {event['waiting']}"
                )
            case "note" | "restarting" | "restarted" | "slots" | "giving_up" | "warning":
                self._warn(event)
            case "stopping":
                self._print(event["text"])
            case "status":
                self._busy_workers(event["busy_workers"])
                self._growing_loops(event["loops"])
            case "finished":
                self._finished(event)

    def _warn(self, event: dict[str, Any]) -> None:
        texts = self._texts.texts(event)
        if not logging_shows():
            for text in texts:
                self._print(text)

    def _snapshot(self, event: dict[str, Any]) -> None:
        now = self._clock()
        if not self._snapshots:
            return
        if now - self._last_snapshot_line < SNAPSHOT_LINE_SECONDS:
            self._skipped_snapshots += 1
            return
        more = (
            f" ({self._skipped_snapshots} more since the last line)"
            if self._skipped_snapshots
            else ""
        )
        self._last_snapshot_line, self._skipped_snapshots = now, 0
        size = size_text(event["bytes_total"])
        self._print(f"snapshot {event['number']}: {event['duration_ms']:.0f} ms, {size}{more}")

    def _busy_workers(self, busy: list[int]) -> None:
        if busy and busy != self._busy:
            which = ", ".join(f"{worker}{self._pid(worker)}" for worker in busy)
            self._print(f"busy: worker {which} has been inside one call of a function for long")
        self._busy = list(busy)

    def _pid(self, worker: int) -> str:
        return f" (pid {self._pids[worker]})" if worker < len(self._pids) else ""

    def _growing_loops(self, loops: list[dict[str, Any]]) -> None:
        # If the loop writes more and more records to disk, the loop may never end.
        for loop in loops:
            if loop["spilled_bytes"] > 2 * self._spilled.get(loop["name"], SPILL_LINE_BYTES):
                self._spilled[loop["name"]] = loop["spilled_bytes"]
                self._print(f"growing: {loop_text(loop)}")

    def _finished(self, event: dict[str, Any]) -> None:
        operators = event["operators"]
        width = max((len(row["name"]) for row in operators), default=0)
        for row in operators:
            self._print(
                f"  {row['name']:{width}}  in {row['records_in']:,}  out {row['records_out']:,}"
            )
        for line in metric_texts(event["metrics"]):
            self._print(f"  {line}")
        self._warn(event)
        how = "stopped" if event["stopped"] else "finished"
        self._print(
            f"{how} after {self._clock() - self._began:.1f} s: "
            f"snapshots {event['totals']['snapshots']} · restarts {event['totals']['restarts']}"
        )
