"""How sizes of slices and batches follow the time that slices take."""

from __future__ import annotations

from penstock.runtime.task.batch_sizing import SLICE_SECONDS, Pace


def paced(seconds_per_record: float) -> Pace:
    """A pace that has settled on records that take so long."""
    pace = Pace()
    for _ in range(30):
        pace.took(pace.slice, pace.slice * seconds_per_record)
    return pace


def test_slices_grow_by_doubling_until_they_take_as_long_as_they_should() -> None:
    pace, sizes = Pace(), []
    for _ in range(6):
        sizes.append(pace.slice)
        pace.took(pace.slice, pace.slice * SLICE_SECONDS / 20)
    assert sizes == [1, 2, 4, 8, 16, 20]


def test_a_slice_that_was_not_full_is_no_reason_for_larger_ones() -> None:
    pace = Pace()
    pace.took(1, 1e-5)
    assert pace.slice == 2
    pace.took(1, 1e-5)
    assert pace.slice == 2


def test_one_interruption_halves_and_no_more() -> None:
    pace = paced(1e-6)
    slice, batch = pace.slice, pace.batch
    pace.took(pace.slice, 5 * SLICE_SECONDS)
    assert (pace.slice, pace.batch) == (slice // 2, batch // 2)
    pace.took(pace.slice, pace.slice * 1e-6)
    assert pace.slice >= slice - 1


def test_a_function_that_becomes_a_few_times_slower_gets_what_fits_after_some_halves() -> None:
    pace = paced(1e-6)
    for _ in range(3):
        pace.took(pace.slice, pace.slice * 5e-6)
    assert pace.slice * 5e-6 <= SLICE_SECONDS
    assert pace.batch == paced(5e-6).batch


def test_a_function_that_becomes_much_slower_gets_what_fits_at_once() -> None:
    pace = paced(1e-6)
    pace.took(pace.slice, pace.slice * 1e-3)
    assert (pace.slice, pace.batch) == (1, 1)


def test_output_that_waits_for_room_makes_slices_and_batches_small() -> None:
    pace = paced(1e-6)
    assert pace.wanted(2) == (1000, 25)
    for _ in range(100):
        records = pace.slice
        pace.took(records, records * 1e-6)
        pace.waited(records * 2e-3)
    assert pace.slice == int(0.1 / 8 / 2e-3)
    assert pace.wanted(2) == (3, 4)
    assert pace.wanted(50) == (1, 1)


def test_senders_follow_after_a_millisecond_and_not_after_each_short_slice() -> None:
    pace = paced(2e-5)
    followed = [pace.took(1, 2e-5) for _ in range(500)]
    assert 9 <= sum(followed) <= 11


def test_after_a_long_wait_a_quick_task_is_soon_at_full_size() -> None:
    pace = paced(1e-6)
    pace.waited(10.0)
    assert pace.slice == 1
    seconds = 0.0
    while pace.slice < 900:
        seconds += pace.slice * 1e-6 + 2e-5
        pace.took(pace.slice, pace.slice * 1e-6 + 2e-5)
    assert seconds < 0.2
