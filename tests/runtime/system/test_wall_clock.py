"""The time of day of a worker does not go back, and does not stand still."""

from __future__ import annotations

from penstock.runtime.system.wall_clock import SteadyTimeOfDay


class Clocks:
    """A clock that shows the time of day and can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall, self.seconds = 1_000_000, 0.0
        self.steady = SteadyTimeOfDay(lambda: self.wall, lambda: self.seconds)

    def after(self, milliseconds: int) -> int:
        """Let time pass, and return the time of day."""
        self.wall += milliseconds
        self.seconds += milliseconds / 1000
        return self.steady()


def test_it_is_the_time_of_the_machine_while_nobody_sets_it_back() -> None:
    clocks = Clocks()
    assert [clocks.after(0), clocks.after(5), clocks.after(10)] == [1_000_000, 1_000_005, 1_000_015]
    clocks.wall += 3_600_000
    assert clocks.after(1) == clocks.wall


def test_it_goes_on_at_half_the_pace_until_the_machine_has_caught_up() -> None:
    clocks = Clocks()
    assert clocks.after(0) == 1_000_000
    clocks.wall -= 60
    assert clocks.after(0) == 1_000_000
    assert [clocks.after(40), clocks.after(40), clocks.after(40)] == [
        1_000_020,
        1_000_040,
        1_000_060,
    ]
    assert clocks.wall == 1_000_060
    assert clocks.after(10) == clocks.wall


def test_it_may_be_set_back_again_and_again() -> None:
    clocks = Clocks()
    times = [clocks.after(0)]
    for _ in range(50):
        clocks.wall -= 30
        times += [clocks.after(7), clocks.after(4)]
    passed = times[-1] - times[0]
    assert times == sorted(times)
    assert 250 < passed <= 275
    assert clocks.after(2 * (clocks.steady() - clocks.wall)) == clocks.wall


def test_a_second_time_it_goes_on_from_where_it_was() -> None:
    clocks = Clocks()
    clocks.after(0)
    clocks.wall -= 10
    assert clocks.after(40) == clocks.wall == 1_000_030
    clocks.wall -= 3_600_000
    assert clocks.after(0) == 1_000_030
    assert clocks.after(100) == 1_000_080
