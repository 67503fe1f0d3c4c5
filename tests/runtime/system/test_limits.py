"""What the operating system does not give: a clear error, before anything is started."""

import resource

import pytest
import trio

from penstock import GraphError, JobError, StreamExecutionEnvironment
from penstock.dataflow.errors import Recoverability
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files
from penstock.runtime.system.transport import SocketTransport


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
