"""The event time of a task: what a snapshot holds, and what happens after a restore."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.dataflow.time.watermark import MIN_WATERMARK, Watermark
from penstock.runtime.task.watermark_tracker import WatermarkTracker
from penstock.snapshot.metadata.handles import EventTimeState, OperatorHandle


class Chain:
    """A chain whose first operator fires in three pieces."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.operators: list[Any] = []
        context = SimpleNamespace(
            uid="root",
            watermark=0,
            restored_watermark=MIN_WATERMARK,
            set_watermark=self._set,
            set_restored_watermark=self._set_restored,
        )
        self.root = SimpleNamespace(operator=SimpleNamespace(context=context))

    def _set(self, watermark: int) -> None:
        self.root.operator.context.watermark = watermark

    def _set_restored(self, watermark: int) -> None:
        self.root.operator.context.restored_watermark = watermark

    def advance(self, watermark: Watermark) -> Iterator[None]:
        self._set(watermark.timestamp)
        for piece in range(3):
            self.did.append(("fire", watermark.timestamp, piece))
            yield
        self.did.append(("pass on", watermark.timestamp))

    def pass_on(self, watermark: Watermark) -> None:
        self.did.append(("pass on", watermark.timestamp))


def tracker_of(chain: Chain) -> WatermarkTracker:
    return WatermarkTracker(chain, ["channel"])  # type: ignore[arg-type]


def run(tracker: WatermarkTracker) -> None:
    while tracker.running:
        tracker.step()


def restored(*states: EventTimeState) -> list[Any]:
    """What the operators do after a restore, and then with the next watermark."""
    chain = Chain()
    tracker = tracker_of(chain)
    tracker.restore({"root": list(states)})
    run(tracker)
    tracker.receive("channel", Watermark(5))  # which is not new
    run(tracker)
    return chain.did


def test_a_snapshot_knows_whether_the_timers_of_its_watermark_have_fired() -> None:
    chain = Chain()
    tracker = tracker_of(chain)
    assert tracker.capture() == {}
    tracker.receive("channel", Watermark(5))
    # The watermark counts as the one of the task before its timers have begun to fire.
    assert tracker.capture() == {"root": EventTimeState(5)}
    for _ in range(4):
        tracker.step()
        assert tracker.capture() == {"root": EventTimeState(5)}
    run(tracker)
    assert tracker.capture() == {"root": EventTimeState(5, has_fired=True)}


def test_timers_fire_again_after_a_restore_only_if_they_were_firing() -> None:
    firing, fired = EventTimeState(5), EventTimeState(5, has_fired=True)
    fires = [*(("fire", 5, piece) for piece in range(3)), ("pass on", 5)]
    assert restored(fired) == [("pass on", 5)]
    assert restored(firing) == fires
    assert restored(fired, firing) == fires


def test_a_snapshot_right_after_a_restore_has_the_same_event_time() -> None:
    for state in (EventTimeState(5), EventTimeState(5, has_fired=True)):
        tracker = tracker_of(Chain())
        tracker.restore({"root": [state]})
        assert tracker.capture() == {"root": state}


def test_a_snapshot_keeps_the_highest_watermark_that_a_subtask_had() -> None:
    chain = Chain()
    tracker = tracker_of(chain)
    tracker.restore({"root": [EventTimeState(5), EventTimeState(9), EventTimeState(6, highest=12)]})
    assert chain.root.operator.context.restored_watermark == 12
    assert tracker.capture() == {"root": EventTimeState(5, highest=12)}
    run(tracker)
    tracker.receive("channel", Watermark(12))
    run(tracker)
    assert tracker.capture() == {"root": EventTimeState(12, has_fired=True)}
    # A subtask without a watermark leaves the task without one.
    tracker = tracker_of(Chain())
    tracker.restore({"root": [EventTimeState(5), EventTimeState()]})
    assert tracker.capture() == {"root": EventTimeState(highest=5)}


@pytest.mark.parametrize("state", [EventTimeState(7), EventTimeState(7, [1, 2], True, 9)])
def test_handles_keep_the_event_time(state: EventTimeState) -> None:
    handle = OperatorHandle("uid", 0, event_time=state)
    assert OperatorHandle.from_wire(handle.to_wire()) == handle
    # A snapshot of an earlier version.
    wire = handle.to_wire()
    wire[-1]["event_time"] = [7, None]
    assert OperatorHandle.from_wire(wire).event_time == EventTimeState(7)
