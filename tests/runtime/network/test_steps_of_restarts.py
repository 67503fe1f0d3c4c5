"""Workers know the same steps of a task under the same numbers, also while tasks restart."""

from __future__ import annotations

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.network.step_logs import BARRIER, FIRED, Step, StepLogs

TASK = (1, 0)


class Worker:
    """A worker with its logs, which sends to one other worker."""

    def __init__(self, snapshot: int = 0) -> None:
        self.logs, self.known = StepLogs(snapshot), dict[tuple[int, int], int]()

    def send(self, to: Worker) -> None:
        for news in self.logs.news(self.known):
            to.logs.learn(news)

    def steps(self, snapshot: int = 0) -> tuple[int, list[Step]]:
        """Return what the worker answers when the task restarts."""
        ((_, _, first, steps),) = self.logs.restart([TASK], snapshot)
        return first, list(steps)


class Three:
    """A task, a worker behind it, and one behind that."""

    def __init__(self) -> None:
        self.first, self.second, self.third = Worker(), Worker(), Worker()
        self.log = self.first.logs.of(TASK, 0)

    def do(self, *times: int) -> None:
        """Let the task fire timers. The second worker knows that."""
        for time in times:
            self.log.append([FIRED, time])
        self.first.send(self.second)

    def restart(self, snapshot: int = 0) -> None:
        """Restart the task, which repeats all that the second worker knows."""
        first, steps = self.second.steps(snapshot)
        self.first = Worker(snapshot)
        self.log = self.first.logs.of(TASK, first)
        self.do(*(time for _, time in steps))


def test_a_worker_may_hear_of_a_restart_before_the_one_to_which_it_sends() -> None:
    workers = Three()
    workers.do(1)
    workers.second.send(workers.third)
    workers.do(2, 3)
    workers.second.steps()
    workers.second.send(workers.third)  # with records that depend on the steps
    assert workers.third.steps() == (0, [[FIRED, 1], [FIRED, 2], [FIRED, 3]])
    workers.restart()
    workers.do(4)
    workers.second.send(workers.third)
    assert workers.third.steps() == workers.second.steps() == workers.first.steps()


@pytest.mark.parametrize("before", [(1,), ()])
def test_a_worker_may_hear_of_a_restart_after_the_one_to_which_it_sends(
    before: tuple[int, ...],
) -> None:
    workers = Three()
    workers.do(*before)
    workers.second.send(workers.third)
    workers.do(2)
    workers.third.logs.restart([TASK], 0)
    workers.second.send(workers.third)
    assert workers.third.steps() == workers.second.steps()
    workers.restart()
    workers.do(3)
    workers.second.send(workers.third)
    assert workers.third.steps() == workers.second.steps() == workers.first.steps()


def test_a_task_that_restarts_from_a_snapshot_keeps_the_numbers_of_its_steps() -> None:
    workers = Three()
    workers.do(1, 2)
    workers.log.append([BARRIER, 7])
    workers.do(3)
    workers.second.send(workers.third)
    workers.second.logs.snapshot_completed(7)
    assert workers.second.steps(7) == workers.third.steps(7) == (3, [[FIRED, 3]])
    workers.restart(7)
    workers.do(4)
    workers.second.send(workers.third)
    assert workers.third.steps(7) == (3, [[FIRED, 3], [FIRED, 4]])


def test_steps_behind_an_unknown_barrier_are_refused() -> None:
    workers = Three()
    workers.do(1)
    with pytest.raises(ProtocolError, match="does not know the barrier of snapshot 7"):
        workers.second.steps(7)


def test_missing_steps_are_refused() -> None:
    workers = Three()
    workers.do(1)
    list(workers.second.logs.news(workers.second.known))  # which are lost
    workers.do(2)
    workers.third.logs.of(TASK, 0)
    with pytest.raises(ProtocolError, match="step 1 follows step 0"):
        workers.second.send(workers.third)
