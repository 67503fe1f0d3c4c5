"""Draw the pictures of the documentation as SVG files.

    python docs/inside/pictures/draw.py

The files are written beside this script, and are part of the repository. Colours follow the
reader's light or dark scheme. `tests/docs/test_pictures.py` checks that the files are up to date,
and that the rooms in the picture of the tree exist.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

Point = tuple[float, float]

#: The colours of each role: in the light scheme, and in the dark one.
COLOURS = {
    "page": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9198a1"),
    "room": ("#eef1f4", "#1c2229"),
    "house": ("#f8f9fa", "#13181e"),
    "record": ("#0969da", "#58a6ff"),
    "barrier": ("#bc4c00", "#f0883e"),
    "snapshot": ("#1a7f37", "#3fb950"),
    "blocked": ("#cf222e", "#f85149"),
}

#: The rooms of the runtime, floor by floor, each with its left edge and its width. The two lowest
#: rows are one floor. Rooms on the left are on the way of a record.
RUNTIME = (
    (("minicluster", 164, 190), ("spark", 358, 190)),
    (("taskmanager", 164, 384),),
    (("task", 164, 190), ("client", 358, 190)),
    (("operators", 164, 384),),
    (("network", 164, 190), ("jobmanager", 358, 93), ("dispatcher", 455, 93)),
    (("serialization", 164, 190), ("codegen", 358, 93), ("user_code", 455, 93)),
    (("system", 164, 190), ("control", 358, 93), ("shadow", 455, 93)),
)
SNAPSHOT = ("coordination", "state", "storage", "metadata", "protocols")
DATAFLOW = ("streams", "operators", "functions", "windows", "time", "graph")

#: The stops of a record on its way: what happens there.
STOPS = (
    ("connectors", "A source reads a batch of records."),
    ("task", "The task passes the batch on", "through its operators."),
    ("operators", "Each operator is one loop over the", "batch, with small functions inlined."),
    ("network", "The key chooses the channel. An output", "channel gathers records into a batch."),
    ("serialization", "The batch is written by column, and", "read in another process."),
    ("network", "The input gate gives the batch to the", "receiving task."),
    ("operators", "A keyed operator handles the batch."),
    ("state", "It reads and changes the state of the", "keys: a dict, with a database behind."),
    ("connectors", "A sink stages output, which appears", "with the next snapshot."),
)


class Picture:
    """Collects shapes and texts, and returns them as SVG."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._shapes: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        label: str = "",
        *,
        fill: str = "room",
        line: str = "muted",
        top: bool = False,
        bold: bool = False,
    ) -> None:
        """Add a box with a label in its middle, or at its top."""
        self._shapes.append(
            f'<rect class="f-{fill} s-{line}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="6"/>'
        )
        if label:
            middle = y + 19 if top else y + height / 2 + 5
            self.text(x + width / 2, middle, label, anchor="middle", bold=bold)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        role: str = "ink",
        anchor: str = "start",
        size: int = 14,
        bold: bool = False,
    ) -> None:
        """Add a line of text."""
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text class="f-{role}" x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
            f'font-size="{size}"{weight}>{escape(text)}</text>'
        )

    def lines(self, x: float, y: float, lines: Sequence[str], *, role: str = "muted") -> None:
        """Add several lines of text, one below the other."""
        for number, line in enumerate(lines):
            self.text(x, y + 18 * number, line, role=role, size=13)

    def way(self, *points: Point, role: str, dashed: bool = False, arrow: bool = True) -> None:
        """Add a line through points, with an arrow at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(
            f'<polyline class="f-none s-{role}" stroke-width="2"{dashes} points="{path}"/>'
        )
        if arrow:
            self._head(points[-2], points[-1], role)

    def _head(self, before: Point, end: Point, role: str) -> None:
        across, down = end[0] - before[0], end[1] - before[1]
        length = (across**2 + down**2) ** 0.5
        ahead, aside = (across / length, down / length), (-down / length, across / length)
        corners = [
            (end[0] - 9 * ahead[0] + side * aside[0], end[1] - 9 * ahead[1] + side * aside[1])
            for side in (5, -5)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (end, *corners))
        self._shapes.append(f'<polygon class="f-{role}" points="{path}"/>')

    def stop(self, x: float, y: float, number: int) -> None:
        """Add a number in a disc: a stop on the way of a record."""
        self._shapes.append(f'<circle class="f-record" cx="{x:g}" cy="{y:g}" r="11"/>')
        self.text(x, y + 5, str(number), role="page", anchor="middle", bold=True)

    def record(self, x: float, y: float, *, role: str = "record") -> None:
        """Add a record in a channel."""
        self._shapes.append(
            f'<rect class="f-{role}" x="{x - 6:g}" y="{y - 6:g}" width="12" height="12" rx="2"/>'
        )

    def barrier(self, x: float, y: float, number: str = "") -> None:
        """Add a barrier in a channel, with the number of its snapshot below."""
        self._shapes.append(
            f'<rect class="f-barrier" x="{x - 3:g}" y="{y - 13:g}" width="6" height="26" rx="2"/>'
        )
        self.text(x, y + 27, number, role="barrier", anchor="middle", size=13, bold=True)

    def svg(self) -> str:
        """Return the picture as the text of an SVG file."""
        width, height = self._size
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" role="img" '
                'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif">',
                f"<title>{escape(self._title)}</title>",
                f"<style>\n{_styles()}\n</style>",
                f'<rect class="f-page" width="{width}" height="{height}" rx="8"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )


def _styles() -> str:
    """Return the classes of fills (`f-`) and lines (`s-`), in both schemes."""

    def rules(scheme: int) -> str:
        return "\n".join(
            f".f-{role} {{ fill: {colours[scheme]} }} .s-{role} {{ stroke: {colours[scheme]} }}"
            for role, colours in COLOURS.items()
        )

    dark = f"@media (prefers-color-scheme: dark) {{\n{rules(1)}\n}}"
    return f".f-none {{ fill: none }}\n{rules(0)}\n{dark}"


def job() -> Picture:
    """Draw a running job: its processes, tasks and channels, and the folders on disk."""
    picture = Picture(880, 424, "A running job: JobManager, workers, tasks, channels, snapshots")
    picture.box(310, 18, 260, 56, fill="house")
    picture.text(440, 41, "JobManager", anchor="middle", bold=True)
    picture.text(440, 62, "snapshots, restarts, commits", role="muted", anchor="middle", size=13)
    for number, y in enumerate((106, 212), 1):
        picture.box(30, y, 650, 94, fill="house")
        picture.text(120, y + 22, f"Worker {number}", bold=True)
        picture.box(120, y + 34, 150, 44, "source task")
        picture.box(440, y + 34, 220, 44, "count and sink task")
    for start, end in ((162, 162), (162, 268), (268, 162), (268, 268)):
        picture.way((270, start), (440, end), role="record")
    for y in (162, 268):
        for x in (296, 326, 402):
            picture.record(x, y)
        picture.barrier(366, y)
    picture.text(355, 132, "channels, by key", role="record", anchor="middle", size=13)
    picture.way((330, 74), (330, 90), (76, 90), (76, 162), (120, 162), role="barrier")
    picture.way((76, 162), (76, 268), (120, 268), role="barrier")
    picture.text(90, 83, "barrier 9 to all sources", role="barrier", size=13)
    picture.box(120, 348, 310, 60, line="snapshot")
    picture.text(275, 371, "job/", anchor="middle", bold=True)
    picture.text(275, 393, "snapshots 7, 8 and soon 9", role="muted", anchor="middle", size=13)
    picture.box(460, 348, 220, 60, line="record")
    picture.text(570, 371, "counts/", anchor="middle", bold=True)
    picture.text(570, 393, "output up to snapshot 8", role="muted", anchor="middle", size=13)
    picture.way((200, 306), (200, 348), role="snapshot")
    picture.text(214, 332, "positions and state", role="snapshot", size=13)
    picture.way((570, 306), (570, 348), role="record")
    picture.text(584, 332, "output", role="record", size=13)
    picture.way((570, 46), (712, 46), (712, 378), (680, 378), role="record")
    picture.lines(
        724,
        150,
        (
            "When all tasks have",
            "reported, snapshot 9",
            "is complete, and its",
            "output appears.",
            "",
            "After a failure, all",
            "tasks start again",
            "from the newest",
            "complete snapshot.",
        ),
    )
    return picture


def barrier() -> Picture:
    """Draw four moments of a barrier that passes a task with two input channels."""
    picture = Picture(880, 432, "A barrier passes a task: the task aligns, and copies its state")
    moments = (_arrival, _alignment, _copy, _continuation)
    for number, moment in enumerate(moments):
        x, y = 16 + 428 * (number % 2), 16 + 204 * (number // 2)
        picture.box(x, y, 420, 196, fill="house")
        moment(picture, x, y)
    return picture


def _arrival(picture: Picture, x: float, y: float) -> None:
    _title(picture, x, y, "1  Barrier 9 arrives on channel A.", "The task has counted 12 records.")
    _task(picture, x, y, count=12, first=(52, 80, 108), second=(92, 122, 152), out=(330, 360))
    picture.barrier(x + 150, y + 78, "9")
    picture.barrier(x + 58, y + 134, "9")


def _alignment(picture: Picture, x: float, y: float) -> None:
    _title(picture, x, y, "2  The task aligns.", "It reads only B, until barrier 9 comes there.")
    _task(picture, x, y, count=13, first=(66, 94, 122), second=(122, 152), out=(320,), blocked=True)
    picture.barrier(x + 88, y + 134, "9")


def _copy(picture: Picture, x: float, y: float) -> None:
    _title(picture, x, y, "3  Barrier 9 has arrived on both.", "The task copies its state.")
    _task(picture, x, y, count=15, first=(66, 94, 122), second=(66,), out=(320, 350), blocked=True)
    picture.barrier(x + 150, y + 134, "9")
    picture.way((x + 235, y + 152), (x + 235, y + 180), role="snapshot")
    picture.text(x + 250, y + 176, "15 in snapshot 9", role="snapshot", size=13)


def _continuation(picture: Picture, x: float, y: float) -> None:
    _title(picture, x, y, "4  The task sends barrier 9.", "Then it reads both channels again.")
    _task(picture, x, y, count=16, first=(80, 108, 136), second=(108,), out=(302, 360, 382))
    picture.barrier(x + 332, y + 106, "9")


def _title(picture: Picture, x: float, y: float, title: str, note: str) -> None:
    picture.text(x + 16, y + 24, title, bold=True)
    picture.text(x + 16, y + 44, note, role="muted", size=13)


def _task(
    picture: Picture,
    x: float,
    y: float,
    *,
    count: int,
    first: Sequence[float],
    second: Sequence[float],
    out: Sequence[float],
    blocked: bool = False,
) -> None:
    """Draw a task that counts, its channels A and B, and its output, with the records in them."""
    role = "blocked" if blocked else "muted"
    picture.text(x + 16, y + 83, "A", bold=True)
    picture.way((x + 34, y + 78), (x + 190, y + 78), role=role, dashed=blocked)
    picture.text(x + 16, y + 139, "B", bold=True)
    picture.way((x + 34, y + 134), (x + 190, y + 134), role="muted")
    picture.way((x + 280, y + 106), (x + 404, y + 106), role="muted")
    picture.box(x + 190, y + 60, 90, 92)
    picture.text(x + 235, y + 98, "task", anchor="middle", bold=True)
    picture.text(x + 235, y + 124, str(count), role="snapshot", anchor="middle", bold=True)
    if blocked:
        picture.text(x + 112, y + 106, "blocked", role="blocked", anchor="middle", size=13)
    for down, places in ((78, first), (134, second), (106, out)):
        for place in places:
            picture.record(x + place, y + down)


def tree() -> Picture:
    """Draw the tree of the package, with the way of a record through it."""
    picture = Picture(960, 690, "The packages of Penstock, and the way of a record through them")
    picture.box(20, 20, 260, 40, "cli", fill="house", bold=True)
    picture.box(290, 20, 270, 40, "testing", fill="house", bold=True)
    picture.box(20, 72, 120, 408, "connectors", fill="house", top=True, bold=True)
    picture.box(152, 72, 408, 408, "runtime", fill="house", top=True, bold=True)
    for floor, rooms in enumerate(RUNTIME):
        for room, x, width in rooms:
            _room(picture, x, 102 + 54 * floor - (8 if floor == 6 else 0), width, room)
    _floor(picture, 492, "snapshot", SNAPSHOT)
    _floor(picture, 582, "dataflow", DATAFLOW)
    picture.text(20, 680, "A folder uses only what stands below it.", role="muted", size=13)
    _way_of_a_record(picture)
    return picture


def _way_of_a_record(picture: Picture) -> None:
    picture.way((60, 220), (250, 220), (250, 393), (190, 393), (190, 296), role="record")
    picture.way((190, 285), (158, 285), (158, 529), role="record", arrow=False)
    picture.way((190, 285), (190, 243), (111, 243), role="record")
    stops = ((60, 220), (250, 220), (250, 285), (250, 339), (220, 393), (190, 339), (190, 285))
    for number, (x, y) in enumerate((*stops, (158, 541), (100, 243)), 1):
        picture.stop(x, y, number)
    picture.text(590, 44, "The way of a record", bold=True, size=15)
    y = 84
    for number, (room, *lines) in enumerate(STOPS, 1):
        picture.stop(601, y - 5, number)
        picture.text(624, y, room, bold=True)
        picture.lines(624, y + 20, lines)
        y += 66


def _room(picture: Picture, x: float, y: float, width: float, name: str) -> None:
    picture.box(x, y, width, 42)
    picture.text(x + width - 8, y + 35, name, anchor="end", size=13)


def _floor(picture: Picture, y: float, name: str, rooms: Sequence[str]) -> None:
    picture.box(20, y, 540, 80, name, fill="house", top=True, bold=True)
    width = (520 - 6 * (len(rooms) - 1)) / len(rooms)
    for number, room in enumerate(rooms):
        _room(picture, 30 + number * (width + 6), y + 28, width, room)


PICTURES: dict[str, Callable[[], Picture]] = {"job": job, "barrier": barrier, "tree": tree}


def main(folder: Path) -> None:
    """Write all pictures into a folder."""
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
