"""Run programs with their workers on a Spark cluster: `SparkCluster`.

The JobManager runs in a thread of this process, which is the Spark driver. So sources and sinks can
use the Spark session. The JobManager is the same as on one machine, but Spark starts its workers,
and all connections use TCP.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.program import Program, RunOptions, current_options, run_options
from penstock.dataflow.source import Source
from penstock.runtime.client.executor import LocalExecutor, job_request
from penstock.runtime.client.job_connection import JobConnection, SocketConnection
from penstock.runtime.control.framing import Frames
from penstock.runtime.jobmanager.process import JobServer
from penstock.runtime.spark.barrier_stage import BarrierStageLauncher
from penstock.runtime.spark.live_session import LiveSession
from penstock.runtime.spark.preflight import (
    await_slots,
    check_executors,
    check_settings,
    require_spark,
)
from penstock.runtime.system.system import System, real_system
from penstock.runtime.system.threads import Offload
from penstock.runtime.system.transport import SocketTransport, Transport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkCluster(LocalExecutor):
    """Runs the programs that are executed in its `with` block on a Spark cluster.

    All workers of a job are tasks of one barrier stage. Each worker occupies one slot while the job
    runs: `spark.task.cpus` cores of an executor. If an executor dies, Spark ends all workers. The
    job's restart strategy then restarts the job from its newest snapshot.

        with SparkCluster(spark):
            env.execute("counts")

    Arguments:
        spark: a Spark session whose driver is this process. The cluster does not stop it.
        slots: the highest number of slots that a job may occupy, which is also the default
            parallelism. With None, the number is not limited, and the program sets the parallelism.

    Raises:
        GraphError: if PySpark is not installed, or if the settings of the session do not allow
            jobs. When a program is executed, `GraphError` is raised if there are too few slots,
            and `StoreError` if an executor cannot reach a folder.
    """

    def __init__(self, spark: SparkSession, slots: int | None = None) -> None:
        require_spark()
        if slots is not None and slots < 1:
            raise GraphError(f"a job needs at least 1 slot, not {slots}")
        check_settings(spark)
        self._session = LiveSession(spark)
        self._slots = slots
        self._entered = ExitStack()

    def __enter__(self) -> SparkCluster:
        before = current_options()
        if before.executor is not None:
            raise GraphError(
                "the command line has decided where this program runs: use "
                "penstock run --master ... instead of SparkCluster, or start it with python"
            )
        parallelism = before.parallelism or self._slots
        options = replace(before, executor=self, parallelism=parallelism)
        self._entered.enter_context(run_options(options))
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    @property
    def session(self) -> SparkSession:
        """The Spark session. If its JVM has died, a new session replaces it."""
        return self._session.get()

    def start(
        self, program: Program, options: RunOptions, collecting: bool = False
    ) -> JobConnection:
        """Check the cluster, start the JobManager in a thread, and return its connection."""
        plan = compile_graph(program.graph, program.config)
        if self._slots is not None and plan.slots > self._slots:
            raise GraphError(
                f"the job needs {plan.slots} slots, one for each worker, and may take "
                f"{self._slots}: lower the parallelism, or allow more slots"
            )
        spark = self.session
        check_settings(spark)
        trio.run(await_slots, spark, plan.slots)
        check = partial(
            check_executors,
            slots=plan.slots,
            folders=_shared_folders(program),
            python=program.config.python_executable,
        )
        check(spark)
        conf = spark.sparkContext.getConf()
        host = conf.get("spark.driver.host", "localhost") or "localhost"
        bind = conf.get("spark.driver.bindAddress", host) or host
        here = replace(program, config=replace(program.config, host=host))
        return JobThread(
            job_request(here, options, collecting, shown=options.progress is not None),
            lambda transport, offload: BarrierStageLauncher(
                self._session, spark, check, plan.slots, program.config.name, transport, offload
            ),
            self._session,
            SocketTransport(host, bind),
        )


def _shared_folders(program: Program) -> dict[Path, str]:
    """Return the folders that all machines must share, with a text about their use.

    The job's folder contains the snapshots and the files that sources have prepared. In the folders
    of sinks, workers write staged output, and the JobManager publishes it.
    """
    config, operators = program.config, program.graph.operators
    folders: dict[Path, str] = {}
    if config.checkpoint_dir is not None:
        folders[Path.cwd() / config.checkpoint_dir] = "the job (--checkpoint-dir)"
    elif config.checkpoint_interval_seconds is not None or any(
        isinstance(operator.function, Source)
        and type(operator.function).prepare is not Source.prepare
        for operator in operators
    ):
        # The job's folder will be created in the folder for temporary files.
        folders[Path(tempfile.gettempdir())] = "the job, which has no --checkpoint-dir,"
    for operator in operators:
        folder = getattr(operator.function, "folder", None)
        if getattr(operator.function, "exactly_once", False) and folder is not None:
            folders[Path(folder)] = f"{operator.name!r}"
    return folders


class JobThread(SocketConnection):
    """Runs a JobManager in a thread, and connects the client to it.

    Arguments:
        request: the frame that `job_request` returned.
        make_launcher: creates the launcher of the workers. Its arguments are the transport to
            which workers connect, and a function that runs blocking calls in a thread.
        session: the Spark session.
        transport: accepts the connections of the workers.
    """

    def __init__(
        self,
        request: bytes,
        make_launcher: Callable[[Transport, Offload], BarrierStageLauncher],
        session: LiveSession,
        transport: SocketTransport,
    ) -> None:
        self._make_launcher = make_launcher
        self._session = session
        self._transport = transport
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._how = "ended"
        ours, theirs = socket.socketpair()
        self._thread = threading.Thread(
            target=self._run, args=(theirs,), daemon=True, name="penstock-jobmanager"
        )
        self._thread.start()
        super().__init__(ours, request)

    def _run(self, theirs: socket.socket) -> None:
        with theirs:
            try:
                trio.run(self._serve, theirs)
            except BaseException as error:
                # The error is a bug of the engine, since a failure of the job is sent as an event.
                self._how = "".join(["failed\n", *traceback.format_exception(error)]).rstrip()

    async def _serve(self, theirs: socket.socket) -> None:
        self._token = trio.lowlevel.current_trio_token()
        connection = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        system = real_system()
        launcher = self._make_launcher(self._transport, system.offload)
        system = replace(
            system,
            transport=self._transport,
            launcher=launcher,
            revive=self._session.get,
            workers_start_together=True,
        )

        def make_system(_: Any) -> System:
            return system

        async with trio.open_nursery() as nursery:
            await launcher.listen(nursery)
            try:
                with self._scope:
                    server = JobServer(
                        Frames(connection), make_system, signals=False, own_python=False
                    )
                    await server.run()
            finally:
                await launcher.end()
            nursery.cancel_scope.cancel()

    @property
    def running(self) -> bool:
        """Whether the JobManager's thread is still running."""
        return self._thread.is_alive()

    def kill(self) -> None:
        """Cancel the JobManager and its workers."""
        if self._token is not None:
            self._how = "was killed"
            self._token.run_sync_soon(self._scope.cancel)

    def wait(self) -> str:
        """Wait until the thread has ended, and return a text that says how it ended."""
        self._thread.join()
        self._socket.close()
        return self._how
