"""A simulation whose sources are slow enough for much to happen to a short input."""

from __future__ import annotations

from collections.abc import Callable

from penstock.testing.simulation import Simulation
from penstock.testing.simulation.pacing import Pace
from penstock.testing.simulation.simulation import captured


def paced_simulation(main: Callable[[], None]) -> Simulation:
    """Return the simulation of a program that knows the output of one run without faults.

    `Simulation.begin` runs the program seven times, in five orders, to tell its user whether the
    output depends on the order. Each run with faults is in another order, too, and its output is
    compared with this one.
    """
    simulation = Simulation(captured(main))
    simulation._pace = Pace(2, 0.02)
    undisturbed = simulation._undisturbed(0)
    assert not undisturbed.error, undisturbed.error
    simulation._expected = undisturbed.published
    return simulation
