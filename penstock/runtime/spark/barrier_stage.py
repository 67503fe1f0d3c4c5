"""The driver's side of a stage: one barrier stage whose tasks are the workers of an attempt.

Spark places the tasks, starts all of them or none, and ends all when one is gone. The stage is
the result stage of a `collect()` in a thread of its own, since that is what Spark never retries:
whether there is another stage is for the job's restart strategy to say. Every task connects here
first, which tells its pid and carries what it prints; all else is between the TaskManagers and
the JobManager, as it is on one machine.
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
from penstock.runtime.control.handshakes import Handshakes
from penstock.runtime.control.packing import build, unpack
from penstock.runtime.spark.preflight import await_slots, cause
from penstock.runtime.spark.session import LiveSession
from penstock.runtime.spark.stage_worker import ROW, StagePlan, worker_function
from penstock.runtime.system.system import Transport, WorkerHandle, WorkerSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BarrierStageLauncher"]

#: How long the tasks of a stage may take to start, once there are slots for them.
START_SECONDS = 60.0
#: How long Spark may take to end the stage of an attempt that is over.
END_SECONDS = 30.0


class BarrierStageLauncher:
    """Starts the workers of an attempt all at once; a `Launcher`.

    The attempt asks for one after the other. The last one asked for starts the stage, and is
    answered when all of it runs.

    Arguments:
        session: the Spark session.
        checked: the session whose executors were found to have what workers need.
        check: does the same for another session; blocks.
        slots: how many workers an attempt has.
        name: of the job, as Spark's pages show it.
        transport: where tasks connect to.
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
        """Serve the connections of tasks in `nursery`; before anything is launched."""
        self._address = await self._transport.listen("stage", self._serve, nursery)

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Take a worker, and start the stage if it is the last."""
        if self._stage is None or self._stage.attempt != spec.attempt:
            await self.end()
            self._stage = _BarrierStage(
                spec.attempt, f"penstock-{secrets.token_hex(4)}-{spec.attempt}"
            )
            self._stage.handshakes.expect(self._slots)
        stage = self._stage
        stage.workers.append(_StageWorker(stage, spec))
        if len(stage.workers) == self._slots:
            try:
                await self._start(stage)
            except BaseException:
                stage.cancel()
                raise
        return stage.workers[-1]

    async def end(self) -> None:
        """Cancel the stage, if there is one, and wait until its stage has ended."""
        stage = self._stage
        if stage is not None:
            stage.cancel()
            with trio.move_on_after(END_SECONDS) as scope:
                scope.shield = True
                await stage.ended.wait()

    async def _start(self, stage: _BarrierStage) -> None:
        plan = StagePlan(self._address, stage.token, tuple(m.spec for m in stage.workers))
        spark = await self._offload(self._session.get)
        await await_slots(spark, self._slots)
        if spark is not self._checked:
            # What was sent to executors belonged to the session that has died.
            await self._offload(partial(self._check, spark))
            self._checked = spark
        stage.submit(spark, plan, self._name)
        with trio.move_on_after(START_SECONDS):
            while not all(worker.pid for worker in stage.workers) and not stage.ended.is_set():
                await stage.changed.wait()
        if stage.ended.is_set():
            raise JobError(f"the workers could not be started: their {stage.how}")
        late = sum(not worker.pid for worker in stage.workers)
        if late:
            raise JobError(
                f"{late} of {self._slots} workers have not started within {START_SECONDS:g} s: "
                f"their slots may be taken by other work on this Spark cluster"
            )

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """The connection of one task: who it is, then what it prints."""
        stage = self._stage
        if stage is None:
            return
        # tasks of older stages do not know this one's token.
        frames = await stage.handshakes.admit(stream)
        if frames is None:
            return
        with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
            hello = await frames.receive()
            if hello is None:
                return
            greeting = build(_Greeting, unpack(hello))
            if not 0 <= greeting.slot < len(stage.workers):
                return
            worker = stage.workers[greeting.slot]
            if worker.pid or stage.ended.is_set():
                return  # a second try of Spark's
            worker.pid, worker.host = greeting.pid, greeting.host
            await frames.send(b"go")
            stage.wake()
            while (frame := await frames.receive()) is not None:
                await self._offload(partial(_print, build(_Output, unpack(frame))))


@dataclass(frozen=True)
class _Greeting:
    """The first frame of a task's connection."""

    slot: int
    pid: int
    host: str


@dataclass(frozen=True)
class _Output:
    """What a task has printed, on the descriptor of that number."""

    number: int
    data: bytes


def _print(output: _Output) -> None:
    stream = sys.stdout if output.number == 1 else sys.stderr
    stream.write(output.data.decode(errors="replace"))
    stream.flush()


class _StageWorker:
    """A worker as a task of the stage; a `WorkerHandle`."""

    def __init__(self, stage: _BarrierStage, spec: WorkerSpec) -> None:
        self.spec = spec
        self.pid = 0
        self.host = ""
        self._stage = stage

    async def wait(self) -> str:
        """Wait for the end of the stage; tasks of a stage end together."""
        await self._stage.ended.wait()
        return f"on {self.host}: its {self._stage.how}"

    def kill(self) -> None:
        """Cancel the stage."""
        self._stage.cancel()


class _BarrierStage:
    """One barrier stage, and the thread that waits for it.

    Arguments:
        attempt: the execution attempt that it is.
        group: the name of its Spark job group.
    """

    def __init__(self, attempt: int, group: str) -> None:
        self.attempt = attempt
        self.token = secrets.token_bytes(32)
        self.handshakes = Handshakes(self.token)
        self.workers: list[_StageWorker] = []
        self.ended = trio.Event()
        self.changed = trio.Event()
        self.how = "Spark stage was not started"
        self._group = group
        self._spark: SparkSession | None = None
        self._cancelled = False

    def submit(self, spark: SparkSession, plan: StagePlan, name: str) -> None:
        """Start the stage."""
        self._spark = spark
        self.how = "Spark stage is running"
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
            how = "Spark stage ended"
        except Exception as error:
            how = f"Spark stage failed: {cause(error)}"
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(self._end, how)

    def _end(self, how: str) -> None:
        self.how = how
        self.ended.set()
        self.wake()

    def wake(self) -> None:
        """Something has changed."""
        self.changed.set()
        self.changed = trio.Event()

    def cancel(self) -> None:
        """Have Spark end the stage; does nothing a second time."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._spark is None:
            self._end(self.how)
        elif not self.ended.is_set():
            # A call into the JVM, which may hang or be gone, so not in the event loop.
            threading.Thread(target=self._cancel, args=(self._spark,), daemon=True).start()

    def _cancel(self, spark: SparkSession) -> None:
        with contextlib.suppress(Exception):
            # Future jobs too: the one to be cancelled may not have been submitted yet.
            context: Any = spark.sparkContext._jsc.sc()
            context.cancelJobGroupAndFutureJobs(self._group, "the attempt is over")
