"""When the tasks of a worker send batches that are not full."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.runtime.task.partial_batches import (
    BATCH_SECONDS,
    CLOCK_SHARE,
    PROCESSOR_SHARE,
    PartialBatches,
)

TIMEOUT = 0.005


@dataclass(eq=False)
class Sending:
    """A task that has some partial batches each time."""

    batches: int = 1
    runnable: bool = False
    rounds: int = 0

    def send_partial(self) -> int:
        self.rounds += 1
        return self.batches


class Machine:
    """A clock and a processor."""

    def __init__(self) -> None:
        self.now, self.used, self.share = 100.0, 50.0, 1.0

    def seconds(self) -> float:
        return self.used

    def measure(self, now: float) -> None:
        assert now == self.now


@pytest.fixture
def machine() -> Machine:
    return Machine()


def made(machine: Machine, *tasks: Sending) -> PartialBatches:
    return PartialBatches(tasks, lambda: machine.now, machine, TIMEOUT)


def test_partial_batches_of_all_tasks_are_sent_when_no_task_can_run(machine: Machine) -> None:
    first, second = Sending(runnable=True), Sending()
    batches = made(machine, first, second)
    batches.send_due()
    assert (first.rounds, second.rounds) == (1, 1), "the first round is due"
    batches.task_waits(second)
    assert second.rounds == 1, "the first task can run"
    batches.task_waits(first)
    batches.task_waits(first)
    assert (first.rounds, second.rounds) == (3, 3)
    assert batches.retry_at is None


def test_partial_batches_are_due_after_the_buffer_timeout_while_tasks_run(
    machine: Machine,
) -> None:
    task = Sending(runnable=True)
    batches = made(machine, task)
    batches.send_due()
    machine.used += 1
    machine.now += TIMEOUT / 2
    batches.send_due()
    assert task.rounds == 1
    machine.now += TIMEOUT / 2
    batches.send_due()
    assert task.rounds == 2


def test_many_batches_are_due_when_they_are_a_small_share_of_the_processor_time(
    machine: Machine,
) -> None:
    task = Sending(batches=100, runnable=True)
    batches = made(machine, task)
    batches.send_due()
    machine.now += 2 * TIMEOUT
    machine.used += 0.9 * 100 * BATCH_SECONDS / PROCESSOR_SHARE
    batches.send_due()
    assert task.rounds == 1
    machine.used += 0.2 * 100 * BATCH_SECONDS / PROCESSOR_SHARE
    batches.send_due()
    assert task.rounds == 2


def test_a_function_that_blocks_does_not_hold_up_the_output_before_it(machine: Machine) -> None:
    task = Sending(runnable=True)
    batches = made(machine, task)
    batches.send_due()
    machine.now += 0.2  # in which a function has slept
    batches.send_due()
    assert task.rounds == 2


def test_on_a_busy_machine_partial_batches_wait_although_no_task_can_run(
    machine: Machine,
) -> None:
    task = Sending(batches=10)
    batches = made(machine, task)
    batches.task_waits(task)
    machine.share = 0.5
    batches.task_waits(task)
    assert task.rounds == 1
    assert batches.retry_at == pytest.approx(machine.now + 10 * BATCH_SECONDS / CLOCK_SHARE)
    machine.now = batches.retry_at
    batches.task_waits(task)
    assert task.rounds == 2
    assert batches.retry_at is None


def test_rounds_without_batches_cost_nothing(machine: Machine) -> None:
    task = Sending(batches=0)
    batches = made(machine, task)
    machine.share = 0.1
    for _ in range(3):
        batches.task_waits(task)
    assert task.rounds == 3
