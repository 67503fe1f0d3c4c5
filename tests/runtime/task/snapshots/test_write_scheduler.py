"""Between two slices of what is written the records of the process go first, for a while."""

import pytest
import trio

from penstock.runtime.task.snapshots.write_scheduler import (
    MAX_WAIT_SECONDS,
    MAX_WAIT_TURNS,
    WriteScheduler,
)


def runnable() -> int:
    return trio.lowlevel.current_statistics().tasks_runnable


class Process:
    """An event loop with writers, and a task with records to process."""

    def __init__(self, records: int, record_seconds: float = 0.0, slice_seconds: float = 0.0):
        self.records, self.record_seconds = records, record_seconds
        self.slice_seconds = slice_seconds
        self.now = 0.0
        self.order: list[str] = []
        self.write_scheduler = WriteScheduler(lambda: self.now, runnable, lambda: not self.records)

    async def task(self) -> None:
        while self.records:
            self.records -= 1
            self.order.append("record")
            self.now += self.record_seconds
            await trio.lowlevel.checkpoint()

    async def writer(self, name: str, slices: int) -> None:
        for _ in range(slices):
            self.order.append(name)
            self.now += self.slice_seconds
            await self.write_scheduler.after_slice(trio.lowlevel.checkpoint)

    def run(self, **writers: int) -> list[str]:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.task)
                for name, slices in writers.items():
                    nursery.start_soon(self.writer, name, slices)

        trio.run(main)
        return self.order


def between(order: list[str]) -> list[int]:
    """How many records there were between each two slices."""
    counts = [0]
    for what in order:
        if what == "record":
            counts[-1] += 1
        else:
            counts.append(0)
    return counts[1:-1]


# Which of those that are runnable trio runs first is a matter of chance.
@pytest.mark.parametrize("turn", range(10))
@pytest.mark.parametrize(
    ("records", "record_seconds", "had"),
    [
        pytest.param(5, 0.0, 5, id="until there are none"),
        pytest.param(999, 0.0, MAX_WAIT_TURNS, id="the clock stands still"),
        pytest.param(999, MAX_WAIT_SECONDS * 0.3, 4, id="not for longer than that"),
    ],
)
def test_records_go_before_the_next_slice_for_a_limited_time(
    turn: int, records: int, record_seconds: float, had: int
):
    del turn
    [count] = between(Process(records, record_seconds).run(a=2))
    assert had - 1 <= count <= had + 1


@pytest.mark.parametrize("turn", range(10))
def test_records_are_processed_between_the_slices_of_several_writers(turn: int):
    del turn
    process = Process(9_999, MAX_WAIT_SECONDS * 0.3, MAX_WAIT_SECONDS)
    order = process.run(a=20, b=20, c=20)
    # The first of each is there before anybody is patient.
    assert min(between(order)[2:]) >= 3, order
    slices = [what for what in order if what != "record"]
    # Each has its turn.
    assert slices == slices[:3] * 20


def test_a_cancelled_writer_does_not_delay_others():
    process = Process(0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.writer, "a", 50)
            with trio.move_on_after(0):
                await process.writer("b", 50)
            nursery.start_soon(process.writer, "c", 50)

    trio.run(main)
    assert process.order.count("a") == process.order.count("c") == 50


def test_the_worker_is_not_quiet_while_a_writer_is_between_two_slices():
    process = Process(0)
    seen: list[bool] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            seen.append(process.write_scheduler.quiet())
            nursery.start_soon(process.writer, "a", 1)
            nursery.start_soon(process.writer, "b", 1)
            await trio.lowlevel.checkpoint()
            # Both have begun.
            await trio.lowlevel.checkpoint()
            seen.append(process.write_scheduler.quiet())
        await trio.lowlevel.checkpoint()
        seen.append(process.write_scheduler.quiet())

    trio.run(main)
    assert seen == [True, False, True]
