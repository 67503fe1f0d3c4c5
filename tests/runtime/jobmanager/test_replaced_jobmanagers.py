"""A JobManager that another one has replaced leaves the folders of the other's workers alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from penstock.connectors import GeneratorSource
from penstock.dataflow.config import JobConfig, RestartStrategy
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import StoreError
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.testing.simulation.machine import Machine
from tests.simulation.run_program import Events, program, run_program


@pytest.mark.parametrize("stops", [False, True])
def test_a_replaced_jobmanager_does_not_remove_working_folders(tmp_path: Path, stops: bool):
    # The new JobManager could take no snapshot any more. Random job 1772 found it.
    def build(env: StreamExecutionEnvironment) -> None:
        numbers = GeneratorSource(lambda i: i, 200, 50.0, clock=trio.current_time)
        env.from_source(numbers, None, "numbers").print()

    own = tmp_path / "work" / "999" / "database"

    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        while not any(event["event"] == "snapshot" for event in events):
            await trio.sleep(0.01)
        # As the new JobManager does.
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").touch()
        own.parent.mkdir(parents=True)
        own.touch()
        if stops:
            job.stop()
        else:
            machine.processes[1].kill()

    config = JobConfig(
        name="replaced",
        checkpoint_dir=str(tmp_path),
        checkpoint_interval_seconds=0.05,
        restart=RestartStrategy("fixed_delay", None, 0.1),
    )
    ran = run_program(program(build, config), script=script)
    assert not ran.crashes
    assert isinstance(ran.outcome, StoreError) and "lock was removed" in str(ran.outcome)
    assert any(event["event"] == "restarting" for event in ran.events) or stops
    assert own.exists()
