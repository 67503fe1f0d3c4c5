"""Runs a program on the simulated cluster: JobManager and workers in one process, virtual time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from penstock.dataflow.config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import PenstockError
from penstock.dataflow.graph.batch_mode import in_runtime_mode
from penstock.runtime.control.job_code import JobCode, pack
from penstock.runtime.control.record_class_search import record_classes
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.jobmanager.reporting.job_events import JobEvent
from penstock.testing.simulation.machine import Killed, Machine
from penstock.testing.simulation.scheduler import seed_scheduler
from tests.simulation.job import LEDGERS

Build = Callable[[StreamExecutionEnvironment], None]
Events = list[dict[str, Any]]
#: What runs beside the job.
Script = Callable[[JobManager, Machine, Events], Awaitable[None]]


@dataclass
class Ran:
    """The result of a run.

    Arguments:
        outcome: the result or the error of the JobManager; None if it was killed.
        events: of the job, as a client receives them.
        crashes: exceptions of processes that were not killed.
        hung: the job did not end in time.
    """

    outcome: Any = None
    events: Events = field(default_factory=list)
    crashes: list[BaseException] = field(default_factory=list)
    hung: bool = False

    def observe(self, event: JobEvent) -> None:
        """Add an event, as a client receives it."""
        self.events.append(event.to_wire())


def program(build: Build, config: JobConfig) -> bytes:
    """Return a packed program that `build` puts together."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(config.parallelism)
    build(env)
    graph, config = in_runtime_mode(env._graph, config)
    return pack(JobCode(graph, config, types=record_classes(graph, ())))


def run_program(
    blob: bytes,
    *,
    seed: int = 1,
    options: JobSettings | None = None,
    script: Script | None = None,
    delay: float = 0.001,
    deadline: float = 60.0,
) -> Ran:
    """Run a program to its end.

    Arguments:
        blob: the packed program.
        seed: of all choices.
        options: of the JobManager.
        script: runs beside the job.
        delay: the mean delay of messages and threads, in seconds.
        deadline: the virtual seconds after which the job counts as hung.
    """
    ran = Ran()
    #: What the script raised.
    failures: list[Exception] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            machine = Machine(random.Random(seed), nursery, delay)
            process = machine.process("jobmanager")

            async def watched(script: Script, job: JobManager) -> None:
                try:
                    await script(job, machine, ran.events)
                except Exception as error:
                    # Raised here it would cancel threads for which processes wait.
                    failures.append(error)
                    process.kill()

            async def run() -> None:
                system = machine.system(process)
                job = JobManager(blob, system, options or JobSettings(), ran.observe)
                if script is not None:
                    nursery.start_soon(watched, script, job)
                try:
                    ran.outcome = await job.run()
                except PenstockError as error:
                    ran.outcome = error

            machine.start(process, run)
            with trio.move_on_after(deadline) as scope:
                await process.ended.wait()
            ran.hung = scope.cancelled_caught
            for other in machine.processes:
                other.kill()
            await trio.sleep(1)
            ran.crashes = machine.crashes
            nursery.cancel_scope.cancel()

    seed_scheduler(seed)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    if failures:
        raise failures[0]
    return ran


def crash_at_commit(ledger: int, nth: int) -> Script:
    """Kill the JobManager between its nth manifest and the commit of it to a ledger."""

    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        ledger_of_job, process, commits = LEDGERS[ledger], machine.processes[0], 0

        def on_commit(moment: str) -> None:
            nonlocal commits
            commits += moment == "commit"
            if commits == nth and not process.dead:
                process.kill()
                raise Killed

        process.on_kill.append(job.store.files.unlock)
        ledger_of_job.on_commit = on_commit
        await process.ended.wait()
        ledger_of_job.on_commit = lambda _: None

    return script
