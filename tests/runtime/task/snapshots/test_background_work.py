"""The order in which a checkpoint writer works, and for whom it waits."""

import time
from unittest.mock import Mock, call

import pytest
import trio
import trio.testing

from penstock.runtime.system.signal import Signal
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.snapshots.task_snapshot import TaskSnapshot
from penstock.runtime.task.snapshots.write_scheduler import WriteScheduler
from penstock.snapshot.protocols.events import SnapshotKind
from tests.snapshot.state.backends import Maker


def quiet_while(condition):
    write_scheduler = Mock(spec=WriteScheduler)
    write_scheduler.quiet = condition
    return write_scheduler


def checkpoint_writer_of(backend, write_scheduler=None):
    return CheckpointWriter(
        subtask=0,
        lineage="l",
        attempt=1,
        backends={"uid": backend},
        responder=Mock(),
        paths=Mock(),
        clock=time.monotonic,
        write_scheduler=write_scheduler or quiet_while(lambda: True),
    )


# Which of two that are runnable trio runs first is a matter of chance, so many times.
@pytest.mark.parametrize("turn", range(30))
def test_a_task_that_wakes_up_waits_for_one_slice_of_an_eager_flush_at_most(turn):
    slices, waiting, wake = [], True, Signal()

    def flush_eagerly():
        for number in range(5):
            slices.append(number)
            wake.set()
            yield None

    async def sleeper():
        nonlocal waiting
        await wake.wait()
        waiting = False
        for _ in range(9):
            await trio.lowlevel.checkpoint()

    async def work():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper)
            await trio.testing.wait_all_tasks_blocked()
            await checkpoint_writer.work(None, trio.lowlevel.checkpoint)

    backend = Mock(over_memory_limit=False, wants_eager_flush=True, flush_eagerly=flush_eagerly)
    checkpoint_writer = checkpoint_writer_of(backend, quiet_while(lambda: waiting))
    checkpoint_writer.set_idle(True)
    trio.run(work)
    assert slices == [0]


def busy_with(backend):
    """The checkpoint writer of a task that is never idle, and its clock."""
    now = [0.0]
    checkpoint_writer = checkpoint_writer_of(backend, quiet_while(lambda: False))
    checkpoint_writer._lead_time._clock = lambda: now[0]
    return checkpoint_writer, now


def test_a_busy_task_flushes_eagerly_only_while_an_announced_snapshot_is_due():
    written = []

    def flush_eagerly():
        for number in range(5):
            written.append(number)
            now[0] += 0.1
            yield None

    backend = Mock(over_memory_limit=False, wants_eager_flush=True, flush_eagerly=flush_eagerly)
    backend.wants_preparation = False
    checkpoint_writer, now = busy_with(backend)
    assert not checkpoint_writer.has_work()
    checkpoint_writer.prepare(7, 0.15)
    backend.announce_snapshot.assert_called_once_with(
        7, 0.15, checkpoint_writer._writer._paths.task.return_value
    )
    checkpoint_writer._writer._paths.task.assert_called_once_with(7, "uid", 0, 1)
    assert checkpoint_writer.has_work()
    trio.run(checkpoint_writer.work, None, trio.lowlevel.checkpoint)
    # 0.15 seconds, and 0.1 by which it may be late.
    assert written == [0, 1, 2]
    assert not checkpoint_writer.has_work()


def test_a_busy_task_prepares_checkpoints_and_computes_checksums_once_a_snapshot_is_announced():
    backend = Mock(over_memory_limit=False, wants_eager_flush=False, wants_checksums=True)
    backend.wants_preparation = True
    backend.prepare_checkpoint = Mock(return_value=(_ for _ in ()))
    backend.compute_checksum = Mock(return_value=(_ for _ in ()))
    checkpoint_writer, _ = busy_with(backend)
    assert not checkpoint_writer.has_work()
    checkpoint_writer.prepare(7, 0.15)
    for _ in range(2):
        assert checkpoint_writer.has_work()
        trio.run(checkpoint_writer.work, None, trio.lowlevel.checkpoint)
        backend.wants_preparation = False
    assert backend.prepare_checkpoint.call_count == backend.compute_checksum.call_count == 1
    checkpoint_writer.add(TaskSnapshot(1, SnapshotKind.CHECKPOINT, "uid"))
    assert not checkpoint_writer._lead_time.snapshot_is_due()


def test_records_are_processed_before_the_next_slice_of_a_snapshot():
    slices: list[int] = []

    def write(folder):
        del folder
        for number in range(3):
            slices.append(number)
            yield None

    backend = Mock(over_memory_limit=False)
    checkpoint_writer = checkpoint_writer_of(backend, write_scheduler := Mock(spec=WriteScheduler))
    checkpoint_writer.add(
        TaskSnapshot(1, SnapshotKind.CHECKPOINT, "uid", captures={"uid": Mock(write=write)})
    )
    trio.run(checkpoint_writer.work, None, trio.lowlevel.checkpoint)
    assert slices == [0, 1, 2]
    write_scheduler.after_slice.assert_has_awaits([call(trio.lowlevel.checkpoint)] * 3)
    assert checkpoint_writer._responder.acknowledge.call_count == 1

    # But not if those of the task itself can't go on before it is written.
    backend.over_memory_limit = True
    checkpoint_writer.add(
        TaskSnapshot(2, SnapshotKind.CHECKPOINT, "uid", captures={"uid": Mock(write=write)})
    )
    trio.run(checkpoint_writer.work, None, trio.lowlevel.checkpoint)
    assert slices == [0, 1, 2] * 2
    assert write_scheduler.after_slice.await_count == 3


def test_an_idle_task_computes_checksums(tmp_path, monkeypatch):
    make = Maker(tmp_path)
    backend = make(inline_threshold=0)
    make.snapshot(backend, 1)
    # After it there are table files to list.
    backend.storage.database.flush()
    checkpoint_writer = checkpoint_writer_of(backend)
    asked = Mock(side_effect=[True, True, False])
    monkeypatch.setattr(backend.storage.files, "compute_checksum", asked)

    async def offload(call):
        return call()

    assert not checkpoint_writer.has_work()
    checkpoint_writer.set_idle(True)
    assert checkpoint_writer.has_work()
    trio.run(checkpoint_writer.work, offload, trio.lowlevel.checkpoint)
    assert asked.call_count == 3
    backend.close()
