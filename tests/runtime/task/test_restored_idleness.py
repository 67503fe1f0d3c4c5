"""A task that repeats steps waits for channels that were idle, since their senders restart."""

import random

import pytest

from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.elements import WatermarkStatus
from penstock.testing.harness.harness_snapshot import HarnessFolder
from tests.runtime.task.repeated_tasks import Interleaving, LoneTask, program, steps_behind


@pytest.mark.parametrize("before", [True, False])
def test_a_channel_that_was_idle_holds_the_watermark_again(before: bool) -> None:
    """Its sender restarts, and sends no status unless it is idle again.

    Arguments:
        before: whether the channel became idle before the snapshot, or after it.
    """
    code, chain = program(lambda stream: [stream.key_by(str).count()], 1)
    folder = HarnessFolder()
    first = LoneTask(code, chain, 1000, folder)
    idle, other = first.inputs
    first.put(idle, Watermark(10))
    if before:
        first.put(idle, WatermarkStatus(True))
    first.put(other, Watermark(20))
    first.run()
    Interleaving(random.Random(0), list(first.inputs), lambda _: "a").barrier(first, 5)
    if not before:
        first.put(idle, WatermarkStatus(True))
    first.put(other, Watermark(30))
    first.run()
    first.output()
    assert first.task.event_time.valve.watermark == 30
    steps = steps_behind(first, chain, 5)
    again = LoneTask(code, chain, 1000, folder, first.snapshots.handles, 5, steps)
    again.run()
    assert again.repeated and again.task.event_time.valve.watermark == 30
    again.put(idle, Watermark(40))
    again.put(other, Watermark(90))
    again.run()
    assert again.task.event_time.valve.watermark == 40
