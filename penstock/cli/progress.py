"""What is shown of a running job: a live view on a terminal, plain lines otherwise.

Both are made of the events that the JobManager sends, and both go to standard error, since
standard output belongs to the job. Nothing here decides anything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli.options import say
from penstock.runtime.client.restart_reports import logging_shows
from penstock.runtime.control.failures import sentence_of
from penstock.runtime.control.restart_texts import RestartTexts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Lines", "LiveView", "Progress", "duration_text", "size_text"]

#: Lines about snapshots come at most so often.
SNAPSHOT_LINE_SECONDS = 1.0
#: A loop is told of when twice this is on disk, and then each time that has doubled.
SPILL_LINE_BYTES = 16_000_000


class Progress:
    """Shows one job after the other, in the way that was asked for.

    Arguments:
        mode: "auto", "live", "plain" or "none".
        resuming: whether the user asked to resume.
    """

    def __init__(self, mode: str = "auto", resuming: bool = False) -> None:
        self._mode = mode
        self._resuming = resuming
        self._show: Callable[[dict[str, Any]], None] = _nothing
        #: Number of the last snapshot that a job completed or was resumed from.
        self.last_snapshot: int | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        """Show an event."""
        if event["event"] in ("snapshot", "resumed"):
            self.last_snapshot = event["number"]
        self._show(event)

    @contextmanager
    def showing(self, printing: bool) -> Iterator[None]:
        """Show a job in this block.

        Arguments:
            printing: the job writes to the terminal, which a live view would not survive.
        """
        self.last_snapshot = None
        mode = self._mode
        if mode == "auto":
            disturbed = printing and sys.stdout.isatty()
            mode = "live" if sys.stderr.isatty() and not disturbed else "plain"
        if mode == "live":
            with LiveView(self._resuming) as view:
                self._show = view
                try:
                    yield
                finally:
                    self._show = _nothing
            return
        self._show = _nothing if mode == "none" else Lines(say, self._resuming)
        try:
            yield
        finally:
            self._show = _nothing


def _nothing(_: dict[str, Any]) -> None:
    pass


class Lines:
    """Tells events as lines of text.

    Arguments:
        say: takes a line.
        resuming: whether the user asked to resume.
        snapshots: whether to tell of snapshots that complete.
        clock: seconds.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        resuming: bool = False,
        snapshots: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._resuming = resuming
        self._snapshots = snapshots
        self._clock = clock
        self._began = clock()
        self._said_snapshot = float("-inf")
        self._unsaid = 0
        self._pids: list[int] = []
        self._busy: list[int] = []
        self._spilled: dict[str, int] = {}
        self._restarts = RestartTexts()

    def __call__(self, event: dict[str, Any]) -> None:
        """Tell an event, if there is something to tell."""
        match event["event"]:
            case "submitted":
                self._say(f"submitted as job {event['id']}, its output goes to {event['log']}")
            case "started":
                self._say(f"started: JobManager pid {event['pid']}")
            case "resumed":
                self._resuming = False
                self._say(f"resumed from snapshot {event['number']}")
            case "workers":
                self._pids = list(event["pids"])
                if self._resuming:
                    self._resuming = False
                    self._say("there is no snapshot to resume from: starting from the beginning")
                self._say(f"workers: pids {', '.join(map(str, event['pids']))}")
            case "snapshot":
                self._snapshot(event)
            case "aborted":
                self._say(f"snapshot {event['number']} aborted: {event['reason']}")
            case "delayed":
                self._say(
                    f"snapshot {event['number']} has been under way for {event['seconds']:.0f} s: "
                    f"waiting for {event['waiting']}"
                )
            case "restarting" | "restarted" | "giving_up":
                text = self._restarts.text(event)
                if text is not None and not logging_shows():
                    self._say(text)
            case "note":
                self._say(f"note: {event['text']}")
            case "stopping":
                self._say(event["text"])
            case "status":
                self._busy_workers(event["busy_workers"])
                self._growing_loops(event["loops"])
            case "finished":
                self._finished(event)

    def _snapshot(self, event: dict[str, Any]) -> None:
        now = self._clock()
        if not self._snapshots:
            return
        if now - self._said_snapshot < SNAPSHOT_LINE_SECONDS:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last line)" if self._unsaid else ""
        self._said_snapshot, self._unsaid = now, 0
        size = size_text(event["bytes_total"])
        self._say(f"snapshot {event['number']}: {event['duration_ms']:.0f} ms, {size}{more}")

    def _busy_workers(self, busy: list[int]) -> None:
        if busy and busy != self._busy:
            which = ", ".join(f"{worker}{self._pid(worker)}" for worker in busy)
            self._say(f"busy: worker {which} has been inside one call of a function for long")
        self._busy = list(busy)

    def _pid(self, worker: int) -> str:
        return f" (pid {self._pids[worker]})" if worker < len(self._pids) else ""

    def _growing_loops(self, loops: list[dict[str, Any]]) -> None:
        """A loop whose back-edge keeps growing on disk may never become quiet."""
        for loop in loops:
            if loop["spilled_bytes"] > 2 * self._spilled.get(loop["name"], SPILL_LINE_BYTES):
                self._spilled[loop["name"]] = loop["spilled_bytes"]
                self._say(f"growing: {loop_text(loop)}")

    def _finished(self, event: dict[str, Any]) -> None:
        operators = event["operators"]
        width = max((len(row["name"]) for row in operators), default=0)
        for row in operators:
            self._say(
                f"  {row['name']:{width}}  in {row['records_in']:,}  out {row['records_out']:,}"
            )
        how = "stopped" if event["stopped"] else "finished"
        self._say(
            f"{how} after {self._clock() - self._began:.1f} s: "
            f"snapshots {event['totals']['snapshots']} · restarts {event['totals']['restarts']}"
        )


class LiveView:
    """A table that is redrawn in place; a context manager, and called with each event.

    Arguments:
        resuming: whether the user asked to resume.
        console: where to draw; by default standard error.
        clock: seconds.
    """

    def __init__(
        self,
        resuming: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        self._lines = Lines(self._say, resuming, snapshots=False)
        self._status: tuple[float, list[dict[str, Any]]] | None = None
        self._before: tuple[float, list[dict[str, Any]]] | None = None
        self._snapshot: tuple[float, dict[str, Any]] | None = None
        self._restarts = 0
        self._cause = ""
        self._loops: list[dict[str, Any]] = []
        self._live = Live(
            console=self._console,
            get_renderable=self.render,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take an event."""
        self._lines(event)
        match event["event"]:
            case "status":
                self._before, self._status = self._status, (self._clock(), event["operators"])
                self._loops = event["loops"]
            case "snapshot":
                self._snapshot = (self._clock(), event)
            case "restarting":
                self._restarts += 1
                self._cause = sentence_of(event)

    def render(self) -> RenderableType:
        """The view as it stands now."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        table.add_column("operator", overflow="ellipsis", no_wrap=True)
        for heading in ("in", "out", "records/s", "busy", "idle", "blocked"):
            table.add_column(heading, justify="right", no_wrap=True)
        for cells in self._rows():
            table.add_row(*(Text(cell) for cell in cells))
        lines = [Text(loop_text(loop)) for loop in self._loops]
        lines.append(Text(self._snapshot_text()))
        if self._restarts:
            lines.append(Text(f"restarts: {self._restarts}, the last: {self._cause}"))
        return Group(table, *lines)

    def _rows(self) -> Iterator[list[str]]:
        if self._status is None:
            return
        now, rows = self._status
        then, before = self._before or (now, [])
        earlier = {row["uid"]: row for row in before}
        for row in rows:
            cells = [row["name"], f"{row['records_in']:,}", f"{row['records_out']:,}"]
            old = earlier.get(row["uid"])
            if old is None or now <= then:
                yield [*cells, "", "", "", ""]
                continue
            seconds = now - then
            # A source takes nothing in, so its rate is that of what it gives out.
            moved = "records_in" if row["records_in"] else "records_out"
            rate = max(0, row[moved] - old[moved]) / seconds
            room = seconds * row["parallelism"]
            # Never below 0: a restart begins to count again.
            busy = min(1.0, max(0.0, row["busy_seconds"] - old["busy_seconds"]) / room)
            blocked = max(0.0, row["blocked_seconds"] - old["blocked_seconds"]) / room
            blocked = min(1.0 - busy, blocked)
            shares = [f"{share:.0%}" for share in (busy, 1 - busy - blocked, blocked)]
            yield [*cells, f"{rate:,.0f}", *shares]

    def _snapshot_text(self) -> str:
        if self._snapshot is None:
            return "no snapshot yet"
        when, event = self._snapshot
        return (
            f"snapshot {event['number']}: {self._clock() - when:.0f} s ago, took "
            f"{event['duration_ms']:.0f} ms, {size_text(event['bytes_total'])}"
        )

    def _say(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text(line))


def loop_text(loop: dict[str, Any]) -> str:
    """How a loop stands."""
    text = f"loop {loop['name']}: {loop['queued_records']:,} records in its back-edge"
    if loop["spilled_bytes"]:
        text += f", {size_text(loop['spilled_bytes'])} of them on disk"
    return text


def size_text(size: int) -> str:
    """A number of bytes for people."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def duration_text(seconds: float) -> str:
    """A length of time for people."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
