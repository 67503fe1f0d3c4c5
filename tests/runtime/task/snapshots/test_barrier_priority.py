"""The order between the tasks of a worker while a barrier is due or on its way."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from penstock.runtime.task.snapshots.barrier_priority import (
    DRAIN_SECONDS,
    LONGEST_SECONDS,
    BarrierPriority,
)


@dataclass
class Stub:
    """A task of which only what the order depends on is there."""

    name: str
    is_source: bool = False
    last_snapshot: int = 0
    runnable: bool = True
    flushes: int = 0

    def flush(self) -> None:
        self.flushes += 1


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def yields(priority: BarrierPriority, task: Stub) -> bool:
    """Return whether the task has to yield now, without waiting for others."""
    went_on = False

    async def main() -> None:
        nonlocal went_on
        with trio.move_on_after(0):
            await priority.yield_to_others(task)
            went_on = True

    trio.run(main)
    return not went_on


@pytest.fixture
def tasks() -> list[Stub]:
    return [Stub("source", is_source=True), Stub("middle"), Stub("last")]


def test_all_tasks_are_equal_while_no_barrier_is_due(tasks):
    priority = BarrierPriority(tasks, lambda: 0.0)
    assert not any(yields(priority, task) for task in tasks)


def test_a_source_yields_shortly_before_a_barrier_is_due(tasks):
    now = 0.0
    priority = BarrierPriority(tasks, lambda: now)
    priority.announce(1, 1.0)
    now = 1.0 - 1.5 * DRAIN_SECONDS
    assert not yields(priority, tasks[0])
    now = 1.0 - 0.5 * DRAIN_SECONDS
    assert yields(priority, tasks[0])
    assert not yields(priority, tasks[1]) and not yields(priority, tasks[2])


def test_a_task_that_has_captured_its_state_yields_to_tasks_that_have_not(tasks):
    priority = BarrierPriority(tasks, lambda: 0.0)
    tasks[0].last_snapshot = tasks[1].last_snapshot = 1
    assert yields(priority, tasks[0]) and yields(priority, tasks[1])
    assert not yields(priority, tasks[2])
    tasks[2].last_snapshot = 1
    assert not any(yields(priority, task) for task in tasks)


def test_a_task_yields_only_to_tasks_that_have_something_to_do(tasks):
    priority = BarrierPriority(tasks, lambda: 0.0)
    tasks[0].last_snapshot = 1
    tasks[1].runnable = tasks[2].runnable = False
    assert not yields(priority, tasks[0])
    tasks[1].runnable = True
    assert yields(priority, tasks[0])


def test_tasks_do_not_yield_for_an_aborted_snapshot(tasks):
    now = 0.0
    priority = BarrierPriority(tasks, lambda: now)
    tasks[0].last_snapshot = 1
    assert yields(priority, tasks[0])
    now = LONGEST_SECONDS
    assert not yields(priority, tasks[0])


def test_an_announced_barrier_that_does_not_come_holds_a_source_for_a_limited_time(tasks):
    now = 0.95
    priority = BarrierPriority(tasks, lambda: now)
    priority.announce(1, 0.0)
    assert yields(priority, tasks[0])
    now += LONGEST_SECONDS
    assert not yields(priority, tasks[0])


def test_a_task_sends_its_records_before_it_yields(tasks):
    priority = BarrierPriority(tasks, lambda: 0.0)
    tasks[0].last_snapshot = 1
    yields(priority, tasks[0])
    yields(priority, tasks[1])
    assert [task.flushes for task in tasks] == [1, 0, 0]


def test_a_task_continues_when_the_others_start_to_wait(tasks):
    async def main() -> None:
        priority = BarrierPriority(tasks, trio.current_time)
        tasks[0].last_snapshot = 1
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(priority.yield_to_others, tasks[0])
            await trio.testing.wait_all_tasks_blocked()
            for task in tasks[1:]:
                task.runnable = False
                priority.reconsider()
        assert trio.current_time() == began

    run(main)


def test_a_task_continues_when_the_last_of_the_others_has_captured_its_state(tasks):
    async def main() -> None:
        priority = BarrierPriority(tasks, trio.current_time)
        tasks[0].last_snapshot = tasks[1].last_snapshot = 1
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(priority.yield_to_others, tasks[0])
            await trio.testing.wait_all_tasks_blocked()
            tasks[2].last_snapshot = 1
            await priority.yield_to_others(tasks[2])
        assert trio.current_time() == began

    run(main)


def test_a_task_yields_for_a_limited_time(tasks):
    async def main() -> None:
        priority = BarrierPriority(tasks, trio.current_time)
        tasks[0].last_snapshot = 1
        began = trio.current_time()
        await priority.yield_to_others(tasks[0])
        assert trio.current_time() - began == pytest.approx(LONGEST_SECONDS)

    run(main)
