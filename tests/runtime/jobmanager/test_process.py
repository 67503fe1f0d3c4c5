"""A client of a JobManager process receives the end of its job, however slowly it reads."""

import os
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from penstock.dataflow.config import JobConfig
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.requests import JobRequest, encode_job
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.process import (
    FLUSH_AFTER_STOP_SECONDS,
    FLUSH_SECONDS,
    ORPHAN_SECONDS,
    STATUS_SECONDS,
    JobServer,
)
from penstock.runtime.jobmanager.reporting.job_events import JobFigures, WorkersStarted

RUN_SECONDS = 40 * STATUS_SECONDS


@dataclass
class Outcome:
    records: int = 7
    stopped: bool = False


class Job:
    """A job that runs for a while."""

    def __init__(self, *_: Any) -> None:
        self.plan = ExecutionGraph((), (), 128)
        self.code = SimpleNamespace(logging=None, folder="/")
        self.config = JobConfig(name="counts", stop_timeout_seconds=600.0)
        self.stops = 0

    async def run(self) -> Outcome:
        await trio.sleep(RUN_SECONDS)
        return Outcome()

    def current_figures(self) -> JobFigures:
        return JobFigures([], [], [], [])

    def stop(self) -> None:
        self.stops += 1


class Client:
    """A client that sends a job, and reads events only when the test says so."""

    def __init__(self) -> None:
        # A frame that is sent waits for its reader, as on a socket whose buffers are full.
        here, there = trio.testing.lockstep_stream_pair()
        self.frames = Frames(here)
        self._there = Frames(there)
        self.server = JobServer(
            self._there,
            lambda host: None,
            signals=False,
            make_job=Job,  # type: ignore
        )
        self.ended_at = 0.0

    async def begin(self, nursery: trio.Nursery) -> None:
        async def serve() -> None:
            assert await self.server.run() == 0
            self.ended_at = trio.current_time()
            await self._there.aclose()

        nursery.start_soon(serve)
        options = asdict(JobSettings())
        await self.frames.send(encode_job(JobRequest(b"", [], None, options)))

    async def read(self) -> list[dict[str, Any]]:
        found = []
        while (frame := await self.frames.receive()) is not None:
            found.append(msgpack.unpackb(frame))
        return found


def run(main: Any) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_client_that_stood_still_receives_the_end_and_not_all_events_before_it():
    client = Client()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await client.begin(nursery)
            await trio.sleep(RUN_SECONDS + FLUSH_SECONDS / 2)
            said = await client.read()
            assert [event["event"] for event in said] == ["started", "finished"]
            assert said[-1]["records"] == 7

    run(main)


def test_a_client_that_reads_receives_the_status_of_the_job():
    client = Client()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await client.begin(nursery)
            said = [event["event"] for event in await client.read()]
            assert said[0] == "started" and said[-1] == "finished"
            assert said.count("status") == len(said) - 2 >= RUN_SECONDS / STATUS_SECONDS - 2
            assert client.ended_at < RUN_SECONDS + trio.current_time()

    run(main)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_client_that_never_reads_does_not_keep_the_process_from_ending(
    stopped: bool,
):
    client = Client()

    async def main() -> None:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await client.begin(nursery)
            await trio.sleep(RUN_SECONDS + 1.0)
            if stopped:
                await client.frames.send(msgpack.packb({"do": "stop"}))
        waited = client.ended_at - began - RUN_SECONDS
        most = 1.0 + FLUSH_AFTER_STOP_SECONDS if stopped else FLUSH_SECONDS
        assert most <= waited < most + 1.0

    run(main)


@pytest.mark.parametrize("runs", [ORPHAN_SECONDS / 2, ORPHAN_SECONDS * 2])
def test_a_job_that_outlives_its_client_for_long_names_its_processes(
    runs: float, capsys: pytest.CaptureFixture[str]
):
    client = Client()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await client.begin(nursery)
            await trio.sleep(RUN_SECONDS - runs)
            client.server.observe(WorkersStarted([70, 71]))
            await client.frames.aclose()

    run(main)
    told = capsys.readouterr().err
    if runs < ORPHAN_SECONDS:
        assert told == ""
    else:
        assert told.startswith("the program of job 'counts' is gone, and the job ends within 600 s")
        assert f"(pid {os.getpid()})" in told and "(pids 70, 71)" in told
