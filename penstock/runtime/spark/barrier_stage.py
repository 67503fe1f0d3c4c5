"""Start the workers of an attempt on Spark, as the tasks of one barrier stage.

This module runs in the driver, and `stage_worker` runs on the executors. Spark places the tasks,
starts all of them or none, and ends all of them when one ends. A separate thread calls `collect()`
on the stage, because Spark never retries a stage that returns results. The job's restart strategy
starts a new stage instead.

Each task first connects to the driver. It sends its process id, and later the output that it
prints. The TaskManagers exchange all other messages with the JobManager, as on one machine.
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

#: The time within which Spark must give the slots to the tasks of a stage, in seconds. It begins
#: when the cluster has enough slots. How long the tasks then take to start is not limited.
START_SECONDS = 60.0
#: The longest time to wait until Spark has ended a cancelled stage, in seconds.
END_SECONDS = 30.0


class BarrierStageLauncher:
    """A `Launcher` that starts all workers of an attempt together, as one stage.

    The JobManager calls `launch` once for each worker. The last call starts the stage, and returns
    when all tasks of the stage run.

    Arguments:
        session: the Spark session.
        checked: the session whose executors were checked by `check_executors`.
        check: a blocking function that checks the executors of a new session.
        slots: the number of workers of an attempt.
        name: the name of the job, which is shown in Spark's web interface.
        transport: accepts the connections of the tasks.
        offload: runs blocking calls in a thread.
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
        """Accept the connections of tasks in `nursery`. Must be called before `launch`."""
        self._address = await self._transport.listen("stage", self._serve, nursery)

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Add a worker to the stage. With the last worker, start the stage.

        Raises `JobError` if the stage fails, or if a task does not start in time.
        """
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
        """Cancel the stage if one exists, and wait up to `END_SECONDS` for its end."""
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
            # Executors of a new session lack the packages that were sent to the old executors.
            await self._offload(partial(self._check, spark))
            self._checked = spark
        stage.submit(spark, self._address, self._name)
        while True:
            with trio.move_on_after(START_SECONDS):
                await stage.wait_until_started()
            if not stage.not_started or stage.ended.is_set():
                break
            # Spark starts all tasks of a barrier stage or none. On a slow machine, their Python
            # processes may take longer than the limit.
            if not await self._offload(stage.active_tasks):
                break
        if stage.ended.is_set():
            raise JobError(f"the workers could not be started: their {stage.outcome}")
        if late := stage.not_started:
            raise JobError(
                f"{late} of {self._slots} workers have not started within {START_SECONDS:g} s: "
                f"their slots may be taken by other work on this Spark cluster"
            )

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Receive the registration of one task, and then receive and print its output."""
        stage = self._stage
        if stage is None:
            return
        # Each stage has a different token, so tasks of older stages are refused.
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
    """The first frame that a task sends to the driver, to register as a worker."""

    slot: int
    pid: int
    host: str


@dataclass(frozen=True)
class _Output:
    """Bytes that a task has printed. The file descriptor `number` is 1 or 2."""

    number: int
    data: bytes


def _print(output: _Output) -> None:
    stream = sys.stdout if output.number == 1 else sys.stderr
    stream.write(output.data.decode(errors="replace"))
    stream.flush()


class _StageWorker:
    """A `WorkerHandle` for a worker that runs as a task of a Spark stage."""

    def __init__(self, stage: _BarrierStage, spec: WorkerSpec) -> None:
        self.spec = spec
        self.pid = 0
        self._host = ""
        self._stage = stage

    def started(self, pid: int, host: str) -> None:
        """Record the process id and the host of the worker's task."""
        self.pid, self._host = pid, host

    async def wait(self) -> str:
        """Wait until the stage has ended, and return a text that says how it ended."""
        await self._stage.ended.wait()
        return f"on {self._host}: its {self._stage.outcome}"

    def kill(self) -> None:
        """Cancel the stage of this worker, which ends all its workers."""
        self._stage.cancel()


class _BarrierStage:
    """Runs one barrier stage in a thread, and records which tasks have started.

    Arguments:
        attempt: the number of the execution attempt.
        slots: the number of workers, which is also the number of tasks in the stage.
    """

    def __init__(self, attempt: int, slots: int) -> None:
        self.attempt = attempt
        #: The event that is set when the stage has ended. The text `outcome` then says how.
        self.ended = trio.Event()
        self.outcome = "Spark stage was not started"
        self._token = secrets.token_bytes(32)
        self.admission = Admission(self._token)
        self.admission.expect(slots)
        self._slots = slots
        self._workers: list[_StageWorker] = []
        self._changed = trio.Event()
        #: The name of the Spark job group, which is needed to cancel the stage.
        self._group = f"penstock-{secrets.token_hex(4)}-{attempt}"
        self._spark: SparkSession | None = None
        self._cancelled = False

    def add(self, spec: WorkerSpec) -> WorkerHandle:
        """Add a worker to the stage, and return its handle."""
        self._workers.append(_StageWorker(self, spec))
        return self._workers[-1]

    @property
    def complete(self) -> bool:
        """Whether all workers of the stage were added."""
        return len(self._workers) == self._slots

    @property
    def not_started(self) -> int:
        """The number of workers whose Spark task has not started yet."""
        return sum(not worker.pid for worker in self._workers)

    def register(self, task: _Registration) -> bool:
        """Record that a task has started, and return whether the task may run its worker.

        It may not if the stage has ended, or if Spark has started the task a second time.
        """
        if not 0 <= task.slot < len(self._workers):
            return False
        worker = self._workers[task.slot]
        if worker.pid or self.ended.is_set():
            return False
        worker.started(task.pid, task.host)
        self._notify()
        return True

    async def wait_until_started(self) -> None:
        """Wait until all tasks have registered or the stage has ended."""
        while self.not_started and not self.ended.is_set():
            await self._changed.wait()

    def active_tasks(self) -> int:
        """Return the number of tasks that Spark has started. The call blocks."""
        assert self._spark is not None
        tracker = self._spark.sparkContext.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group))
        stages = [
            tracker.getStageInfo(id) for job in jobs if job is not None for id in job.stageIds
        ]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def submit(self, spark: SparkSession, address: str, name: str) -> None:
        """Start the stage in a new thread.

        Arguments:
            spark: the Spark session.
            address: the address of the driver, to which the tasks connect.
            name: the name of the job, which is shown in Spark's web interface.
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
        """Request that Spark ends the stage. Further calls have no effect."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._spark is None:
            self._end(self.outcome)
        elif not self.ended.is_set():
            # The call into the JVM may hang or fail, so a separate thread makes it.
            threading.Thread(target=self._cancel, args=(self._spark,), daemon=True).start()

    def _cancel(self, spark: SparkSession) -> None:
        with contextlib.suppress(Exception):
            # The stage may not be submitted yet, so future jobs of the group are cancelled, too.
            context: Any = spark.sparkContext._jsc.sc()
            context.cancelJobGroupAndFutureJobs(self._group, "the attempt is over")
