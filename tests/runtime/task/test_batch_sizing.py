"""How sizes of slices and batches follow the time that slices take."""

from __future__ import annotations

from penstock.runtime.task.batch_sizing import (
    COLUMNS_SECONDS,
    FIRST,
    PARTS,
    SLICE_SECONDS,
    TARGET_SECONDS,
    BatchSizer,
    ColumnBatchSizer,
)


def paced(seconds_per_record: float) -> BatchSizer:
    """A sizer that has settled on records that take so long."""
    sizer = BatchSizer()
    for _ in range(30):
        sizer.took(sizer.slice, sizer.slice * seconds_per_record)
    return sizer


def test_slices_grow_by_doubling_until_they_have_the_wanted_duration() -> None:
    sizer, sizes = BatchSizer(), []
    for _ in range(6):
        sizes.append(sizer.slice)
        sizer.took(sizer.slice, sizer.slice * SLICE_SECONDS / 20)
    assert sizes == [1, 2, 4, 8, 16, 20]


def test_slices_do_not_grow_after_a_slice_that_was_not_full() -> None:
    sizer = BatchSizer()
    sizer.took(1, 1e-5)
    assert sizer.slice == 2
    sizer.took(1, 1e-5)
    assert sizer.slice == 2


def test_one_interruption_only_halves_the_size() -> None:
    sizer = paced(1e-6)
    slice, batch = sizer.slice, sizer.batch
    sizer.took(sizer.slice, 5 * SLICE_SECONDS)
    assert (sizer.slice, sizer.batch) == (slice // 2, batch // 2)
    sizer.took(sizer.slice, sizer.slice * 1e-6)
    assert sizer.slice >= slice - 1


def test_slices_of_a_function_that_becomes_somewhat_slower_are_halved_until_they_fit() -> None:
    sizer = paced(1e-6)
    for _ in range(3):
        sizer.took(sizer.slice, sizer.slice * 5e-6)
    assert sizer.slice * 5e-6 <= SLICE_SECONDS
    assert sizer.batch == paced(5e-6).batch


def test_slices_of_a_function_that_becomes_much_slower_fit_at_once() -> None:
    sizer = paced(1e-6)
    sizer.took(sizer.slice, sizer.slice * 1e-3)
    assert (sizer.slice, sizer.batch) == (1, 1)


def test_a_task_takes_as_many_records_at_once_as_its_receivers_want() -> None:
    wanted = 1
    sizer = BatchSizer(output_records=lambda: wanted)
    for _ in range(100):
        sizer.took(sizer.slice, sizer.slice * 1e-6)
        sizer.waited(sizer.slice * 2e-3)
    assert sizer.slice <= 6
    assert sizer.wanted(50) == (1, 1)
    wanted = 1 << 12
    sizer.waited(0.0)
    assert sizer.slice == round(SLICE_SECONDS / 5 / 1e-6)
    assert sizer.wanted(50) == (sizer.slice, 1)


def test_output_that_waits_for_room_makes_slices_and_batches_small() -> None:
    sizer = paced(1e-6)
    assert sizer.wanted(2) == (1000, 25)
    for _ in range(100):
        records = sizer.slice
        sizer.took(records, records * 1e-6)
        sizer.waited(records * 2e-3)
    assert sizer.slice == int(0.1 / 8 / 2e-3)
    assert sizer.wanted(2) == (3, 4)
    assert sizer.wanted(50) == (1, 1)


def test_senders_follow_after_a_millisecond_and_not_after_each_short_slice() -> None:
    sizer = paced(2e-5)
    followed = [sizer.took(1, 2e-5) for _ in range(500)]
    assert 9 <= sum(followed) <= 11


def test_sizes_of_a_fast_task_grow_soon_after_a_long_wait() -> None:
    sizer = paced(1e-6)
    sizer.waited(10.0)
    assert sizer.slice == 1
    seconds = 0.0
    while sizer.slice < 900:
        seconds += sizer.slice * 1e-6 + 2e-5
        sizer.took(sizer.slice, sizer.slice * 1e-6 + 2e-5)
    assert seconds < 0.2


def columnar(call_seconds: float, row_seconds: float) -> BatchSizer:
    """A sizer that has settled on a function with these costs of a call and of a row."""
    sizer = ColumnBatchSizer()
    for _ in range(60):
        sizer.took(sizer.slice, call_seconds + sizer.slice * row_seconds)
    return sizer


def test_slices_of_columns_have_the_wanted_duration_besides_the_cost_of_a_call() -> None:
    for call_seconds in (0.0, 3e-4, 0.02, 1.0):
        size = columnar(call_seconds, 1e-6).slice
        assert 0.9 * COLUMNS_SECONDS < size * 1e-6 < 1.1 * COLUMNS_SECONDS


def test_a_function_whose_calls_become_slow_does_not_get_batches_of_one_row() -> None:
    sizer = columnar(3e-4, 1e-6)
    sizes = []
    for _ in range(200):
        sizes.append(sizer.slice)
        sizer.took(sizer.slice, 0.02 + sizer.slice * 1e-6)
    assert 0.9 * COLUMNS_SECONDS < sizer.slice * 1e-6 < 1.1 * COLUMNS_SECONDS
    batch, batches = sizer.wanted(2)
    assert batch * 1e-6 > 0.9 * COLUMNS_SECONDS
    assert batches >= 1


def test_rows_that_are_dear_come_one_or_two_at_a_time() -> None:
    sizer = columnar(3e-4, 0.1)
    for _ in range(10):
        assert sizer.slice <= 2
        sizer.took(sizer.slice, 3e-4 + sizer.slice * 0.1)
    assert sizer.wanted(1)[0] <= 2


def test_single_rows_do_not_show_that_rows_are_cheap() -> None:
    sizer = ColumnBatchSizer()
    for _ in range(1000):
        sizer.took(1, 0.02)
    batch, batches = sizer.wanted(1)
    assert batch * batches <= FIRST * PARTS
    for _ in range(60):
        sizer.took(sizer.slice, 0.02 + sizer.slice * 1e-3)
    batch, batches = sizer.wanted(1)
    assert batch * batches * 1e-3 <= TARGET_SECONDS
