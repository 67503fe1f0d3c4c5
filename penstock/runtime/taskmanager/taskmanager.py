"""The TaskManager, or worker: a process that runs the tasks of one slot.

The TaskManager connects to the JobManager, deploys the tasks of its slot and reports that they are
ready. Then it runs the tasks until the connection to the JobManager ends. It reports failures, and
the JobManager decides how to handle them. If the job is supervised and the JobManager dies, the
tasks continue, and the worker offers them to the next JobManager. A worker runs for one execution
attempt only. For the next attempt, new workers are started, so that no data of an old attempt
remains in them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import trio

from penstock.dataflow.errors import JobError, PenstockError, ProtocolError
from penstock.runtime import codegen
from penstock.runtime.control import messages as m
from penstock.runtime.control.failures import ConnectionLost, failure_message
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import AuthenticationError, client_handshake
from penstock.runtime.control.outbox import Outbox
from penstock.runtime.system.launcher import REJOIN_PAUSE_SECONDS, WorkerSpec
from penstock.runtime.system.limits import PROCESS_FILES, memory_limit, require_open_files
from penstock.runtime.system.system import System
from penstock.runtime.system.wall_clock import SteadyTimeOfDay
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.attempt_record import AttemptRecord
from penstock.runtime.taskmanager.channel_factory import ChannelFactory
from penstock.runtime.taskmanager.data_connections import DataConnections
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.taskmanager.reports import SnapshotReporter, metrics_report
from penstock.runtime.taskmanager.stack_sampler import sample_stacks
from penstock.runtime.taskmanager.state_restorer import StateRestorer
from penstock.runtime.taskmanager.task_factory import TaskFactory
from penstock.runtime.taskmanager.task_runner import TaskRunner
from penstock.runtime.taskmanager.task_slot import TaskSlot
from penstock.runtime.taskmanager.work_reports import WorkReports
from penstock.runtime.user_code.async_caller_factory import CallerFactory
from penstock.runtime.user_code.errors import is_user_error, user_traceback
from penstock.runtime.user_code.process_logging import LogAttributes
from penstock.runtime.user_code.python_environment import PythonEnvironment

logger = logging.getLogger("penstock.taskmanager")

METRICS_SECONDS = 0.5


class TaskManager:
    """Runs the tasks of one slot, and reports to the JobManager.

    Arguments:
        spec: the specification of the worker.
        system: provides clocks, connections and threads.
        memory_sampled: a function that is called at intervals, with the resident memory of the
            process in bytes.
        logs: configures the logging of the process; with None, logging is not changed.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        system: System,
        memory_sampled: Callable[[int], None] | None = None,
        logs: LogAttributes | None = None,
    ) -> None:
        self._spec = spec
        steady = SteadyTimeOfDay(system.wall_clock, system.clock)
        self._system = replace(system, wall_clock=steady)
        self._memory_sampled = memory_sampled
        self._logs = logs
        self._connections = DataConnections(spec, system.transport, self._connection_lost)
        self._slot = TaskSlot(system.clock, system.processor)
        self._outbox = Outbox()
        #: The facts that the next JobManager needs; None if the worker ends with its JobManager.
        self._record = None if spec.rejoin_address is None else AttemptRecord(spec)
        #: The scope in which the worker waits for the next JobManager; None while it has one.
        self._waiting: trio.CancelScope | None = None
        self._start = trio.Event()
        self._over = False
        #: The Python files of the job; None if it has none.
        self._environment: PythonEnvironment | None = None
        #: Creates the callers of asynchronous functions; None before the deployment.
        self._callers: CallerFactory | None = None
        #: Whether a thread samples the call stacks of this process.
        self._sampling = False
        #: Reports the work of the tasks; None if the job does not look for slow tasks.
        self._work: WorkReports | None = None

    async def run(self) -> None:
        """Run the worker until the JobManager shuts it down or the connection ends."""
        try:
            await self._run()
        finally:
            if self._callers is not None:
                self._callers.close()
            if self._environment is not None:
                self._environment.leave(worker=True)

    async def _run(self) -> None:
        spec = self._spec
        async with trio.open_nursery() as nursery:
            name = f"w{spec.worker}.{spec.attempt}"
            address = await self._system.transport.listen(name, self._accept, nursery)
            try:
                stream = await self._system.transport.connect(spec.address)
                jobmanager = await client_handshake(stream, spec.token)
            except (AuthenticationError, trio.BrokenResourceError, OSError):
                # The JobManager ended while this worker started, so no report can be sent.
                self._system.transport.close()
                nursery.cancel_scope.cancel()
                return
            if self._system.start_heartbeat is not None:
                self._system.start_heartbeat(spec)
            self.send(m.Hello(spec.worker, spec.attempt, self._system.pid, address))
            following: Frames | None = jobmanager
            while following is not None:
                lost = await self._obey(following, nursery)
                following = await self._rejoin(address) if lost else None
            self._over = True
            nursery.cancel_scope.cancel()
        self._system.transport.close()

    # ---- the connection to the JobManager

    def send(self, message: m.Message) -> None:
        """Add a message to the queue of messages that are sent to the JobManager.

        While there is no JobManager, the message is only recorded.
        """
        if self._record is not None:
            self._record.sent(message)
        if self._waiting is None:
            self._outbox.put(m.encode(message))
        elif isinstance(message, m.Failed):
            self._waiting.cancel()

    async def _obey(self, jobmanager: Frames, nursery: trio.Nursery) -> bool:
        """Exchange messages with a JobManager until it shuts the worker down.

        Returns:
            Whether the connection was lost instead.
        """
        lost = False
        async with trio.open_nursery() as session:
            session.start_soon(self._outbox.write, jobmanager)
            try:
                lost = await self._read(jobmanager, nursery)
            except ProtocolError as error:
                # The JobManager reports only a lost connection, so the reason is printed here.
                print(f"worker {self._spec.worker} closed its connection: {error}", file=sys.stderr)
            except (trio.BrokenResourceError, OSError):
                lost = True  # the JobManager has ended, so no report can be sent
            session.cancel_scope.cancel()
        return lost

    async def _rejoin(self, address: str) -> Frames | None:
        """Offer the tasks to the next JobManager, and return the connection to it.

        The tasks continue meanwhile. Return None if the worker must end.
        """
        record, spec = self._record, self._spec
        if record is None or spec.rejoin_address is None or record.failed:
            return None
        with trio.move_on_after(spec.rejoin_seconds) as self._waiting:
            while True:
                try:
                    stream = await self._system.transport.connect(spec.rejoin_address)
                except OSError:
                    return None  # the supervisor is gone, or has given the job up
                try:
                    # The kernel keeps the connection until the next JobManager accepts it.
                    jobmanager = await client_handshake(stream, spec.rejoin_token)
                except (AuthenticationError, trio.BrokenResourceError, OSError):
                    await stream.aclose()
                    await trio.sleep(REJOIN_PAUSE_SECONDS)  # that JobManager has died, too
                    continue
                # All messages after the offer are queued behind it.
                self._outbox, self._waiting = Outbox(), None
                self.send(record.offer(self._system.pid, address))
                return jobmanager
        return None

    async def _read(self, jobmanager: Frames, nursery: trio.Nursery) -> bool:
        """Execute the messages of a JobManager, and return whether its connection was lost."""
        while True:
            frame = await jobmanager.receive()
            if frame is None:
                return True
            message = m.decode(frame)
            if isinstance(message, m.Shutdown):
                return False
            if self._record is not None:
                self._record.received(message)
            try:
                self._handle(message, nursery)
            except BaseException as error:
                if not is_user_error(error):
                    raise
                # Either the message is invalid, or user code of a task has failed while the message
                # was executed. An example is a sink that fails at a barrier.
                self._fail(error, None)

    def _handle(self, message: m.Message, nursery: trio.Nursery) -> None:
        match message:
            case m.Deploy():
                nursery.start_soon(self._guard, partial(self._deploy, message, nursery))
            case m.Start():
                self._start.set()
            case m.ReadState():
                self._slot.read_state(message, self.send)
            case m.SampleRecords():
                nursery.start_soon(self._sample_records, message)
            case m.ReplaceSenders(workers, attempt, snapshot):
                self._connections.replace(workers, attempt)
                caught_up = partial(self.send, m.CaughtUp(self._spec.worker))
                steps = self._slot.senders_restart(workers, snapshot, caught_up)
                self.send(m.SendersReplaced(self._spec.worker, steps))
            case m.SampleStacks():
                if not self._sampling:
                    self._sampling = True
                    nursery.start_soon(self._sample_stacks)
            case _:
                self._slot.execute(message)

    # ---- the tasks

    async def _deploy(self, deploy: m.Deploy, nursery: trio.Nursery) -> None:
        """Create, connect, restore and run the tasks of the slot."""
        if deploy.attempt != self._spec.attempt:
            raise ProtocolError(f"deployment of attempt {deploy.attempt} to {self._spec.attempt}")
        if deploy.python_files:
            # Before the code is unpickled, since it refers to the modules in these files.
            enter = partial(PythonEnvironment.enter, deploy.python_files, worker=True)
            # If the job is cancelled meanwhile, the environment must still be left.
            with trio.CancelScope(shield=True):
                self._environment = await self._system.offload(enter)
        descriptor = DeploymentDescriptor.unpack(deploy, self._spec.worker)
        if self._logs is not None:
            self._logs.configure(descriptor.code.logging)
        logger.debug("received the code of attempt %d", deploy.ordinal + 1)
        if not descriptor.config.codegen:
            codegen.set_enabled(False)
        channels = ChannelFactory(descriptor, self._system)
        inputs, outputs = channels.create_inputs(), channels.remote_outputs()
        senders = self._connections.expect(
            inputs,
            outputs,
            descriptor.plan.ends,
            descriptor.config.channel_batches,
            len(deploy.addresses),
        )
        require_open_files(PROCESS_FILES + self._connections.count)
        await self._connections.open(deploy.addresses, deploy.running, nursery)
        callers = self._callers = CallerFactory(nursery, self._system.read or self._system.offload)
        repeated = partial(self.send, m.CaughtUp(self._spec.worker))
        tasks = TaskFactory(descriptor, self._system, channels, callers, repeated).create_tasks(
            senders,
            self,
            partial(self._snapshot_reporter, descriptor),
            lambda chain: self.send(m.SplitWanted(chain, descriptor.subtask)),
        )
        buffer_timeout = descriptor.config.buffer_timeout_seconds
        self._slot.deploy(descriptor.plan, tasks, buffer_timeout, channels.step_logs)
        if descriptor.config.straggler_window_seconds and descriptor.plan.slots > 1:
            self._work = WorkReports(self._system.clock, self._system.process_figures)
        restorer = StateRestorer(descriptor, self._system.offload)
        for runner in tasks:
            await self._guard(partial(self._open, runner.task, restorer), runner.task)
        if self._logs is not None:
            self._logs.adopt()  # the user's functions may have changed the logging configuration
        logger.debug("opened the functions of %d tasks", len(tasks))
        await self._connections.wait_for_all()
        self.send(m.Ready(descriptor.slot))
        await self._start.wait()
        logger.debug("processes records")
        for runner in tasks:
            self._launch(runner, nursery)
        nursery.start_soon(self._report_metrics)

    def _snapshot_reporter(self, descriptor: DeploymentDescriptor, chain: int) -> SnapshotReporter:
        return SnapshotReporter(
            (chain, descriptor.subtask),
            {info.uid: info.name for info in descriptor.plan.operators},
            descriptor.codec,
            self.send,
            self._send_metrics,
        )

    @staticmethod
    async def _open(task: Task, restorer: StateRestorer) -> None:
        await restorer.restore(task)
        task.open()
        restorer.require_all_states(task)

    def _launch(self, runner: TaskRunner, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._guard, partial(self._process, runner), runner.task)
        nursery.start_soon(self._guard, runner.write_snapshots, runner.task)
        if runner.alignment_seconds is not None:
            nursery.start_soon(self._report_watermark, runner, runner.alignment_seconds)
        if runner.reads_in_threads:
            nursery.start_soon(self._guard, runner.read_source, runner.task)

    async def _process(self, runner: TaskRunner) -> None:
        try:
            await runner.process(self._slot.priority, self._slot.partial_batches)
        except Exception:
            if not self._over:
                # The report of a failed job has what it has counted. If that fails, too, the error
                # of the task is the one to report.
                with suppress(Exception):
                    self._send_metrics()
            raise
        finally:
            try:
                runner.task.close()
            except PenstockError as error:
                if not self._over:
                    raise
                # The job has ended, so an error of the user's `close` can only be printed. Other
                # errors are ignored. For example, closing a state fails while a thread writes it.
                if isinstance(error, JobError) and error.user_traceback:
                    print(f"after the job's end: {error}", file=sys.stderr)

    def input_ended(self, task: Task) -> None:
        """Report to the JobManager that a task has processed all its input."""
        self.send(m.InputEnded(*task.id))

    def outside_ended(self, task: Task) -> None:
        """Report that a task has processed all input from outside of its loop."""
        self.send(m.OutsideEnded(*task.id))

    # ---- connections of other workers

    async def _accept(self, stream: trio.abc.Stream) -> None:
        serve = await self._connections.accept(stream)
        if serve is not None:
            await self._guard(serve)

    def _connection_lost(self, reason: str) -> None:
        # Usually the other worker has ended, which the JobManager notices without this report. The
        # report is needed if the connection breaks while both workers are running.
        if not self._over:
            self._fail(ConnectionLost(reason), None)

    # ---- failures and metrics

    async def _guard(
        self, function: Callable[[], Awaitable[None]], task: Task | None = None
    ) -> None:
        """Run a function, and report errors of user code to the JobManager.

        Errors in the user's environment are also reported, such as a full disk. All other errors
        are raised.
        """
        try:
            await function()
        except BaseException as error:
            if not is_user_error(error):
                raise
            if isinstance(error, MemoryError) or not isinstance(error, Exception):
                # The error was raised outside of operators, for example in a module of the user.
                text = f"the worker ended with {type(error).__name__}: {error}"
                if isinstance(error, MemoryError) and (limit := memory_limit()) is not None:
                    text += f"; {limit}"
                error = JobError(text, user_traceback=user_traceback(error))
            self._fail(error, task)

    def _fail(self, error: BaseException, task: Task | None) -> None:
        if self._over:
            return
        chain, subtask = task.id if task is not None else (-1, self._spec.worker)
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.send(failure_message(chain, subtask, error))

    async def _report_watermark(self, runner: TaskRunner, seconds: float) -> None:
        """Report the watermark of a source whose watermark group is aligned, until cancelled."""
        while True:
            watermark = runner.aligned_watermark()
            if watermark is not None:
                self.send(m.SourceWatermark(*runner.task.id, watermark))
            await trio.sleep(seconds)

    async def _sample_stacks(self) -> None:
        try:
            # A worker that ends does not wait for the thread.
            sampled = await (self._system.read or self._system.offload)(sample_stacks)
        finally:
            self._sampling = False
        self.send(m.StacksSampled(self._spec.worker, self._system.pid, *sampled))

    async def _sample_records(self, request: m.SampleRecords) -> None:
        seen, records = 0, []
        watch = self._slot.watch_edge(request, self._system.wall_clock)
        if watch is not None:
            try:
                await trio.sleep(request.seconds)
            finally:
                watch.close()
            seen, records = watch.seen, watch.records
        self.send(m.RecordsSampled(request.chain, request.subtask, request.id, seen, records))

    async def _report_metrics(self) -> None:
        while True:
            self._send_metrics()
            await trio.sleep(METRICS_SECONDS)

    def _send_metrics(self) -> None:
        metrics = metrics_report(self._spec.worker, self._slot, self._work)
        self.send(metrics)
        if self._memory_sampled is not None:
            self._memory_sampled(metrics.rss)
