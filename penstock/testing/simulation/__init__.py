"""Run whole jobs in one thread, with virtual time, under a seed, and with faults.

`docs/guides/simulation.md` is the guide. Start reading at `simulation.py`.

* `simulation.py` runs a program under many seeds, and compares its output.
* `simulated_job.py` runs it under one seed. `faults.py` draws the faults.
* `simulated_cluster.py` runs any job over all resumes, and `simulated_run.py` one run of it.
* `machine.py` has simulated processes, connections and threads; `files.py` hooks their files.
* `invariants.py` checks the invariants after each step.
"""

from __future__ import annotations

from penstock.testing.simulation.faults import DEFAULT_FAULTS, FAULTS, Fault, Schedule
from penstock.testing.simulation.simulated_job import RunResult
from penstock.testing.simulation.simulation import (
    Failure,
    Simulation,
    SimulationReport,
    simulate,
)

__all__ = [
    "DEFAULT_FAULTS",
    "FAULTS",
    "Failure",
    "Fault",
    "RunResult",
    "Schedule",
    "Simulation",
    "SimulationReport",
    "simulate",
]
