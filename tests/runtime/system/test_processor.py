"""How much of the processor a thread gets."""

from __future__ import annotations

import pytest

from penstock.runtime.system.processor import PERIOD_SECONDS, ThreadProcessor, run_times


def test_the_share_follows_the_times_for_which_the_thread_ran_and_waited() -> None:
    now, times = 100.0, [(0, 0)]
    processor = ThreadProcessor(lambda: times[0])
    processor.measure(now)
    assert processor.share == 1
    for _ in range(20):
        now += PERIOD_SECONDS
        ran, waited = times[0]
        times[0] = (ran + 20_000_000, waited + 60_000_000)
        processor.measure(now)
    assert processor.share == pytest.approx(0.25, rel=0.01)
    before = processor.share
    times[0] = (10**12, 10**9)
    processor.measure(now + PERIOD_SECONDS / 2)
    assert processor.share == before, "it is measured after a period only"


def test_a_thread_that_is_mostly_idle_gets_a_whole_processor() -> None:
    now, times = 100.0, [(0, 0)]
    processor = ThreadProcessor(lambda: times[0])
    for _ in range(20):
        now += PERIOD_SECONDS
        ran, waited = times[0]
        times[0] = (ran + 1_000_000, waited + 9_000_000)
        processor.measure(now)
        assert processor.share == 1


def test_without_the_kernels_counts_the_thread_gets_a_whole_processor() -> None:
    processor = ThreadProcessor(lambda: None)
    processor.measure(100.0)
    assert processor.share == 1


def test_this_kernel_counts_both_times_or_none() -> None:
    times = run_times()
    assert times is None or (times[0] > 0 and times[1] >= 0)
