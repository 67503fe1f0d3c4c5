"""A snapshot that has been in flight for long is reported, with the place of its barrier."""

from __future__ import annotations

import pytest

from penstock import StreamExecutionEnvironment
from penstock.cli.event_lines import EventLines
from penstock.dataflow.graph.compile import compile_graph
from penstock.runtime.jobmanager.reporting.snapshot_delays import SnapshotDelays


@pytest.fixture
def delays() -> SnapshotDelays:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    stream = env.from_sequence(0, 9).name("numbers").rebalance().map(abs).name("quick")
    stream.rebalance().map(abs).name("slow").add_sink(print).name("out")
    return SnapshotDelays(compile_graph(env._graph, env.config))


def all_tasks(delays: SnapshotDelays) -> list[tuple[int, int]]:
    return list(delays._plan.tasks())


def test_a_report_comes_every_ten_seconds(delays: SnapshotDelays) -> None:
    tasks = all_tasks(delays)
    times = [t for t in range(45) if delays.report(7, t, tasks, {})]
    assert times == [10, 20, 30, 40]
    assert [t for t in range(15) if delays.report(8, t, tasks, {})] == [10]


def test_a_report_names_the_first_task_without_the_barrier(delays: SnapshotDelays) -> None:
    tasks = all_tasks(delays)
    slow = max(task[0] for task in tasks)
    # The first two chains have acknowledged; subtask 0 of the last is still writing.
    missing = [task for task in tasks if task[0] == slow]
    event = delays.report(7, 12.4, missing, {(slow, 0): 7, (slow, 1): 6})
    assert event is not None
    said: list[str] = []
    EventLines(said.append)(event.to_wire())
    assert said == [
        "snapshot 7 has been under way for 12 s: waiting for the barrier at "
        "'slow → out' (subtask 1)"
    ]


@pytest.mark.parametrize("chains", [1, 2, 3])
def test_a_barrier_waits_where_all_tasks_before_have_it(
    delays: SnapshotDelays, chains: int
) -> None:
    """Leave out the last chains: the barrier is at the first of those without it."""
    ids = sorted({task[0] for task in all_tasks(delays)})
    missing = [task for task in all_tasks(delays) if task[0] in ids[chains - 1 :]]
    event = delays.report(7, 10, missing, {})
    assert event is not None
    name = delays._plan.chains[ids[chains - 1]].name
    assert event.waiting == f"the barrier at {name!r} (subtask 0) and at 1 more"


def test_a_task_that_has_the_barrier_is_writing(delays: SnapshotDelays) -> None:
    task = all_tasks(delays)[-1]
    event = delays.report(7, 10, [task], {task: 7})
    assert event is not None
    assert event.waiting == f"'slow → out' (subtask {task[1]}) to write its state"
    event = delays.report(7, 20, [], {})
    assert event is not None
    assert event.waiting == "the manifest to be written"
