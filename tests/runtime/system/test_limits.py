"""What the operating system does not give: a clear error, before anything is started."""

import errno
import os
import resource
import signal
from pathlib import Path

import pytest
import trio

from penstock import GraphError, JobError, StreamExecutionEnvironment
from penstock.dataflow.errors import PenstockError, Recoverability, StoreError
from penstock.runtime.control.failures import failure_message, failure_of
from penstock.runtime.system.limits import PROCESS_FILES, how_ended, require_open_files
from penstock.runtime.system.transport import SocketTransport
from penstock.snapshot.state.rocksdb.database import RocksDatabase
from penstock.snapshot.state.rocksdb.options import RocksMemory


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits of open files, soft and hard; the last are those that hold."""
    found = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: found.append(pair))
    return found


def test_the_soft_limit_of_open_files_is_raised_where_it_can_be(limits):
    require_open_files(1024)
    assert len(limits) == 1
    require_open_files(1025)
    assert limits[1:] == [(1025, 4096)]
    limits.append((16, resource.RLIM_INFINITY))
    require_open_files(64)
    assert limits[-1] == (64, resource.RLIM_INFINITY)


@pytest.mark.parametrize("hard", [10, 16, 24, 40, PROCESS_FILES - 1])
def test_a_job_is_refused_that_may_not_open_enough_files(limits, hard):
    limits.append((hard, hard))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_sequence(1, 3).print()
    with pytest.raises(JobError, match=f"open files in one process, but the limit is {hard}:"):
        env.execute()


def test_a_host_that_is_not_of_this_machine_is_named():
    async def listen() -> None:
        async with trio.open_nursery() as nursery:
            # An address for documentation, which no machine has.
            await SocketTransport("203.0.113.7").listen("jm.1", trio.sleep, nursery)

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(listen)
    [error] = caught.value.exceptions
    assert isinstance(error, GraphError)
    assert error.recoverability is Recoverability.NON_RECOVERABLE
    assert "cannot listen at '203.0.113.7'" in str(error)


def test_a_process_that_crashes_below_a_limit_of_memory_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
):
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: unlimited)
    assert how_ended(-signal.SIGABRT) == "was killed by signal 6"
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits.get(kind, unlimited))
    for kind, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        limits.clear()
        limits[kind] = (300 << 20, 300 << 20)
        told = how_ended(-signal.SIGABRT)
        assert told.startswith("was killed by signal 6: the memory of each process is limited")
        assert f"315 MB (ulimit {option})" in told and told.endswith("raise the limit")
        assert how_ended(-signal.SIGKILL) == "was killed by signal 9"
        assert how_ended(1).startswith("exited with code 1: the memory of each process")
        assert how_ended(3) == "exited with code 3"


def reported(error: BaseException) -> PenstockError:
    """What the JobManager knows of an error that the engine of a worker has raised."""
    return failure_of(failure_message(0, 0, error))


def test_a_failure_of_the_system_is_told_in_one_line():
    full = reported(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full"))
    assert isinstance(full, StoreError) and full.recoverability is Recoverability.ENVIRONMENT
    assert str(full).startswith("cannot continue: the disk is full") and "/full" in str(full)
    large = reported(OSError(errno.EFBIG, os.strerror(errno.EFBIG), "/big"))
    assert large.recoverability is Recoverability.NON_RECOVERABLE and "ulimit -f" in str(large)
    thread = reported(RuntimeError("can't start new thread"))
    assert str(thread).startswith("can't start new thread: ") and "raise the limit" in str(thread)
    for error in (full, large, thread):
        assert "\n" not in str(error)
    # If a file is missing, the engine may have a bug, which the traceback locates.
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    assert "FileNotFoundError" in str(reported(missing))


def test_a_database_that_cannot_be_created_says_why_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise Exception(f"IO error: While appending to file: x: {os.strerror(errno.EFBIG)}")

    monkeypatch.setattr("penstock.snapshot.state.rocksdb.database.Rdict", refuse)
    with pytest.raises(StoreError, match="cannot create keyed state") as caught:
        RocksDatabase.create(tmp_path / "db", RocksMemory(1 << 20))
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    assert "raise it (ulimit -f)" in str(caught.value) and "\n" not in str(caught.value)
