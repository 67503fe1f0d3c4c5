"""Execute the JobManager's messages on the tasks of a slot. (Flink: `TaskSlot`.)"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.source import Split
from penstock.runtime.control import messages as m
from penstock.runtime.control.state_queries import CONFLICT
from penstock.runtime.network.step_logs import StepLogs
from penstock.runtime.system.processor import Processor
from penstock.runtime.task.edge_watch import EdgeWatch
from penstock.runtime.task.partial_batches import PartialBatches
from penstock.runtime.task.snapshots.barrier_priority import BarrierPriority
from penstock.runtime.taskmanager.task_runner import TaskRunner
from penstock.snapshot.protocols.events import SnapshotKind


class TaskSlot:
    """The tasks of one slot. The slot is empty until `deploy` is called.

    Arguments:
        clock: returns the time in seconds.
        processor: measures the processor time of the thread that runs the tasks.
    """

    def __init__(self, clock: Callable[[], float], processor: Processor) -> None:
        self._clock, self._processor = clock, processor
        self._tasks: dict[int, TaskRunner] = {}
        self._plan: ExecutionGraph | None = None
        self._step_logs: StepLogs | None = None
        self.priority = BarrierPriority((), clock)
        self.partial_batches = PartialBatches((), clock, processor, 0.0)

    def deploy(
        self,
        plan: ExecutionGraph,
        tasks: Sequence[TaskRunner],
        buffer_timeout: float,
        step_logs: StepLogs | None = None,
    ) -> None:
        """Set the tasks of the slot.

        Arguments:
            plan: the execution graph of the job.
            tasks: the runners of the tasks, one for each chain with a subtask in this slot.
            buffer_timeout: the time for which a record may wait in an output buffer, in seconds.
            step_logs: the logs of steps that the worker knows; None if no task logs its steps.
        """
        self._plan, self._step_logs = plan, step_logs
        self._tasks = {runner.task.id[0]: runner for runner in tasks}
        self.priority = BarrierPriority(tasks, self._clock)
        self.partial_batches = PartialBatches(tasks, self._clock, self._processor, buffer_timeout)

    def __iter__(self) -> Iterator[TaskRunner]:
        return iter(self._tasks.values())

    def execute(self, message: m.Message) -> None:
        """Execute a message of the JobManager on the tasks to which it is addressed.

        Raises:
            ProtocolError: if the message is not a command for tasks.
        """
        match message:
            case m.SplitAssigned(chain, _, id, payload, _):
                self._tasks[chain].task.assign(Split(id, payload))
                self._tasks[chain].wake_source()
            case m.NoMoreSplits(chain, _):
                self._tasks[chain].task.no_more_splits()
                self._tasks[chain].wake_source()
            case m.WatermarkLimit(chain, _, limit):
                self._tasks[chain].set_watermark_limit(limit)
            case m.Prepare(number, seconds):
                self.priority.announce(number, seconds)
                for runner in self:
                    runner.prepare(number, seconds)
            case m.Inject(number, kind):
                for runner in self:
                    if runner.is_source:
                        runner.task.inject(number, SnapshotKind(kind))
                        runner.wake()
                    else:
                        runner.expect_barrier(number)
            case m.Abort(number):
                for runner in self:
                    runner.task.snapshot_aborted(number)
                    runner.snapshot_over(number)
                    runner.wake()
            case m.Complete(number):
                for runner in self:
                    runner.task.snapshot_completed(number)
                    runner.snapshot_over(number)
                    runner.wake()
                if self._step_logs is not None:
                    self._step_logs.snapshot_completed(number)
            case m.EndInput(loop, round):
                for runner in self._in_loop(loop):
                    runner.task.end_input(round)
                    runner.wake()
            case m.CloseLoop(loop):
                for runner in self._in_loop(loop):
                    runner.task.close_loop()
                    runner.wake()
            case _:
                raise ProtocolError(f"a worker received a {type(message).__name__}")

    def senders_restart(
        self, workers: Collection[int], snapshot: int, caught_up: Callable[[], None]
    ) -> list[Any]:
        """Expect records again that tasks of other workers send again, and drop those processed.

        Arguments:
            workers: the indices of the workers, whose tasks restart.
            snapshot: the snapshot from which they restart; 0 for the beginning of the input.
            caught_up: called when all records are dropped that the tasks here have processed.

        Returns:
            A list of [chain, subtask, number of steps before, steps] of the tasks whose logs the
            worker knows; see `StepLogs.restart`.

        Raises:
            ProtocolError: if a channel cannot continue, or the log of a task.
        """
        assert self._plan is not None
        resumable = [channel for runner in self for channel in runner.task.gate.resumable.values()]
        mine = [one for one in resumable if self._plan.ends(one.id)[0] in workers]

        def caught_up_one() -> None:
            if not any(channel.repeated for channel in mine):
                caught_up()

        for channel in mine:
            channel.sender_restarts(snapshot, caught_up_one)
        caught_up_one()
        if self._step_logs is None:
            return []
        tasks = [task for worker in workers for task in self._plan.tasks_of(worker)]
        return self._step_logs.restart(tasks, snapshot)

    def read_state(self, query: m.ReadState, answer: Callable[[m.StateRead], None]) -> None:
        """Let a task answer a query of its state, between two batches.

        Arguments:
            query: the query.
            answer: called with the answer.
        """
        runner = self._tasks.get(query.chain)
        if runner is None:
            reason = "the job is about to start; ask again"
            place = query.chain, query.subtask, query.id
            answer(m.StateRead(*place, problem=CONFLICT, reason=reason))
            return
        runner.task.queries.ask(query, answer)
        runner.wake()

    def watch_edge(
        self, request: m.SampleRecords, wall_clock: Callable[[], int]
    ) -> EdgeWatch | None:
        """Look at records that a task sends over a link; return None if there is no task yet.

        Arguments:
            request: names the task and the link.
            wall_clock: returns the time in milliseconds since the epoch.
        """
        runner = self._tasks.get(request.chain)
        if runner is None:
            return None
        channels = [one for one in runner.task.outputs.channels if one.link == request.link]
        pause = request.seconds / request.limit
        return EdgeWatch(channels, request.limit, pause, self._clock, wall_clock)

    def _in_loop(self, loop: int) -> list[TaskRunner]:
        assert self._plan is not None
        return [runner for runner in self if self._plan.loop_of(runner.task.id[0]) == loop]
