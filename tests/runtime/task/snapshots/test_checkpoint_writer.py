"""The checkpoint writer acknowledges snapshots in order, with the output that was staged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.dataflow.errors import StoreError
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.snapshots.task_snapshot import Acknowledgement, TaskSnapshot
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.job_paths import JobPaths
from tests.runtime.network.channels import Clock


class Reports:
    def __init__(self) -> None:
        self.acknowledged: list[Acknowledgement] = []
        self.declined: list[tuple[int, str]] = []

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        self.acknowledged.append(acknowledgement)

    def decline(self, number: int, reason: str) -> None:
        self.declined.append((number, reason))


async def inline(function: Callable[[], Any]) -> Any:
    return function()


async def no_pause() -> None:
    return None


def finish(work: Awaitable[None]) -> None:
    with pytest.raises(StopIteration):
        work.__await__().__next__()


class Persisted:
    def __init__(self) -> None:
        self.reports = Reports()
        self.checkpoint_writer = CheckpointWriter(
            subtask=1,
            lineage="l",
            attempt=2,
            backends={},
            responder=self.reports,
            paths=JobPaths(Path("/nowhere")),
            clock=Clock(),
        )

    def cut(self, number: int, staged: Callable[[], list[Any]] | None = None, **more: Any) -> None:
        cut = TaskSnapshot(number, SnapshotKind.CHECKPOINT, "source", **more)
        if staged is not None:
            cut.staged["sink"] = staged
        self.checkpoint_writer.add(cut)

    def work(self) -> None:
        while self.checkpoint_writer.has_work():
            finish(self.checkpoint_writer.work(inline, no_pause))

    def committables(self) -> list[list[Any]]:
        return [[c.payload for c in a.committables] for a in self.reports.acknowledged]


class BrokenCapture:
    def __init__(self, *, over: bool = True) -> None:
        self.over = over

    def abort(self) -> None:
        return None

    def write(self, target: Path) -> Any:
        raise StoreError("the disk is full", target)
        yield


def test_snapshots_are_acknowledged_in_order_with_their_small_values() -> None:
    p = Persisted()
    p.cut(1, small={"source": [["a", None, 3]]}, blocked_seconds=[0.5, 0.0])
    p.cut(2, small={"source": []})
    assert p.checkpoint_writer.pending
    p.work()
    assert [a.number for a in p.reports.acknowledged] == [1, 2]
    assert p.reports.acknowledged[0].blocked_seconds == [0.5, 0.0]
    (handle,) = p.reports.acknowledged[0].handles
    assert (handle.uid, handle.subtask, handle.small) == ("source", 1, [["a", None, 3]])


def test_staged_output_is_in_every_acknowledgement_until_a_snapshot_is_complete() -> None:
    p = Persisted()
    p.cut(1, lambda: ["one"])
    p.cut(2, lambda: ["two"])
    p.work()
    p.checkpoint_writer.complete(1)
    p.cut(3, lambda: ["three"])
    p.work()
    assert p.committables() == [["one"], ["one", "two"], ["two", "three"]]


def test_output_that_an_aborted_snapshot_staged_is_in_the_next() -> None:
    p = Persisted()
    p.cut(1, lambda: ["one"])
    p.checkpoint_writer.abort(1)
    p.work()
    assert not p.reports.acknowledged
    p.cut(2, lambda: ["two"])
    p.work()
    assert p.committables() == [["one", "two"]]


def test_output_that_a_declined_snapshot_staged_is_in_the_next() -> None:
    p = Persisted()
    p.cut(1, lambda: ["one"], captures={"op": BrokenCapture()})
    p.work()
    ((number, reason),) = p.reports.declined
    assert number == 1
    assert "the disk is full" in reason
    p.cut(2, lambda: ["two"])
    p.work()
    assert p.committables() == [["one", "two"]]


def test_state_that_can_never_be_written_again_fails_the_task() -> None:
    p = Persisted()
    p.cut(1, captures={"op": BrokenCapture(over=False)})
    with pytest.raises(StoreError, match="the disk is full"):
        finish(p.checkpoint_writer.work(inline, no_pause))
    assert not p.reports.declined


def test_output_that_cannot_be_staged_fails_the_task_since_it_is_lost() -> None:
    def fail() -> list[Any]:
        raise OSError("no space left")

    p = Persisted()
    p.cut(1, fail)
    with pytest.raises(OSError, match="no space left"):
        finish(p.checkpoint_writer.work(inline, no_pause))
    assert not p.reports.acknowledged


def test_committables_name_their_origin() -> None:
    p = Persisted()
    p.cut(7, lambda: ["x"])
    p.work()
    ((committable,),) = [a.committables for a in p.reports.acknowledged]
    assert committable.identity == ("l", "sink", 1, 7, 2)
