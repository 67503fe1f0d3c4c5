"""Start the workers of an attempt on Spark, as the tasks of one barrier stage.

This is the driver's side; `stage_worker` is the executors'. Spark places the tasks, starts all of
them or none, and ends all of them when one ends. The stage is the result stage of a `collect()`
in a thread of its own, because Spark never retries such a stage. Retries are left to the job's
restart strategy, which starts a new stage.

Each task first connects to the driver. It sends its process id, and then what it prints. All else
passes between the TaskManagers and the JobManager, as it does on one machine.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from penstock.dataflow.errors import JobError, PenstockError
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.packing import build, unpack
from penstock.runtime.spark.live_session import LiveSession
from penstock.runtime.spark.preflight import await_slots, message_of
from penstock.runtime.spark.stage_worker import ROW, StagePlan, worker_function
from penstock.runtime.system.launcher import WorkerHandle, WorkerSpec
from penstock.runtime.system.transport import Transport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BarrierStageLauncher"]

#: The time within which all tasks of a stage must start, in seconds, once there are enough slots.
START_SECONDS = 60.0
#: The longest wait for Spark to end the stage of an attempt that has ended, in seconds.
END_SECONDS = 30.0


class BarrierStageLauncher:
    """A `Launcher` that starts all workers of an attempt at once.

    The attempt launches its workers one after the other. The last of these calls starts the stage
    and returns when all its tasks run.

    Arguments:
        session: the Spark session.
        checked: the session whose executors are known to have what workers need.
        check: checks the executors of another session; blocks.
        slots: the number of workers of an attempt.
        name: the name of the job, for the pages of Spark's web interface.
        transport: listens for the tasks' connections.
        offload: runs blocking calls off the event loop.
    """

    def __init__(
        self,
        session: LiveSession,
        checked: SparkSession,
        check: Callable[[SparkSession], None],
        slots: int,
        name: str,
        transport: Transport,
        offload: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._session = session
        self._checked = checked
        self._check = check
        self._slots = slots
        self._name = name
        self._transport = transport
        self._offload = offload
        self._address = ""
        self._stage: _BarrierStage | None = None

    async def listen(self, nursery: trio.Nursery) -> None:
        """Serve the tasks' connections in `nursery`; call it before `launch`."""
        self._address = await self._transport.listen("stage", self._serve, nursery)

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Add a worker to the stage, and start the stage with the last one."""
        if self._stage is None or self._stage.attempt != spec.attempt:
            await self.end()
            self._stage = _BarrierStage(spec.attempt, self._slots)
        stage = self._stage
        worker = stage.add(spec)
        if stage.complete:
            try:
                await self._start(stage)
            except BaseException:
                stage.cancel()
                raise
        return worker

    async def end(self) -> None:
        """Cancel the stage, if there is one, and wait until it has ended."""
        stage = self._stage
        if stage is not None:
            stage.cancel()
            with trio.move_on_after(END_SECONDS) as scope:
                scope.shield = True
                await stage.ended.wait()

    async def _start(self, stage: _BarrierStage) -> None:
        spark = await self._offload(self._session.get)
        await await_slots(spark, self._slots)
        if spark is not self._checked:
            # The packages sent to the executors of the old session are gone with it.
            await self._offload(partial(self._check, spark))
            self._checked = spark
        stage.submit(spark, self._address, self._name)
        with trio.move_on_after(START_SECONDS):
            await stage.wait_until_started()
        if stage.ended.is_set():
            raise JobError(f"the workers could not be started: their {stage.outcome}")
        if late := stage.not_started:
            raise JobError(
                f"{late} of {self._slots} workers have not started within {START_SECONDS:g} s: "
                f"their slots may be taken by other work on this Spark cluster"
            )

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Serve the connection of one task: its registration, then its output."""
        stage = self._stage
        if stage is None:
            return
        # The token of the stage keeps out tasks of older stages, which have another token.
        frames = await stage.admission.admit(stream)
        if frames is None:
            return
        with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
            hello = await frames.receive()
            if hello is None or not stage.register(build(_Registration, unpack(hello))):
                return
            await frames.send(b"go")
            while (frame := await frames.receive()) is not None:
                await self._offload(partial(_print, build(_Output, unpack(frame))))


@dataclass(frozen=True)
class _Registration:
    """The first frame of a task's connection."""

    slot: int
    pid: int
    host: str


@dataclass(frozen=True)
class _Output:
    """Bytes that a task has written to its file descriptor `number`, 1 or 2."""

    number: int
    data: bytes


def _print(output: _Output) -> None:
    stream = sys.stdout if output.number == 1 else sys.stderr
    stream.write(output.data.decode(errors="replace"))
    stream.flush()


class _StageWorker:
    """A worker that is a task of the stage; a `WorkerHandle`."""

    def __init__(self, stage: _BarrierStage, spec: WorkerSpec) -> None:
        self.spec = spec
        self.pid = 0
        self._host = ""
        self._stage = stage

    def started(self, pid: int, host: str) -> None:
        """Record the process that the task runs in."""
        self.pid, self._host = pid, host

    async def wait(self) -> str:
        """Wait until the stage has ended, and return a text that says how it ended."""
        await self._stage.ended.wait()
        return f"on {self._host}: its {self._stage.outcome}"

    def kill(self) -> None:
        """Cancel the stage."""
        self._stage.cancel()


class _BarrierStage:
    """One barrier stage, and the thread that waits for it.

    Arguments:
        attempt: the number of the execution attempt.
        slots: number of its workers.
    """

    def __init__(self, attempt: int, slots: int) -> None:
        self.attempt = attempt
        #: Set when the stage is over; `outcome` describes how it ended, or its present state.
        self.ended = trio.Event()
        self.outcome = "Spark stage was not started"
        self._token = secrets.token_bytes(32)
        self.admission = Admission(self._token)
        self.admission.expect(slots)
        self._slots = slots
        self._workers: list[_StageWorker] = []
        self._changed = trio.Event()
        #: The name of its Spark job group.
        self._group = f"penstock-{secrets.token_hex(4)}-{attempt}"
        self._spark: SparkSession | None = None
        self._cancelled = False

    def add(self, spec: WorkerSpec) -> WorkerHandle:
        """Add a worker."""
        self._workers.append(_StageWorker(self, spec))
        return self._workers[-1]

    @property
    def complete(self) -> bool:
        """Whether all workers were added."""
        return len(self._workers) == self._slots

    @property
    def not_started(self) -> int:
        """The number of workers whose task has not registered."""
        return sum(not worker.pid for worker in self._workers)

    def register(self, task: _Registration) -> bool:
        """Record that a task has started, and return whether it may run its worker."""
        if not 0 <= task.slot < len(self._workers):
            return False
        worker = self._workers[task.slot]
        if worker.pid or self.ended.is_set():
            return False  # Spark has started the task a second time
        worker.started(task.pid, task.host)
        self._notify()
        return True

    async def wait_until_started(self) -> None:
        """Wait until all tasks have registered, or the stage has ended."""
        while self.not_started and not self.ended.is_set():
            await self._changed.wait()

    def submit(self, spark: SparkSession, address: str, name: str) -> None:
        """Start the stage.

        Arguments:
            spark: the session.
            address: the address that its tasks connect to.
            name: the name of the job, for the pages of Spark's web interface.
        """
        self._spark = spark
        self.outcome = "Spark stage is running"
        plan = StagePlan(address, self._token, tuple(worker.spec for worker in self._workers))
        token = trio.lowlevel.current_trio_token()
        threading.Thread(
            target=self._run,
            args=(spark, plan, name, token),
            daemon=True,
            name="penstock-stage",
        ).start()

    def _run(self, spark: SparkSession, plan: StagePlan, name: str, token: Any) -> None:
        slots = len(plan.specs)
        try:
            spark.sparkContext.setJobGroup(self._group, f"Penstock: {name}", interruptOnCancel=True)
            numbers = spark.range(0, slots, 1, slots)
            numbers.mapInArrow(worker_function(plan), ROW, barrier=True).collect()
            outcome = "Spark stage ended"
        except Exception as error:
            outcome = f"Spark stage failed: {message_of(error)}"
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(self._end, outcome)

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self.ended.set()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def cancel(self) -> None:
        """Request Spark to end the stage. Further calls do nothing."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._spark is None:
            self._end(self.outcome)
        elif not self.ended.is_set():
            # The call into the JVM may hang or find it gone, so it needs a thread of its own.
            threading.Thread(target=self._cancel, args=(self._spark,), daemon=True).start()

    def _cancel(self, spark: SparkSession) -> None:
        with contextlib.suppress(Exception):
            # The job to be cancelled may not have been submitted yet, so future jobs go too.
            context: Any = spark.sparkContext._jsc.sc()
            context.cancelJobGroupAndFutureJobs(self._group, "the attempt is over")
