"""Runs jobs whose credentials are wrong, and checks how they end."""

from __future__ import annotations

import logging
import re
import traceback
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncDataStream, BatchedFunction, GraphError, RestartStrategies, Time
from penstock.dataflow.async_io import AsyncFunction
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import JobError
from penstock.dataflow.sink import Sink
from penstock.dataflow.source import Source

#: A password that the servers of the tests accept, and one that they refuse.
SECRET, WRONG = "hush-4711-hush", "guess-0815-guess"

Part = Source[Any] | Sink[Any] | AsyncFunction[Any, Any] | BatchedFunction[Any, Any]


def job_with(part: Part, folder: Path, records: list[Any] | None = None) -> list[Any]:
    """Run a job with a source, a sink or a lookup, and return the records of its stream.

    Of a source that never ends, it returns the first record. The job may be restarted twice.
    """
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process(True)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 0))
    if isinstance(part, Source):
        with env.from_source(part).execute_and_collect() as found:
            return list(found if part.bounded else islice(found, 1))
    given = env.from_collection(records if records is not None else [{"id": 1}])
    if isinstance(part, Sink):
        given.sink_to(part)
        env.execute()
        return []
    if isinstance(part, AsyncFunction):
        found = AsyncDataStream.ordered_wait(given, part, Time.minutes(10))
    else:
        found = AsyncDataStream.batched(given, part, 600_000)
    with found.execute_and_collect() as results:
        return list(results)


class Access:
    """Checks that jobs end, and that no secret is written anywhere.

    Arguments:
        folder: a folder of the test.
        logs: what is logged during the test.
    """

    def __init__(self, folder: Path, logs: pytest.LogCaptureFixture) -> None:
        self._folder, self._logs, self._count = folder, logs, 0

    def run(self, part: Part, records: list[Any] | None = None) -> list[Any]:
        """Run a job that must succeed, and return its records."""
        folder = self._new_folder()
        try:
            return job_with(part, folder, records)
        finally:
            self._require_no_secret(part, folder, "")

    def refuse(self, part: Part, *said: str, records: list[Any] | None = None) -> str:
        """Run a job that must end with an error that matches all expressions; return the error."""
        folder = self._new_folder()
        self._logs.clear()
        with pytest.raises((JobError, GraphError)) as caught:
            job_with(part, folder, records)
        error = caught.value
        # A GraphError is raised before the job starts.
        given_up = "no restart can mend this" in self._logs.text
        assert given_up or isinstance(error, GraphError), error
        for expression in said:
            assert re.search(expression, str(error)), str(error)
        self._require_no_secret(part, folder, "".join(traceback.format_exception(error)))
        return str(error)

    def _new_folder(self) -> Path:
        self._count += 1
        return self._folder / f"job-{self._count}"

    def _require_no_secret(self, part: Part, folder: Path, message: str) -> None:
        connections = [value for value in vars(part).values() if hasattr(value, "__dict__")]
        shown = [message, self._logs.text, repr(part), *map(repr, connections)]
        for secret in (SECRET, WRONG):
            assert all(secret not in text for text in shown), [t for t in shown if secret in t]
            for path in folder.rglob("*"):
                assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.fixture
def access(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Access:
    """Return what checks the jobs of a test."""
    caplog.set_level(logging.DEBUG, "penstock")
    return Access(tmp_path, caplog)
