"""Which tasks are slower than their peers, and what each looks like, from figures alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.runtime.jobmanager.reporting.stragglers import (
    AT_WORK_SHARE,
    FEWEST_SAMPLED,
    Cause,
    ProcessWork,
    Straggler,
    TaskWork,
    find_stragglers,
)

FACTOR = 1.4


def work(subtask: int, records: int, busy: float, **more: Any) -> TaskWork:
    """What a task has done in 10 s."""
    return TaskWork(subtask, 10.0, records, busy, **more)


def find(works: Sequence[TaskWork], source: bool = False, keyed: bool = True) -> list[Straggler]:
    return find_stragglers(works, FACTOR, is_source=source, keyed=keyed)


def only(works: Sequence[TaskWork], source: bool = False, keyed: bool = True) -> Straggler:
    [straggler] = find(works, source, keyed)
    return straggler


# ---- who is one


def test_a_task_without_peers_is_none():
    assert find([work(0, 10, 10.0)]) == find([]) == []


def test_tasks_that_are_all_idle_are_none():
    assert find([work(0, 0, 0.0), work(1, 0, 0.0), work(2, 0, 0.0)]) == []


def test_equal_tasks_are_none_however_busy_they_are():
    assert find([work(n, 1000, 9.9) for n in range(4)]) == []
    assert find([work(n, 1000, 9.9) for n in range(4)], source=True) == []


def test_a_task_that_is_idle_for_most_of_the_time_is_none():
    busy = 10 * AT_WORK_SHARE
    assert find([work(0, 1000, busy - 0.1), work(1, 10, 0.1)]) == []
    assert only([work(0, 1000, busy), work(1, 10, 0.1)]).work.subtask == 0


@pytest.mark.parametrize(("busy", "found"), [(7.0, True), (6.9, False)])
def test_a_task_is_one_from_the_factor_on(busy: float, found: bool):
    works = [work(0, int(busy * 100), busy), work(1, 500, 5.0), work(2, 500, 5.0)]
    assert bool(find(works)) is found


def test_the_peers_do_not_include_the_task_itself():
    straggler = only([work(0, 800, 8.0), work(1, 500, 5.0)])
    assert straggler.ratio == pytest.approx(1.6)


def test_the_median_and_not_the_mean_of_the_peers_counts():
    works = [work(0, 900, 9.0), work(1, 500, 5.0), work(2, 500, 5.0), work(3, 900, 9.0)]
    assert [one.work.subtask for one in find(works)] == [0, 3]


def test_a_task_whose_peers_have_nothing_to_do_has_an_infinite_ratio():
    straggler = only([work(0, 900, 9.0), work(1, 0, 0.0), work(2, 0, 0.0)])
    assert (straggler.ratio, straggler.per_record) == (math.inf, False)


def test_a_task_that_has_finished_no_record_in_the_window_has_an_infinite_ratio():
    straggler = only([work(0, 0, 10.0), work(1, 500, 5.0)])
    assert (straggler.ratio, straggler.per_record) == (math.inf, True)
    assert straggler.cause is Cause.SLOW_RECORDS


def test_tasks_are_compared_by_their_own_windows():
    longer = replace(work(1, 1000, 10.0), seconds=20.0)
    assert find([work(0, 500, 5.0), longer]) == []
    short = TaskWork(1, 0.01, 1, 0.005)
    assert find([work(0, 1000, 5.0), short]) == []


def test_more_time_at_work_than_the_window_has_counts_as_all_of_it():
    assert work(0, 1, 15.0).at_work == 1.0


def test_the_slowest_comes_first():
    works = [work(0, 700, 7.0), work(1, 1000, 10.0), *(work(n, 100, 1.0) for n in range(2, 6))]
    assert [one.work.subtask for one in find(works)] == [1, 0]


# ---- more records


def test_a_hot_key_is_named_with_its_share():
    keys = {"'hot'": 70, "'a'": 3, "'b'": 2}
    straggler = only([work(0, 900, 9.0, sampled=100, keys=keys), work(1, 100, 1.0)])
    assert (straggler.cause, straggler.key, straggler.share) == (Cause.HOT_KEY, "'hot'", 0.7)


def test_several_frequent_keys_of_which_none_stands_out_are_no_hot_key():
    keys = {"'a'": 20, "'b'": 20, "'c'": 20}
    straggler = only([work(0, 900, 9.0, sampled=100, keys=keys), work(1, 100, 1.0)])
    assert (straggler.cause, straggler.key) == (Cause.MORE_RECORDS, None)


def test_a_key_need_not_have_most_records_if_the_peers_have_nearly_as_many():
    keys = {"'a'": 30}
    straggler = only([work(0, 900, 9.0, sampled=100, keys=keys), work(1, 500, 5.0)])
    assert straggler.cause is Cause.HOT_KEY


def test_a_few_sampled_records_say_nothing_about_keys():
    few = FEWEST_SAMPLED - 1
    sampled = work(0, 900, 9.0, sampled=few, keys={"'a'": few})
    assert only([sampled, work(1, 100, 1.0)]).cause is Cause.MORE_RECORDS


def test_a_hot_key_is_the_cause_even_if_its_task_waits_for_processors_and_outputs():
    process = ProcessWork(waited=4.0, switches=9000)
    hot = work(0, 900, 5.0, blocked=4.0, sampled=50, keys={"7": 50}, process=process)
    assert only([hot, work(1, 100, 1.0)]).cause is Cause.HOT_KEY


def test_without_keys_a_task_with_more_records_must_be_at_work_all_the_time():
    assert find([work(0, 600, 6.0), work(1, 100, 1.0)], keyed=False) == []
    straggler = only([work(0, 1000, 10.0), work(1, 100, 1.0)], keyed=False)
    assert (straggler.cause, straggler.key) == (Cause.MORE_RECORDS, None)


def test_a_source_that_reads_more_records_is_none():
    assert find([work(0, 9000, 9.0), work(1, 1000, 1.0)], source=True) == []


# ---- slow records


def test_a_slow_split_is_the_cause_in_a_source():
    slow = work(0, 100, 10.0, splits=("b",))
    straggler = only([slow, work(1, 1000, 10.0), work(2, 1000, 10.0)], source=True)
    assert (straggler.cause, straggler.ratio) == (Cause.SLOW_SPLIT, pytest.approx(10))
    assert straggler.work.splits == ("b",)


def test_reads_in_threads_count_but_not_together_with_the_work_beside_them():
    slow = work(0, 100, 1.0, reading=10.0)
    assert slow.at_work == 1.0
    assert only([slow, work(1, 1000, 5.0, reading=4.0)], source=True).cause is Cause.SLOW_SPLIT


def test_slow_records_with_nothing_else_are_said_to_be_just_that():
    straggler = only([work(0, 100, 9.0), work(1, 100, 1.0)])
    assert (straggler.cause, straggler.per_record) == (Cause.SLOW_RECORDS, True)


def test_a_key_with_most_of_the_slow_records_is_named():
    slow = work(0, 100, 9.0, sampled=90, keys={"'dear'": 80})
    assert only([slow, work(1, 100, 1.0)]).cause is Cause.HOT_KEY


def test_a_task_that_waits_for_later_ones_is_blocked_downstream():
    blocked = work(1, 100, 1.0, blocked=9.0)
    straggler = only([work(0, 1000, 10.0), blocked], source=True)
    assert straggler.cause is Cause.BLOCKED
    assert straggler.share == pytest.approx(0.9)


def test_tasks_that_are_all_blocked_are_none():
    works = [work(n, 100, 1.0, blocked=9.0) for n in range(3)]
    assert find(works) == find(works, source=True) == []


@pytest.mark.parametrize(
    ("process", "cause"),
    [
        (ProcessWork(waited=5.0, switches=2000), Cause.STARVED),
        (ProcessWork(stolen=4.0), Cause.STARVED),
        (ProcessWork(faults=6000), Cause.SWAPPING),
        (ProcessWork(collecting=5.0), Cause.GARBAGE_COLLECTION),
        (ProcessWork(waited=3.0, collecting=4.0), Cause.GARBAGE_COLLECTION),
        (ProcessWork(waited=1.0, stolen=0.5, faults=500, collecting=0.5), Cause.SLOW_RECORDS),
    ],
)
def test_what_explains_most_of_the_lost_time_is_the_cause(process: ProcessWork, cause: Cause):
    works = [work(0, 300, 9.0, process=process), work(1, 300, 3.0), work(2, 300, 3.0)]
    assert only(works).cause is cause
    source = cause if cause is not Cause.SLOW_RECORDS else Cause.SLOW_SPLIT
    assert only(works, source=True).cause is source


def test_what_the_peers_suffer_as_well_is_no_cause():
    def waiting(subtask: int, busy: float) -> TaskWork:
        process = ProcessWork(waited=busy / 2, stolen=3.0, faults=busy * 200, collecting=busy / 4)
        return work(subtask, 300, busy, process=process)

    assert only([waiting(0, 9.0), waiting(1, 3.0)]).cause is Cause.SLOW_RECORDS


def test_peers_without_records_are_nobody_to_be_compared_with():
    assert find([work(0, 100, 9.0), work(1, 0, 0.0)], source=True) == []
    assert find([work(0, 100, 9.0), work(1, 0, 9.0)], source=True)[0].work.subtask == 1


def test_the_median_of_the_costs_leaves_out_peers_without_records():
    works = [work(0, 100, 9.0), work(1, 0, 0.0), work(2, 1000, 9.0)]
    assert only(works, source=True).ratio == pytest.approx(10)
