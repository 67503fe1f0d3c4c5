"""Show a running job as a table that is redrawn in place: `LiveView`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.cli.event_lines import EventLines
from penstock.cli.text_format import duration_text, loop_text, size_text
from penstock.dataflow.time.watermark import MAX_WATERMARK, watermark_text
from penstock.runtime.control.failures import sentence_of
from penstock.runtime.control.metric_texts import loss_texts, metric_texts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class LiveView:
    """Shows a running job as a table on a terminal, which is redrawn in place.

    The view is a context manager, and draws the table while its block runs. It must be called with
    each event of the job. Events that the table does not show are printed as lines above the table.

    Arguments:
        resuming: whether the user gave `--resume`.
        console: the console on which to draw. With None, standard error is used.
        clock: returns the current time, in seconds.
        wall_clock: returns the time of day, in seconds since the epoch.
    """

    def __init__(
        self,
        resuming: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True, highlight=False)
        self._clock, self._wall_clock = clock, wall_clock
        self._lines = EventLines(self._print, resuming, snapshots=False)
        self._status: tuple[float, list[dict[str, Any]]] | None = None
        self._before: tuple[float, list[dict[str, Any]]] | None = None
        self._snapshot: tuple[float, dict[str, Any]] | None = None
        self._restarts = 0
        self._cause = ""
        #: The number of workers and the wanted number, once a worker could not be started.
        self._slots: tuple[int, int] | None = None
        self._loops: list[dict[str, Any]] = []
        self._metrics: list[dict[str, Any]] = []
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
        """Update the view with an event of the job."""
        self._lines(event)
        match event["event"]:
            case "status":
                self._before, self._status = self._status, (self._clock(), event["operators"])
                self._loops, self._metrics = event["loops"], event["metrics"]
            case "snapshot":
                self._snapshot = (self._clock(), event)
            case "restarting":
                self._restarts += 1
                self._cause = sentence_of(event)
            case "slots":
                self._slots = event["slots"], event["wanted"]

    def render(self) -> RenderableType:
        """Return the table of operators, and lines about loops, metrics, snapshots and restarts."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        table.add_column("operator", overflow="ellipsis", no_wrap=True)
        timed = self._has_watermarks()
        headings = ["in", "out", "records/s", "busy", "idle", "blocked"]
        for heading in [*headings, "watermark", "lag"] if timed else headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for cells, row in zip(self._rows(), self._status[1] if self._status else (), strict=True):
            times = self._event_time(row) if timed else []
            table.add_row(*(Text(cell) for cell in [*cells, *times]))
        lines = [Text(loop_text(loop)) for loop in self._loops]
        texts = [*metric_texts(self._metrics), *loss_texts(self._metrics)]
        lines += [Text(text) for text in texts]
        lines.append(Text(self._snapshot_text()))
        if self._slots is not None:
            lines.append(Text("workers: {} of {}".format(*self._slots)))
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
            # A source receives no records, so the view shows the rate of the emitted records.
            moved = "records_in" if row["records_in"] else "records_out"
            rate = max(0, row[moved] - old[moved]) / seconds
            room = seconds * row["parallelism"]
            # After a restart the counters begin at 0 again, so a difference may be negative.
            busy = min(1.0, max(0.0, row["busy_seconds"] - old["busy_seconds"]) / room)
            blocked = max(0.0, row["blocked_seconds"] - old["blocked_seconds"]) / room
            blocked = min(1.0 - busy, blocked)
            shares = [f"{share:.0%}" for share in (busy, 1 - busy - blocked, blocked)]
            yield [*cells, f"{rate:,.0f}", *shares]

    def _has_watermarks(self) -> bool:
        """Return whether an operator has a watermark, so that the columns for it are shown."""
        return self._status is not None and any(
            row.get("watermark") is not None for row in self._status[1]
        )

    def _event_time(self, row: dict[str, Any]) -> list[str]:
        """Return an operator's watermark, and how far it lies behind the time of day."""
        watermark = row.get("watermark")
        if watermark is None:
            return ["", ""]
        if watermark == MAX_WATERMARK:
            return ["end", ""]
        lag = self._wall_clock() - watermark / 1000
        return [watermark_text(watermark), duration_text(max(0.0, lag))]

    def _snapshot_text(self) -> str:
        if self._snapshot is None:
            return "no snapshot yet"
        when, event = self._snapshot
        return (
            f"snapshot {event['number']}: {self._clock() - when:.0f} s ago, took "
            f"{event['duration_ms']:.0f} ms, {size_text(event['bytes_total'])}"
        )

    def _print(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text(line))
