"""Logs of steps that are too large for one frame.

The results of requests are in the logs. A log that is too large for a message of the JobManager
lets the region restart. A channel that carries no records carries the logs of a whole interval
between two barriers at once, so it needs several frames for them.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import trio

from penstock import AsyncDataStream, AsyncFunction, DataStream, StreamExecutionEnvironment
from penstock.dataflow.errors import PenstockError
from penstock.runtime.control import framing, messages
from penstock.runtime.jobmanager.attempt.task_restarts import TaskRestarts
from penstock.runtime.network import step_logs
from penstock.testing.simulation import Schedule
from tests.simulation.test_task_restarts import KEYS, Build, kill_workers, simulation_of

_CALLS = itertools.count()
#: Without results, no frame of these jobs is larger.
FRAME = 30_000


class _Large(AsyncFunction):
    """Returns a large result, which is another one at each call."""

    async def async_invoke(self, value: int) -> list[tuple[int, int, str]]:
        await trio.sleep(0.001)
        return [(value, next(_CALLS), "x" * 4_000)]


def _large_results(keys: int) -> Build:
    """Send results to the tasks of as many keys."""

    def built(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
        sent = stream.key_by(lambda i: i % KEYS).map(lambda i: i).key_by(lambda i: i % 5)
        results = AsyncDataStream.ordered_wait(sent, _Large(), 60_000, 4, run_in="trio")
        return results.key_by(lambda result: result[1] % keys).map(lambda result: result[0])

    return built


def test_logs_that_are_too_large_for_a_message_let_the_region_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = simulation_of(_large_results(7))
    reasons = Counter[str]()
    give_up = TaskRestarts._give_up

    def counting(self: TaskRestarts, error: PenstockError) -> None:
        for name in ("SendersReplaced", "Deploy"):
            reasons[name] += f"a message {name} has" in str(error)
        give_up(self, error)

    monkeypatch.setattr(TaskRestarts, "_give_up", counting)
    monkeypatch.setattr(framing, "MAX_FRAME", FRAME)
    monkeypatch.setattr(messages, "MAX_FRAME", FRAME)
    monkeypatch.setattr(step_logs, "PART_BYTES", FRAME // 3)
    happened = kill_workers(simulation, lambda _: reasons.total() >= 2)
    assert reasons.total() >= 2, (reasons, happened)


def test_a_channel_without_records_carries_long_logs_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One key has all records, so the other subtasks only get barriers."""
    simulation = simulation_of(_large_results(1))
    monkeypatch.setattr(framing, "MAX_FRAME", FRAME)
    monkeypatch.setattr(step_logs, "PART_BYTES", FRAME // 3)
    result = simulation.run_schedule(0, Schedule((), (3,), interval_seconds=0.3))
    assert simulation.failure(result) is None, simulation.failure(result)
    assert result.happened["snapshots"] >= 1 and not result.happened["restarts"], result.happened
