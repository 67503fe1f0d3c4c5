"""Find the sessions of the visitors of a web shop, with records that come late.

    python examples/time/web_sessions.py [--output DIR] [--parallelism N]

A session ends when its visitor has looked at no page for 30 minutes. Some views come late, from an
app that was offline:

* Up to 10 minutes after the end of its session, a view corrects it: the session is emitted again.
  A view can also join two sessions.
* A view that comes still later is written to the side output `late`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replay import environment, options, replay, write
from simulated_data import web_log

from penstock import (
    AggregateFunction,
    DataStream,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    Time,
)

LATE = OutputTag("late")
GAP, ALLOWED_LATENESS, OUT_OF_ORDERNESS = 30 * 60_000, 10 * 60_000, 5_000


class Visit(AggregateFunction):
    """Keeps the number of pages, the bytes, and the first and the last page of a session."""

    def create_accumulator(self) -> Any:
        return 0, 0, None, None

    def add(self, value: Any, accumulator: Any) -> Any:
        view = value["time"], value["page"]
        return self.merge(accumulator, (1, value["bytes"], view, view))

    def merge(self, a: Any, b: Any) -> Any:
        if a[2] is None or b[2] is None:
            return b if a[2] is None else a
        return a[0] + b[0], a[1] + b[1], min(a[2], b[2]), max(a[3], b[3])

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


class Session(ProcessWindowFunction):
    """Adds the visitor and the times of the session."""

    def process(
        self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[Any]
    ) -> Iterable[dict[str, Any]]:
        [(pages, size, first, last)] = elements
        window = context.window()
        yield {
            "visitor": key,
            "from": window.start,
            "to": window.end - GAP,
            "pages": pages,
            "bytes": size,
            "entry": first[1],
            "exit": last[1],
        }


def sessions(views: DataStream) -> DataStream:
    """Return the sessions of a stream of page views, with the side output `LATE`."""
    return (
        views.key_by(lambda view: view["visitor"])
        .window(EventTimeSessionWindows.with_gap(Time.milliseconds(GAP)))
        .allowed_lateness(ALLOWED_LATENESS)
        .side_output_late_data(LATE)
        .aggregate(Visit(), Session())
        .uid("sessions")
    )


def main() -> None:
    given = options(__doc__)
    env = environment(given)
    views = replay(env, "web log", web_log(given.seed), OUT_OF_ORDERNESS)
    found = sessions(views)
    write(found, "sessions", given)
    write(found.get_side_output(LATE), "late", given)
    env.execute("web sessions")


if __name__ == "__main__":
    main()
