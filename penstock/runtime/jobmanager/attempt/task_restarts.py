"""Restart single tasks of a running region, while the other tasks keep their state.

A failed task restarts with the tasks upstream of it, from the newest snapshot
(`penstock.dataflow.graph.partial_restart`). Each of them has a worker of its own, so new workers
take the place of theirs, as after any failure. The others only get new connections: they drop the
records that they have processed, and then continue.

No snapshot is taken meanwhile. The barriers of a restarted source are behind records that others
have processed already, until these records are dropped. So snapshots continue after that.

A task whose output depends on more than on its records repeats its steps. The others know them
(`penstock.runtime.network.step_logs`).

If the tasks cannot restart alone, or fail again meanwhile, the region fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError
from penstock.dataflow.graph.partial_restart import PartialRestarts, Task
from penstock.runtime.control import messages as m
from penstock.runtime.control.failures import ConnectionLost
from penstock.runtime.jobmanager.attempt.attempt_loop import ATTRIBUTION_SECONDS
from penstock.runtime.jobmanager.attempt.checkpoint_driver import CheckpointDriver
from penstock.runtime.jobmanager.attempt.deployment import Deployment
from penstock.runtime.jobmanager.attempt.region import Region
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost
from penstock.runtime.jobmanager.reporting.job_events import JobEvent, Note
from penstock.runtime.jobmanager.reporting.metric_reports import MetricReports
from penstock.runtime.jobmanager.snapshots.pending_commits import sinks_of
from penstock.runtime.jobmanager.snapshots.restored_snapshot import assigned_splits
from penstock.runtime.system.signal import Signal
from penstock.snapshot.coordination.loop_termination import TasksRestart


@dataclass(frozen=True)
class RestartedTasks:
    """The tasks of a region that restart together.

    Arguments:
        deployment: the deployment with which the region runs.
        tasks: the tasks.
        attempts: the number of the attempt that has failed, for each of them.
    """

    deployment: Deployment
    tasks: frozenset[Task]
    attempts: dict[Task, int]

    @property
    def uids(self) -> frozenset[str]:
        """Return the uids of the operators of the tasks."""
        chains = {chain for chain, _ in self.tasks}
        plan = self.deployment.plan
        return frozenset(node.operator.uid for one in chains for node in plan.chains[one].walk())

    @property
    def name(self) -> str:
        """Return how reports name the tasks."""
        count = len(self.deployment.plan.tasks())
        return f"{self.deployment.region}, {len(self.tasks)} of {count} tasks"


#: Decides on the restart of some tasks, given their failure. It waits until they may start, and
#: returns their deployment and the snapshot numbers to use from then on. It raises a
#: `PenstockError` if the region must fail.
RestartTasks = Callable[[RestartedTasks, PenstockError], Awaitable[tuple[Deployment, range]]]
#: Called when restarted tasks have sent all records that others had processed.
TasksRun = Callable[[RestartedTasks, Deployment, range], None]


@dataclass
class _Replacement:
    """New workers that take the place of others.

    Arguments:
        tasks: the tasks that restart.
        slots, others: the slots of their workers, and those of the workers that continue.
        addresses: the addresses of all workers; empty until the new ones have connected.
        opened: whether the tasks of the new workers are open.
        replaced: the slots among `others` that wait for the new workers.
        steps: for each task whose log tasks of `others` know, the number of steps before the
            snapshot, and the steps that it repeats because the others depend on them.
        caught_up: the slots among `others` that have dropped all records that they had processed,
            and those whose tasks have repeated all their steps.
        changed: set when one of these has changed.
    """

    tasks: RestartedTasks
    slots: frozenset[int]
    others: frozenset[int]
    addresses: list[str] = field(default_factory=list)
    opened: bool = False
    replaced: set[int] = field(default_factory=set)
    steps: dict[Task, list[Any]] = field(default_factory=dict)
    caught_up: set[int] = field(default_factory=set)
    changed: Signal = field(default_factory=Signal)


class TaskRestarts:
    """Handles the failures of the workers and tasks of a region.

    In an execution graph that is not isolated, each failure is one of the region.

    Arguments:
        deployment: the deployment of the region.
        region: the region.
        checkpoints: drives the snapshots.
        reports: takes in the metrics of the tasks.
        lost: called when tasks are lost, before they restart.
        observe: called with each event.
    """

    def __init__(
        self,
        deployment: Deployment,
        region: Region,
        checkpoints: CheckpointDriver,
        reports: MetricReports,
        lost: Callable[[], None],
        observe: Callable[[JobEvent], None],
    ) -> None:
        self._deployment, self._region = deployment, region
        self._plan, self._workers, self._loop = deployment.plan, region.workers, region.loop
        self._checkpoints, self._reports = checkpoints, reports
        self._lost, self._observe = lost, observe
        self._graph: PartialRestarts
        #: Decides on restarts; None while the tasks do not run, and after a failure of the region.
        self._restart: RestartTasks | None = None
        self._launched: Callable[[], None] = lambda: None
        self._run: TasksRun = lambda *_: None
        self._replacement: _Replacement | None = None
        #: The number of restarts.
        self._count = 0
        #: The attempt of each task that has restarted.
        self.attempts: dict[Task, int] = {}

    def begin(self, launched: Callable[[], None], restart: RestartTasks, run: TasksRun) -> None:
        """Let single tasks restart from now on, if the execution graph is isolated.

        Arguments:
            launched: called when the new workers of restarted tasks were launched.
            restart: called when tasks have failed that can restart alone.
            run: called when restarted tasks have sent all records that others had processed.
        """
        if self._plan.isolated:
            self._graph = PartialRestarts(self._plan)
            self._launched, self._restart, self._run = launched, restart, run

    # ---- failures

    def failed(self, slot: int, error: PenstockError) -> None:
        """Handle the failure of a task or of a worker in a slot."""
        replacement = self._replacement
        if self._restart is None:
            self._give_up(error)
        elif isinstance(error, ConnectionLost) or _is_disconnected(error):
            expected = replacement is not None and slot in replacement.others - replacement.replaced
            if not expected:
                self._loop.spawn(self._wait_for_cause, slot, error, self._count)
        elif replacement is not None:
            self._give_up(error)
        else:
            self._begin(slot, error)

    async def _wait_for_cause(self, slot: int, error: PenstockError, count: int) -> None:
        """Handle a broken connection if no worker has died that has caused it."""
        await trio.sleep(ATTRIBUTION_SECONDS)
        self._loop.post(partial(self._without_cause, slot, error, count))

    def _without_cause(self, slot: int, error: PenstockError, count: int) -> None:
        if count == self._count:
            if isinstance(error, WorkerLost) and self._restart and self._replacement is None:
                self._begin(slot, error)
            else:
                self._give_up(error)

    def _give_up(self, error: PenstockError) -> None:
        self._restart = None
        self._loop.fail(error)

    def _begin(self, slot: int, error: PenstockError) -> None:
        """Restart the tasks of a slot, or fail if they cannot restart alone."""
        assert self._restart is not None
        tasks = self._graph.with_upstream(self._plan.tasks_of(slot))
        reason = self._why_not(tasks)
        if reason is not None:
            text = "more restarts than the failed task and those upstream of it"
            self._observe(Note(f"{text}: {reason}"))
            self._give_up(error)
            return
        self._count += 1
        slots = frozenset(self._plan.slot_of(*task) for task in tasks)
        attempts = {task: self.attempts.get(task, self._deployment.number) for task in tasks}
        replacement = self._replacement = _Replacement(
            RestartedTasks(self._deployment, tasks, attempts),
            slots,
            frozenset(range(self._plan.slots)) - slots,
        )
        self._checkpoints.tasks_lost(tasks)
        self._lost()
        self._loop.spawn(self._replace, replacement, self._restart, error)

    # ---- what can restart

    def _why_not(self, tasks: frozenset[Task]) -> str | None:
        """Return why some tasks cannot restart alone; None if they can."""
        if (reason := self._graph.why_not(tasks)) is not None:
            return reason
        if ended := tasks & self._checkpoints.ended:
            return f"{len(ended)} of the tasks to restart have read all their input"
        if self._region.feedback_loops.is_ending(tasks):
            return "a task to restart is in a loop that is about to end"
        if (sink := self._open_sink(tasks)) is not None:
            return f"{sink} must abort the transactions of all its subtasks"
        if (source := self._source_in_turns(tasks)) is not None:
            return f"a task of {source} reads several splits in turns"
        return None

    def _open_sink(self, tasks: Iterable[Task]) -> str | None:
        """Return the name of a sink in some tasks whose killed writers leave output open."""
        sinks = sinks_of(self._deployment.code, self._plan)
        for chain in {chain for chain, _ in tasks}:
            for node in self._plan.chains[chain].walk():
                sink = sinks.get(node.operator.uid)
                if sink is not None and sink.leaves_open:
                    return node.operator.name
        return None

    def _source_in_turns(self, tasks: frozenset[Task]) -> str | None:
        """Return the name of a source that may read its splits in another order after a restart.

        A task reads its open splits in turns, and the turns depend on when each has records. These
        splits are all that it has got if the source reads them in turns; otherwise those that a
        snapshot from before this attempt had begun. A task that logs its reads repeats them.
        """
        restored = self._deployment.restored
        for chain, subtask in self._graph.sends_again(tasks):
            if chain in self._plan.logged:
                continue
            info = self._plan.chains[chain].root.operator
            splits: list[Any] = []
            if restored is not None:
                splits = assigned_splits(restored.manifest, info.uid, info.parallelism)[subtask]
            if info.reads_in_turns:
                count = len(splits) + self._region.splits.given[chain, subtask]
            else:
                count = sum(position is not None for _, _, position in splits)
            if count > 1:
                return info.name
        return None

    # ---- the restart

    async def _replace(
        self, replacement: _Replacement, restart: RestartTasks, error: PenstockError
    ) -> None:
        """Restart tasks on new workers."""
        try:
            await self._workers.end(replacement.slots)
            # A snapshot that all tasks have acknowledged is the one to restart from.
            await self._checkpoints.settled()
            deployment, numbers = await restart(replacement.tasks, error)
            await self._start(replacement, deployment)
        except PenstockError as failure:
            self._loop.post(partial(self._give_up, failure))
        except OSError as fault:
            unstarted = PenstockError(f"the workers cannot be run here: {fault}")
            unstarted.__cause__ = fault
            self._loop.post(partial(self._give_up, unstarted))
        else:
            self._loop.post(partial(self._returned, replacement, deployment, numbers))

    async def _start(self, replacement: _Replacement, deployment: Deployment) -> None:
        """Start new workers, and wait until the others have dropped what they have processed."""
        workers, tasks = self._workers, replacement.tasks.tasks
        slots, others = sorted(replacement.slots), replacement.others
        wait_for = replacement.changed.wait_for
        snapshot = 0 if deployment.restored is None else deployment.restored.manifest.number
        self._region.feedback_loops.handle(TasksRestart(tasks))
        await workers.replace(slots, deployment)
        self._launched()
        for slot in others:
            workers.send(slot, m.ReplaceSenders(slots, deployment.number, snapshot))
        # The others refuse the connections of the new workers before they have the order.
        await wait_for(lambda: bool(replacement.addresses) and others <= replacement.replaced)
        self._reports.begin_attempt(self._plan, tasks)
        steps = replacement.steps
        orders = deployment.messages(replacement.addresses, sorted(others), steps)
        for slot in slots:
            workers.send(slot, orders[slot])
        await wait_for(lambda: replacement.opened)
        await self._region.splits.repeat_for(tasks, snapshot)
        for slot in slots:
            workers.send(slot, m.Start())
        behind = others | {self._plan.slot_of(*task) for task, (_, left) in steps.items() if left}
        seconds = deployment.config.checkpoint_timeout_seconds
        await wait_for(lambda: behind <= replacement.caught_up, trio.current_time() + seconds)
        if not behind <= replacement.caught_up:
            raise PenstockError(
                f"restarted tasks have not sent all their records again within {seconds:g} s"
            )

    def _returned(self, replacement: _Replacement, deployment: Deployment, numbers: range) -> None:
        """Record that restarted tasks have sent all records that others had processed."""
        tasks = replacement.tasks
        self._replacement = None
        self.attempts |= dict.fromkeys(tasks.tasks, deployment.number)
        self._checkpoints.tasks_returned(tasks.tasks, numbers)
        self._run(tasks, deployment, numbers)

    # ---- messages of workers during a restart

    def connected(self, addresses: list[str]) -> bool:
        """Record the addresses of all workers. Return False if no task restarts."""
        if self._replacement is None:
            return False
        self._replacement.addresses = addresses
        self._replacement.changed.set()
        return True

    def ready(self) -> bool:
        """Record that the tasks of all workers are open. Return False if no task restarts."""
        if self._replacement is None:
            return False
        self._replacement.opened = True
        self._replacement.changed.set()
        return True

    def replaced(self, slot: int, steps: list[Any]) -> None:
        """Record that the worker in a slot waits for connections of new workers.

        Arguments:
            slot: the slot.
            steps: what the worker knows of the steps of the tasks that restart.
        """
        if self._replacement is not None:
            longest = self._replacement.steps
            for chain, subtask, first, known in steps:
                # All logs of a task have the same beginning.
                _, before = longest.get((chain, subtask), (first, []))
                if len(known) >= len(before):
                    longest[chain, subtask] = [first, known]
        self._add(slot, lambda replacement: replacement.replaced)

    def caught_up(self, slot: int) -> None:
        """Record that the worker in a slot does what it did before the restart."""
        self._add(slot, lambda replacement: replacement.caught_up)

    def _add(self, slot: int, to: Callable[[_Replacement], set[int]]) -> None:
        if self._replacement is not None:
            to(self._replacement).add(slot)
            self._replacement.changed.set()


def _is_disconnected(error: PenstockError) -> bool:
    """Return whether only the end of a worker's connection is known."""
    return isinstance(error, WorkerLost) and error.disconnected
