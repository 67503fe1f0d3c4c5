"""Whether the workers of a dead JobManager are taken over: facts in, decision out."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control import messages as m
from penstock.runtime.jobmanager.takeover.decision import (
    AssignedSplit,
    RestartInstead,
    TakeOver,
    decide_takeover,
)
from penstock.snapshot.metadata.manifest import Manifest, SnapshotNumber
from penstock.snapshot.protocols.events import SnapshotKind

CODE, TYPES = b"digest", ["type"]


def graph(parallelism: int = 2) -> ExecutionGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.from_sequence(1, 9).key_by(lambda i: i).reduce(lambda a, b: a + b).print()
    return compile_graph(env._graph, env.config)


PLAN = graph()


def newest(number: int = 20, **values: Any) -> Manifest:
    kind = SnapshotKind.CHECKPOINT
    made = Manifest("job", "l", None, SnapshotNumber(number), kind, 0, 7, "0.1.0", "f", ())
    return replace(made, **values)


def offer(worker: int, **values: Any) -> m.Rejoin:
    plan = pickle.dumps(PLAN)
    made = m.Rejoin(
        worker, 7, 40 + worker, "addr", CODE, plan, TYPES, True, 20, [], [], [], [], [], False
    )
    return replace(made, **values)


def decide(*offers: m.Rejoin, manifest: Manifest | None = None) -> TakeOver | RestartInstead:
    return decide_takeover(offers, manifest or newest(), PLAN, CODE, TYPES)


def reason(decision: TakeOver | RestartInstead) -> str:
    assert isinstance(decision, RestartInstead)
    return decision.reason


def test_all_workers_of_an_attempt_are_taken_over_with_what_the_dead_jobmanager_knew() -> None:
    first = offer(
        0,
        completed=19,  # it has not heard yet that snapshot 20 is complete
        pending=[[20, "checkpoint"], [21, "checkpoint"], [22, ""]],
        splits=[[4, 0, "d", 1, 19], [8, 0, "h", None, 20], [9, 0, "i", None, 21]],
        wanted=[0],
    )
    second = offer(
        1,
        pending=[[21, "savepoint"], [23, ""]],
        splits=[[7, 0, "g", [2], 20]],
        ended=[[0, 1]],
        outside_ended=[[1, 1]],
    )
    decision = decide(second, first)
    assert decision == TakeOver(
        attempt=7,
        offers=(first, second),
        completed=20,
        aborted=(21, 22, 23),
        splits=(
            AssignedSplit(0, 1, "g", [2], 7),
            AssignedSplit(0, 0, "h", None, 8),
            AssignedSplit(0, 0, "i", None, 9),
        ),
        wanted=((0, 0),),
        ended=((0, 1),),
        outside_ended=((1, 1),),
    )


def test_workers_of_an_older_attempt_do_not_count() -> None:
    decision = decide(offer(0), offer(1), offer(0, attempt=5), offer(1, attempt=5))
    assert isinstance(decision, TakeOver) and decision.attempt == 7
    assert reason(decide(offer(0), offer(1, attempt=5))) == "worker 1 has not come"


def test_a_worker_that_is_missing_or_comes_twice_is_a_reason_to_restart() -> None:
    assert reason(decide(offer(1))) == "worker 0 has not come"
    assert reason(decide(offer(0), offer(1), offer(1))) == "a worker came twice"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"code": b"other"}, "the workers run other code"),
        ({"types": []}, "the workers have other record classes"),
        ({"plan": pickle.dumps(graph(3))}, "the workers run another graph"),
        ({"started": False}, "its attempt had not begun"),
        ({"completed": 21}, "a later snapshot than 20 is gone"),
        ({"pending": [[21, "final"]]}, "the final snapshot had begun"),
        ({"loop_ends": True}, "a loop was ending"),
    ],
)
def test_one_worker_in_doubt_is_a_reason_to_restart_all(
    values: dict[str, Any], expected: str
) -> None:
    assert reason(decide(offer(0), offer(1, **values))) == expected
    assert reason(decide(offer(0, **values), offer(1))) == expected


def test_an_attempt_without_a_snapshot_of_its_own_is_not_taken_over() -> None:
    expected = "its attempt has no complete snapshot"
    offers = [offer(0), offer(1)]
    assert reason(decide(*offers, manifest=newest(attempt=5))) == expected
    assert reason(decide_takeover(offers, None, PLAN, CODE, TYPES)) == expected


def test_a_job_that_had_its_final_snapshot_is_not_taken_over() -> None:
    decision = decide(offer(0), offer(1), manifest=newest(kind=SnapshotKind.FINAL))
    assert reason(decision) == "the final snapshot had begun"
