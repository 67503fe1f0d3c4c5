"""With how many slots a job continues after some were lost."""

from __future__ import annotations

import pytest

from penstock.runtime.jobmanager.lost_slots import LostSlots, Shrink, TryAgain


def test_the_start_is_tried_again_until_the_timeout():
    lost = LostSlots({0: 4}, 10.0)
    assert lost.failed(100.0, 0, 1) == TryAgain(1.0)
    assert lost.failed(109.9, 0, 1) == TryAgain(1.0)
    assert lost.slots == {0: 4}
    assert lost.failed(110.0, 0, 1) == Shrink(0, 3)
    assert lost.slots == {0: 3}


def test_the_pause_is_short_if_the_timeout_is():
    assert LostSlots({0: 2}, 0.4).failed(0.0, 0, 1) == TryAgain(0.1)


def test_without_a_timeout_a_slot_is_lost_at_once():
    lost = LostSlots({0: 3}, 0.0)
    assert lost.failed(5.0, 0, 2) == Shrink(0, 1)


def test_further_slots_are_lost_without_a_further_wait_until_an_attempt_begins():
    lost = LostSlots({0: 4}, 10.0)
    lost.failed(0.0, 0, 1)
    assert lost.failed(11.0, 0, 1) == Shrink(0, 3)
    assert lost.failed(11.1, 0, 1) == Shrink(0, 2)
    lost.began()
    assert lost.failed(12.0, 0, 1) == TryAgain(1.0)
    assert lost.failed(22.0, 0, 1) == Shrink(0, 1)


def test_a_start_that_succeeds_in_time_loses_nothing():
    lost = LostSlots({0: 2}, 10.0)
    lost.failed(0.0, 0, 1)
    lost.began()
    assert lost.failed(20.0, 0, 1) == TryAgain(1.0)
    assert lost.slots == {0: 2}


@pytest.mark.parametrize("missing", [2, 3])
def test_without_any_slot_the_restart_strategy_decides(missing: int):
    lost = LostSlots({0: 2}, 10.0)
    lost.failed(0.0, 0, missing)
    assert lost.failed(10.0, 0, missing) is None
    assert lost.slots == {0: 2}
    assert lost.failed(11.0, 0, 1) == Shrink(0, 1)


def test_regions_lose_slots_of_their_own():
    lost = LostSlots({0: 2, 5: 3}, 0.0)
    assert lost.failed(0.0, 5, 1) == Shrink(5, 2)
    assert lost.slots == {0: 2, 5: 2}
    lost.began()
    assert lost.failed(1.0, 0, 1) == Shrink(0, 1)
    assert lost.slots == {0: 1, 5: 2}


def test_slots_that_return_are_used_but_not_more_than_the_job_asks_for():
    lost = LostSlots({0: 4}, 0.0)
    lost.failed(0.0, 0, 3)
    lost.returned(0, 1)
    assert lost.slots == {0: 2}
    lost.returned(0, 5)
    assert lost.slots == {0: 4}


def test_a_decision_that_the_snapshot_does_not_allow_is_taken_back():
    lost = LostSlots({0: 4}, 0.0)
    assert lost.failed(0.0, 0, 1) == Shrink(0, 3)
    lost.began()
    assert lost.failed(1.0, 0, 1) == Shrink(0, 2)
    lost.refused()
    assert lost.slots == {0: 3}
    assert lost.failed(2.0, 0, 1) is None, "the restart strategy decides"
    lost.began()
    assert lost.failed(3.0, 0, 1) == Shrink(0, 2)
