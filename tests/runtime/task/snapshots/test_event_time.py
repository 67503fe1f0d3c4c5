"""Watermarks in snapshots: in order with the records of logs, and as part of the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from penstock.dataflow.source import Split
from penstock.dataflow.time.watermark import MAX_WATERMARK, Watermark
from penstock.runtime.network.elements import Barrier, Element, EndOfInput, WatermarkStatus
from penstock.runtime.network.time_elements import to_time_element
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.activities.by_clock import ProcessingTimeWork
from penstock.runtime.task.processing_time import ProcessingTime
from penstock.snapshot.metadata.handles import EventTimeState, OperatorHandle
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.in_flight_log import BATCH, read_elements
from tests.runtime.task.snapshots.test_in_flight_data import CODEC, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def put(stage: Stage, channel: int, *elements: Element) -> None:
    for element in elements:
        stage.inputs[channel].put(element)


def timed(*times: int) -> RecordBatch:
    return RecordBatch([f"r{time}" for time in times], None, list(times))


def logged(stage: Stage) -> dict[tuple[str, int], list[Any]]:
    """The batches and watermarks of each log of the last snapshot, by producer and source."""
    stage.write()
    found: dict[tuple[str, int], list[Any]] = {}
    for handle in stage.acknowledged[-1].handles:
        for log in handle.logs:
            parts = found.setdefault((log.producer, log.source), [])
            for kind, payload in read_elements(log, stage.tmp_path):
                if kind != BATCH:
                    parts.append(to_time_element(kind, payload))
                    continue
                batch = CODEC.decode_record_batch(payload)
                parts.append(batch.times())
    return found


def state(stage: Stage) -> EventTimeState | None:
    stage.write()
    handles = [OperatorHandle.from_wire(h.to_wire()) for h in stage.acknowledged[-1].handles]
    return next((h.event_time for h in handles if h.uid == "here"), None)


def test_a_task_sends_the_lowest_watermark_of_its_channels_behind_its_records(
    stage: Stage,
) -> None:
    put(stage, 0, timed(1, 2), Watermark(2), timed(5))
    put(stage, 1, timed(3), Watermark(1), Watermark(4))
    sent = stage.drain()
    assert sent[-1] != Watermark(4)
    assert Watermark(2) in sent
    before = [r for element in sent[: sent.index(Watermark(2))] for r in element]
    assert {"r1", "r2", "r3"} <= set(before)


def test_watermarks_are_logged_in_order_with_the_records(stage: Stage) -> None:
    put(stage, 0, timed(1), Watermark(1), timed(2), WatermarkStatus(True))
    put(stage, 1, Watermark(7), Barrier(1))
    stage.task.step()
    put(stage, 0, WatermarkStatus(False), Watermark(9), timed(10), Barrier(1), timed(11))
    stage.drain()
    assert logged(stage)["up", 0] == [
        *([[1]] if [1] in logged(stage)["up", 0] else []),
        Watermark(1),
        [2],
        WatermarkStatus(True),
        WatermarkStatus(False),
        Watermark(9),
        [10],
    ]


def test_a_watermark_of_a_channel_is_logged_without_any_records(stage: Stage) -> None:
    # Records that were sent behind it may be in the log of the sender.
    put(stage, 0, Watermark(7))
    put(stage, 1, Barrier(1))
    put(stage, 0, Barrier(1))
    stage.drain()
    assert logged(stage) == {("up", 0): [Watermark(7)]}


def test_a_barrier_that_overtakes_an_output_logs_its_watermarks(stage: Stage) -> None:
    stage.fill()
    put(stage, 0, Watermark(3))
    put(stage, 1, timed(3), Watermark(3), timed(4))
    for _ in range(12):
        stage.task.step()
    put(stage, 0, Barrier(1))
    put(stage, 1, Barrier(1))
    stage.drain()
    found = logged(stage)
    assert found["here", 0][:2] == [[3], Watermark(3)]
    assert state(stage) == EventTimeState(3, has_fired=True)


def test_a_barrier_comes_behind_what_a_source_has_read_behind_a_watermark(tmp_path: Path) -> None:
    stage = Stage(tmp_path, source=True, aligned=True)
    stage.fill()
    stage.task.assign(Split("s"))
    while stage.task.outputs.push():
        stage.step()
    # The source has read these, too, and its position is behind them.
    stage.task.event_time.add(Watermark(3))
    stage.task.event_time.add(timed(4, 5))
    stage.task.inject(1, SnapshotKind.CHECKPOINT)
    for _ in range(10):
        stage.step()
    assert not stage.acknowledged
    sent = stage.drain()
    assert sent.index(Watermark(3)) < sent.index(["r4", "r5"]) < sent.index(("barrier", 1))


def test_a_watermark_that_a_source_has_read_is_logged_without_any_records(tmp_path: Path) -> None:
    stage = Stage(tmp_path, source=True)
    stage.task.event_time.add(Watermark(3))
    stage.task.inject(1, SnapshotKind.CHECKPOINT)
    assert logged(stage) == {("here", 0): [Watermark(3)]}


def test_a_watermark_for_which_a_source_task_begins_to_fire_is_in_a_snapshot(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, source=True)
    stage.task.event_time.add(Watermark(3))
    stage.task.step()  # takes the watermark, but no operator knows it yet
    stage.task.inject(1, SnapshotKind.CHECKPOINT)
    assert state(stage) == EventTimeState(3, has_fired=False)


def test_a_restored_task_begins_with_the_lowest_watermark_of_its_old_subtasks(
    stage: Stage,
) -> None:
    stage.task.event_time.restore({"here": [EventTimeState(8), EventTimeState(5)]})
    put(stage, 0, Watermark(4))
    put(stage, 1, Watermark(9))
    assert stage.drain() == [Watermark(5)]
    put(stage, 0, Watermark(6))
    assert stage.drain() == [Watermark(6)]


def test_a_task_of_which_a_subtask_had_no_watermark_begins_without_one(stage: Stage) -> None:
    stage.task.event_time.restore({"here": [EventTimeState(8), EventTimeState()]})
    assert stage.drain() == []


def test_the_last_watermark_is_not_kept_so_that_a_job_may_go_on_with_new_input(
    stage: Stage,
) -> None:
    put(stage, 0, Watermark(MAX_WATERMARK), EndOfInput(), Barrier(1))
    put(stage, 1, Watermark(MAX_WATERMARK), EndOfInput(), Barrier(1))
    sent = stage.drain()
    assert sent.count(Watermark(MAX_WATERMARK)) == 1
    assert sent.index(Watermark(MAX_WATERMARK)) < sent.index("end")
    assert state(stage) is None


def test_logs_with_watermarks_are_replayed_on_their_channels(stage: Stage) -> None:
    first, second = stage.inputs
    stage.task.gate.replay(
        iter([(first, timed(1)), (first, Watermark(1)), (second, timed(2)), (second, Watermark(3))])
    )
    assert stage.drain() == [["r1", "r2"], Watermark(1)]


class Due:
    """Processing-time work that is always due."""

    def is_due(self) -> bool:
        return True

    def wake_at(self) -> float:
        return 0.0


def test_periodic_watermarks_wait_for_the_end_of_a_replay(stage: Stage) -> None:
    # A source may know a watermark already that belongs behind the records of the log.
    task, end, work = stage.task, stage.task._end, cast("ProcessingTime", Due())
    periodic = ProcessingTimeWork(work, task.gate, task.snapshots, end, task.outputs)
    assert periodic.ready()
    task.gate.replay(iter([(stage.inputs[0], timed(1))]))
    assert not periodic.ready()
    assert periodic.wake_at() is None
    assert stage.drain() == [["r1"]]
    assert periodic.ready()
    assert periodic.wake_at() == 0.0
