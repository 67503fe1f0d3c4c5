"""A TaskManager: the worker process that runs one slot of a job.

It calls home to the JobManager, is given the job's code and one slot, builds and connects its
tasks, says that it is ready, and runs until the connection to the JobManager ends. It decides
nothing: what fails is reported, and the JobManager decides. One attempt per process: a restart
starts new ones, so nothing of an old attempt can be left in them.

Started by `child_command`, with a `WorkerSpec` on its input.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import astuple
from functools import partial
from pathlib import Path

import trio

from penstock.dataflow.errors import (
    JobError,
    PenstockError,
    ProtocolError,
)
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.job_process import running_as
from penstock.dataflow.source import Split
from penstock.runtime import codegen
from penstock.runtime.control import messages as m
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.failures import ConnectionLost, failure_message
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import AuthenticationError, client_handshake
from penstock.runtime.control.job_code import unpack
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.output_channel import Sender
from penstock.runtime.network.remote_channel import (
    ReceivingHalf,
    SendingHalf,
    decode_header,
    encode_header,
    run_half,
)
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.system.launcher import EXIT_JOBMANAGER_LOST, WorkerSpec
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files
from penstock.runtime.system.signal import Signal
from penstock.runtime.system.system import System
from penstock.runtime.task.background_work import drive
from penstock.runtime.task.barrier_priority import BarrierPriority
from penstock.runtime.task.log_replay import LogReplayer, RestoredLog
from penstock.runtime.task.task import Task
from penstock.runtime.task.task_snapshot import Acknowledgement, CheckpointResponder
from penstock.runtime.taskmanager.gc_tuning import Collector, memory
from penstock.runtime.taskmanager.task_factory import BuiltTask, TaskFactory
from penstock.runtime.user_code.breakpoints import refuse_breakpoints
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import is_user_error, user_traceback
from penstock.runtime.user_code.forks import watch_forks
from penstock.runtime.user_code.process_logging import LogAttributes, ProcessLogging
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.plain_values import NOT_PLAIN, require_plain
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.protocols.events import SnapshotKind

__all__ = ["TaskManager", "beat", "main"]

logger = logging.getLogger("penstock.taskmanager")

METRICS_SECONDS = 0.5
#: How long a worker that has lost its JobManager may take to end by itself.
GRACE_SECONDS = 0.5


class _TaskReporter(CheckpointResponder):
    """Reports a task's snapshots to the JobManager."""

    def __init__(
        self,
        chain: int,
        subtask: int,
        names: Mapping[str, str],
        send: Callable[[m.Message], None],
        last_words: Callable[[], None],
        codec: Codec,
    ) -> None:
        self._task = (chain, subtask)
        #: Of operators, by uid.
        self._names = names
        self._send = send
        self._last_words = last_words
        self._codec = codec

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        if acknowledgement.final:
            self._last_words()
        committables = [
            [c.lineage, c.uid, c.subtask, c.snapshot, c.attempt, c.payload]
            for c in acknowledgement.committables
        ]
        message = m.Acknowledge(
            *self._task,
            acknowledgement.number,
            [handle.to_wire() for handle in acknowledgement.handles],
            committables,
            acknowledgement.size.new,
            acknowledgement.size.linked,
            acknowledgement.aligned_seconds,
            acknowledgement.blocked_seconds,
            acknowledgement.write_seconds,
            acknowledgement.log_records,
            acknowledgement.log_bytes,
            None if acknowledgement.loop is None else [*astuple(acknowledgement.loop)],
            self._codec.written_types(),
        )
        try:
            self._send(message)
        except NOT_PLAIN:
            for c in acknowledgement.committables:
                require_plain("committable's payload", c.payload, self._names[c.uid])
            for handle in acknowledgement.handles:
                what = "list of splits with their positions"
                require_plain(what, handle.small, self._names[handle.uid])
            raise

    def decline(self, number: int, reason: str) -> None:
        self._send(m.Decline(*self._task, number, reason))


class TaskManager:
    """One worker.

    Arguments:
        spec: how to call home, and as whom.
        system: clock, connections and threads.
        watch: told now and then how many bytes of memory the process has.
        logs: the logging of the process; None leaves it alone.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        system: System,
        watch: Callable[[int], None] | None = None,
        logs: LogAttributes | None = None,
    ) -> None:
        self._spec = spec
        self._system = system
        self._watch = watch
        self._logs = logs
        self._admission = Admission(spec.token)
        self._outbox: deque[bytes] = deque()
        self._outgoing = Signal()
        self._built: list[BuiltTask] = []
        self._priority = BarrierPriority((), system.clock)
        self._tasks: dict[int, BuiltTask] = {}
        self._inputs: dict[ChannelId, InputChannel] = {}
        self._connected: set[ChannelId] = set()
        self._attached = Signal()
        self._inputs_ready = trio.Event()
        self._start = trio.Event()
        self._over = False

    async def run(self) -> None:
        """Work until the JobManager ends it or is gone."""
        spec = self._spec
        async with trio.open_nursery() as nursery:
            name = f"w{spec.worker}.{spec.attempt}"
            address = await self._system.transport.listen(name, self._serve, nursery)
            try:
                stream = await self._system.transport.connect(spec.address)
                home = await client_handshake(stream, spec.token)
            except (AuthenticationError, trio.BrokenResourceError, OSError):
                # The JobManager died while this worker started: nobody is left to be told.
                self._system.transport.close()
                nursery.cancel_scope.cancel()
                return
            if self._system.start_heartbeat is not None:
                self._system.start_heartbeat(spec)
            nursery.start_soon(self._write, home)
            self.send(m.Hello(spec.worker, spec.attempt, self._system.pid, address))
            try:
                await self._listen(home, nursery)
            except ProtocolError as error:
                # The JobManager reports that the connection was lost; this is the reason.
                print(f"worker {spec.worker} closed its connection: {error}", file=sys.stderr)
            except (trio.BrokenResourceError, OSError):
                pass  # the JobManager is gone, and nobody is left to be told
            self._over = True
            nursery.cancel_scope.cancel()
        self._system.transport.close()

    def send(self, message: m.Message) -> None:
        """Queue a message to the JobManager."""
        self._outbox.append(m.encode(message))
        self._outgoing.set()

    async def _write(self, home: Frames) -> None:
        try:
            while True:
                while self._outbox:
                    await home.send(self._outbox.popleft())
                await self._outgoing.wait()
        except (trio.BrokenResourceError, OSError):
            return  # the reading side ends the process

    async def _listen(self, home: Frames, nursery: trio.Nursery) -> None:
        while True:
            frame = await home.receive()
            if frame is None:
                return
            message = m.decode(frame)
            if isinstance(message, m.Shutdown):
                return
            try:
                self._handle(message, nursery)
            except BaseException as error:
                if not is_user_error(error):
                    raise
                # Of a task, such as what a sink raises at a barrier; or the message fits no task.
                self._fail(error, None)

    def _handle(self, message: m.Message, nursery: trio.Nursery) -> None:
        match message:
            case m.Deploy():
                nursery.start_soon(self._guard, partial(self._deploy, message, nursery))
            case m.Start():
                self._start.set()
            case m.SplitAssigned(chain, _, id, payload, position):
                self._tasks[chain].task.assign(Split(id, payload), position)
                self._wake(chain)
            case m.NoMoreSplits(chain, _):
                self._tasks[chain].task.no_more_splits()
                self._wake(chain)
            case m.Prepare(number, seconds):
                self._priority.announce(number, seconds)
                for built in self._built:
                    built.task.checkpoint_writer.prepare(number, seconds)
                    built.persist.set()
            case m.Inject(number, kind):
                for built in self._built:
                    if built.task.source_input is not None:
                        built.task.inject(number, SnapshotKind(kind))
                        built.wake.set()
            case m.Abort(number):
                for built in self._built:
                    built.task.abort(number)
                    built.wake.set()
            case m.Complete(number):
                for built in self._built:
                    built.task.complete(number)
                    built.wake.set()
            case m.EndInput(loop, round):
                for built in self._in_loop(loop):
                    built.task.end_input(round)
                    built.wake.set()
            case m.CloseLoop(loop):
                for built in self._in_loop(loop):
                    built.task.close_loop()
                    built.wake.set()
            case _:
                raise ProtocolError(f"a worker received a {type(message).__name__}")

    def _in_loop(self, loop: int) -> list[BuiltTask]:
        return [built for built in self._built if self._plan.loop_of(built.task.id[0]) == loop]

    def _wake(self, chain: int) -> None:
        self._tasks[chain].wake.set()
        self._tasks[chain].pump.set()

    # ---- deployment

    async def _deploy(self, deploy: m.Deploy, nursery: trio.Nursery) -> None:
        if deploy.attempt != self._spec.attempt:
            raise ProtocolError(f"deployment of attempt {deploy.attempt} to {self._spec.attempt}")
        code = unpack(deploy.code)
        if self._logs is not None:
            self._logs.configure(code.logging)
        logger.debug("received the code of attempt %d", deploy.ordinal + 1)
        code.plan = pickle.loads(deploy.plan)
        types = map(RecordSchema.from_wire, deploy.types)
        codec = Codec(TypeRegistry(code.types).extending(types))
        factory = TaskFactory(
            code,
            self._spec.worker,
            deploy.attempt,
            deploy.ordinal,
            deploy.lineage,
            Path(deploy.root),
            deploy.keep,
            self._system,
            codec,
        )
        if not factory.config.codegen:
            codegen.set_enabled(False)
        self._plan = factory.plan
        self._inputs = factory.prepare_inputs()
        self._admission.expect(len(deploy.addresses))
        outgoing = factory.outgoing()
        require_open_files(PROCESS_FILES + len(outgoing) + len(self._inputs))
        self._inputs_ready.set()
        senders: dict[ChannelId, Sender] = {}
        for id in outgoing:
            link = factory.plan.links[id.link]
            wake = factory.signals[link.source][0]
            stream = await self._system.transport.connect(deploy.addresses[id.target])
            frames = await client_handshake(stream, self._spec.token)
            await frames.send(encode_header(deploy.attempt, id))
            half = SendingHalf(frames, factory.config.channel_batches, wake.set)
            senders[id] = half
            nursery.start_soon(run_half, half, self._lost)
        subtask = self._spec.worker
        names = {info.uid: info.name for info in factory.plan.operators}
        self._built = factory.build(
            senders,
            self,
            lambda chain: _TaskReporter(
                chain, subtask, names, self.send, self._send_metrics, codec
            ),
            lambda chain: self.send(m.SplitWanted(chain, subtask)),
        )
        self._priority = BarrierPriority(self._built, self._system.clock)
        self._tasks = {built.task.id[0]: built for built in self._built}
        self._replays = LogReplayer(code, factory.plan, codec, subtask)
        for built in self._built:
            await self._guard(partial(self._open, built, deploy), built.task)
        if self._logs is not None:
            self._logs.adopt()  # functions may have configured logging
        logger.debug("opened the functions of %d tasks", len(self._built))
        remote = {id for id in self._inputs if id.source != subtask}
        while not remote <= self._connected:
            await self._attached.wait()
        self.send(m.Ready(subtask))
        await self._start.wait()
        logger.debug("processes records")
        for built in self._built:
            self._launch(built, nursery)
        nursery.start_soon(self._report_metrics)

    async def _open(self, built: BuiltTask, deploy: m.Deploy) -> None:
        task = built.task
        restored = deploy.handles.get(f"{task.id[0]}:{task.id[1]}", [])
        by_uid: dict[str, list[tuple[Path, OperatorHandle]]] = {}
        root = task.root.operator.context.uid
        logs: list[RestoredLog] = []
        for folder, wire, rescaled in restored:
            handle = OperatorHandle.from_wire(wire)
            by_uid.setdefault(handle.uid, []).append((Path(folder), handle))
            if handle.uid == root:
                logs += [RestoredLog(log, Path(folder), rescaled) for log in handle.logs]
        # Those with hooks may have been in another task than its first operator was.
        uids = (root, *task.end_of_input.hooked)
        told = [handle for uid in uids for _, handle in by_uid.get(uid, [])]
        if ended := [handle for handle in told if handle.ended]:
            task.end_of_input.restore(max(h.ended for h in ended), any(h.emitted for h in ended))
        if logs:
            batches = self._replays.replay(task.id[0], task.gate, logs)
            task.gate.replay(batches, sum(restored.log.size for restored in logs))
        for uid, backend in task.backends.items():
            keyed = [(folder, h.keyed) for folder, h in by_uid.get(uid, []) if h.keyed is not None]
            if keyed:
                await drive(backend.restore(keyed), self._system.offload, trio.lowlevel.checkpoint)
        if task.source_input is not None:
            for _, handle in by_uid.get(root, []):
                if handle.small is not None:
                    task.source_input.restore(handle.small)
        task.open()

    def _launch(self, built: BuiltTask, nursery: trio.Nursery) -> None:
        task = built.task
        nursery.start_soon(self._guard, partial(self._run_task, built), task)
        nursery.start_soon(self._guard, partial(self._run_checkpoint_writer, built), task)
        if task.source_input is not None and task.source_input.pumping:
            nursery.start_soon(self._guard, partial(self._run_pump, built, task.source_input), task)

    async def _run_task(self, built: BuiltTask) -> None:
        async def wait(until: float | None) -> None:
            if built.task.checkpoint_writer.has_work():
                built.persist.set()
            self._priority.reconsider()
            await built.wake.wait(until)

        async def pause() -> None:
            if built.task.checkpoint_writer.has_work():
                built.persist.set()
            await trio.lowlevel.checkpoint()
            await self._priority.yield_to_others(built)

        try:
            await built.task.run(wait, pause)
        finally:
            try:
                built.task.close()
            except PenstockError as error:
                if not self._over:
                    raise
                # The job has its result; nothing else would show an error of the user's `close`.
                # State may fail to close while an abandoned thread still writes it.
                if isinstance(error, JobError) and error.user_traceback:
                    print(f"after the job's end: {error}", file=sys.stderr)

    async def _run_pump(self, built: BuiltTask, source_input: SourceInput) -> None:
        # The threads that read inherit it.
        operator_at_work.set(built.task.root.operator.context)
        await source_input.pump(self._system.read or self._system.offload, built.pump.wait_for)

    async def _run_checkpoint_writer(self, built: BuiltTask) -> None:
        checkpoint_writer = built.task.checkpoint_writer
        while True:
            while checkpoint_writer.has_work():
                await checkpoint_writer.work(self._system.offload, trio.lowlevel.checkpoint)
                built.wake.set()  # it may have waited for memory
            await built.persist.wait()

    # ---- connections of other workers

    async def _serve(self, stream: trio.abc.Stream) -> None:
        frames = await self._admission.admit(stream)
        if frames is None:
            return
        try:
            header = await frames.receive()
            if header is None:
                return
            attempt, id = decode_header(header)
        except (ProtocolError, trio.BrokenResourceError, OSError):
            return  # a sender that lives reports that its connection was closed
        if attempt != self._spec.attempt:
            return  # from an older attempt: fenced off
        await self._inputs_ready.wait()
        channel = self._inputs.get(id)
        if channel is None or id in self._connected:
            return  # its sender reports that it was closed
        self._connected.add(id)
        self._attached.set()
        await self._guard(partial(run_half, ReceivingHalf(frames, channel), self._lost))

    def _lost(self, reason: str) -> None:
        # Most often the other worker has died, which the JobManager sees by itself and sooner;
        # the message is for when only the connection has.
        if not self._over:
            self._fail(ConnectionLost(reason), None)

    # ---- outcomes

    async def _guard(
        self, function: Callable[[], Awaitable[None]], task: Task | None = None
    ) -> None:
        try:
            await function()
        except BaseException as error:
            if not is_user_error(error):
                raise
            if isinstance(error, MemoryError) or not isinstance(error, Exception):
                # Of user code that no operator called, such as a module that is imported.
                text = f"the worker ended with {type(error).__name__}: {error}"
                error = JobError(text, user_traceback=user_traceback(error))
            self._fail(error, task)

    def _fail(self, error: BaseException, task: Task | None) -> None:
        if self._over:
            return
        chain, subtask = task.id if task is not None else (-1, self._spec.worker)
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.send(failure_message(chain, subtask, error))

    def input_ended(self, task: Task) -> None:
        """A task has processed all its input."""
        self.send(m.InputEnded(*task.id))

    def outside_ended(self, task: Task) -> None:
        """A task has processed all input from outside of its loop."""
        self.send(m.OutsideEnded(*task.id))

    async def _report_metrics(self) -> None:
        while True:
            self._send_metrics()
            await trio.sleep(METRICS_SECONDS)

    def _send_metrics(self) -> None:
        operators, tasks, back_edges = [], [], []
        for built in self._built:
            task = built.task
            for operator in task.operators:
                counts = [operator.records_in, operator.records_out]
                operators.append([operator.context.uid, task.id[1], *counts])
            queued = sum(len(channel) for channel in task.gate.channels.values())
            figures = [task.busy_seconds, task.blocked_seconds, queued, task.last_snapshot]
            tasks.append([*task.id, *figures])
            for id, edge in task.gate.back_edges.items():
                figures = [edge.queued_records, edge.spilled_bytes, edge.spilled_peak]
                back_edges.append([id.link, id.source, id.target, *figures])
        resident, peak = memory()
        self.send(m.Metrics(self._spec.worker, operators, tasks, back_edges, resident, peak))
        if self._watch is not None:
            self._watch(resident)


def beat(spec: WorkerSpec, over: threading.Event | None = None) -> None:
    """Start the thread that says that this process lives, on a connection of its own.

    It ends the process when the JobManager is gone: a task loop that computes for long would not
    notice before it is done, and a worker must not outlive its job.

    Arguments:
        spec: whom to tell.
        over: set when the worker has ended and its process lives on.
    """
    import select
    import socket

    from penstock.runtime.control.framing import send_blocking
    from penstock.runtime.control.handshake import client_handshake_blocking
    from penstock.runtime.system.unix_sockets import socket_name

    ended = over or threading.Event()

    def run() -> None:
        kind, _, rest = spec.address.partition(":")
        with contextlib.suppress(OSError, AuthenticationError):
            if kind == "unix":
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(socket_name(rest))
            else:
                host, _, port = rest.rpartition(":")
                connection = socket.create_connection((host, int(port)))
            with connection:
                client_handshake_blocking(connection, spec.token)
                arrival = select.poll()
                arrival.register(connection, select.POLLIN)
                # Nothing is ever sent back: what there is to read is the end.
                while not ended.is_set():
                    send_blocking(connection, m.encode(m.Heartbeat(spec.worker, spec.attempt)))
                    if arrival.poll(spec.heartbeat_seconds * 1000):
                        break
        # The loop, if it is free, ends the process in better order.
        if not ended.wait(GRACE_SECONDS):
            os._exit(EXIT_JOBMANAGER_LOST)

    threading.Thread(target=run, daemon=True, name="heartbeat").start()


def main() -> None:
    """Run one worker, as the WorkerSpec on standard input says."""
    import signal

    from penstock.runtime.system.system import real_system

    spec = WorkerSpec.from_wire(sys.stdin.buffer.read())
    # The JobManager ends its workers; signals meant for it or for a terminal do not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = spec.search_path
    sys.path[:] = [*given, *(path for path in sys.path if path not in given)]
    system = real_system(spec.host, beside=spec.address)
    system.start_heartbeat = beat
    # Threads run for what leaves the loop; with the default of 5 ms each of their few lines of
    # Python would hold the loop up for as long, and wait for it as long.
    sys.setswitchinterval(0.0005)
    code = 0
    try:
        watch_forks()
        refuse_breakpoints()
        logs = ProcessLogging(f"worker {spec.worker}", spec.worker)
        with running_as("a worker"), logs, Collector() as collector:
            trio.run(TaskManager(spec, system, collector.look, logs).run)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads blocked in a read must not hold up the end of the process.
    os._exit(code)
