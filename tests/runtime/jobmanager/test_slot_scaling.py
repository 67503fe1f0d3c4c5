"""The execution graph of each attempt for the slots that are left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock import GeneratorSource, JobConfig, StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.graph.regions import divide
from penstock.runtime.jobmanager.attempt.rescaling import Rescaling, WorkersNotStarted
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost
from penstock.runtime.jobmanager.reporting.job_events import JobEvent, Note, SlotsChanged
from penstock.runtime.jobmanager.slot_scaling import SlotScaling
from penstock.runtime.system.system import real_system

NEWEST: Any = object()


def compiled(parts: int = 1) -> ExecutionGraph:
    """Each part is a source with 4 subtasks, a count with 3, and a sink with 1."""
    env = StreamExecutionEnvironment.get_execution_environment(JobConfig(parallelism=4))
    for _ in range(parts):
        numbers = env.from_source(GeneratorSource(lambda i: i, 1), None, "numbers")
        counted = numbers.key_by(lambda n: n % 3).count().set_parallelism(3)
        counted.map(str).set_parallelism(3).print().set_parallelism(1)
    return compile_graph(env._graph, env.config)


class Scaled:
    """A `SlotScaling` of a compiled graph, with what it has reported."""

    def __init__(self, reactive: bool = True, together: bool = False, parts: int = 1) -> None:
        plan = compiled(parts)
        regions = divide(plan, {}) if parts > 1 else (plan,)
        self.plan = plan
        self.events: list[JobEvent] = []
        self.unfit: set[int] = set()
        config = JobConfig(restart_reactive=reactive, restart_slot_timeout_seconds=0.0)
        system = replace(real_system(), workers_start_together=together)
        self.scaling = SlotScaling(config, regions, self.misfit, system, self.events.append)

    def misfit(self, plan: ExecutionGraph, newest: Any) -> str | None:
        return "it has records on a broadcast edge" if plan.slots in self.unfit else None

    @property
    def reported(self) -> list[tuple[Any, ...]]:
        """Each note, and each change of the slots with the parallelism of the chains."""
        return [
            (event.slots, event.wanted, event.reason, [v["parallelism"] for v in vertices])
            if isinstance(event, SlotsChanged) and (vertices := event.graph["vertices"])
            else (event,)
            for event in self.events
        ]

    def lose(self, count: int = 1, region: int = 0) -> float | None:
        return self.scaling.restart_delay(WorkersNotStarted("it exited", region, count), 0.0)


def parallelisms(plan: ExecutionGraph) -> list[int]:
    return [chain.parallelism for chain in plan.chains]


def test_each_operator_has_at_most_as_many_subtasks_as_there_are_slots():
    scaled = Scaled()
    assert parallelisms(scaled.plan) == [4, 3, 1]
    for slots, expected in ((3, [3, 3, 1]), (2, [2, 2, 1]), (1, [1, 1, 1])):
        assert scaled.lose() == 0.0
        plan, regions = scaled.scaling.plans(None)
        assert parallelisms(plan) == expected and regions == (plan,)
        assert plan.slots == slots and scaled.scaling.missing(plan) == 4 - slots
        assert all(
            node.operator.parallelism
            == chain.parallelism
            == plan.operator(node.operator.uid).parallelism
            for chain in plan.chains
            for node in chain.walk()
        )


def test_chains_links_and_fingerprint_do_not_depend_on_the_slots():
    scaled = Scaled()
    scaled.lose(3)
    plan, _ = scaled.scaling.plans(None)
    assert plan.links == scaled.plan.links and plan.fingerprint == scaled.plan.fingerprint
    assert [chain.name for chain in plan.chains] == [chain.name for chain in scaled.plan.chains]
    # Records went from 3 subtasks to 1, and now go from 1 to 1: still by a channel.
    assert Partitioning.REBALANCE in {link.partitioning for link in plan.links}
    assert len(plan.channels(plan.links[-1])) == 1


def test_the_job_grows_to_what_it_has_asked_for_and_says_so():
    scaled = Scaled()
    scaled.lose(2)
    scaled.scaling.plans(None)
    scaled.scaling.began()
    assert scaled.scaling.grow({0: 1}, NEWEST) == "workers: 1 more can be started again"
    assert scaled.scaling.plans(NEWEST)[0].slots == 3
    scaled.scaling.began()
    scaled.scaling.grow({0: 1}, NEWEST)
    assert scaled.scaling.plans(NEWEST)[0] == scaled.plan
    assert scaled.reported == [
        (2, 4, "it exited", [2, 2, 1]),
        (3, 4, "1 more can be started again", [3, 3, 1]),
        (4, 4, "1 more can be started again", [4, 3, 1]),
    ]


def test_a_snapshot_that_does_not_fit_keeps_the_slots_and_the_reason_is_noted_once():
    scaled = Scaled()
    scaled.unfit = {3, 2, 1}
    assert scaled.lose() == 0.0
    assert scaled.scaling.plans(NEWEST)[0] == scaled.plan
    assert scaled.lose() is None, "the restart strategy decides"
    assert scaled.scaling.plans(NEWEST)[0] == scaled.plan
    reason = "it has records on a broadcast edge"
    assert scaled.events == [Note(f"the job cannot continue with 3 slots now: {reason}")]


def test_the_job_does_not_grow_while_its_newest_snapshot_does_not_fit():
    scaled = Scaled()
    scaled.lose()
    scaled.scaling.plans(None)
    scaled.scaling.began()
    scaled.unfit = {4}
    for _ in range(3):
        assert scaled.scaling.grow({0: 1}, NEWEST) is None
    scaled.unfit = set()
    assert scaled.scaling.grow({0: 1}, NEWEST) is not None
    assert [type(event) for event in scaled.events] == [SlotsChanged, Note]


def test_only_the_region_that_has_lost_a_slot_gets_smaller():
    scaled = Scaled(parts=2)
    scaled.lose(3, region=3)
    plan, (left, right) = scaled.scaling.plans(None)
    assert parallelisms(plan) == [4, 3, 1, 1, 1, 1]
    assert (left.slots, right.slots) == (4, 1)
    assert (scaled.scaling.missing(left), scaled.scaling.missing(right)) == (0, 3)
    assert left.running == (0, 1, 2) and right.running == (3, 4, 5)
    assert scaled.reported == [(5, 8, "it exited", [4, 3, 1, 1, 1, 1])]


def test_the_restart_strategy_decides_on_other_failures_and_without_the_setting():
    assert Scaled().scaling.restart_delay(WorkerLost("it was killed"), 0.0) is None
    assert Scaled(reactive=False).lose() is None
    assert Scaled().scaling.restart_delay(Rescaling("more"), 0.0) == 0.0


def test_on_spark_the_setting_has_no_effect_and_a_note_says_so():
    scaled = Scaled(together=True)
    assert scaled.lose() is None
    assert scaled.events == [
        Note("restart_reactive has no effect: Spark starts all workers together")
    ]
