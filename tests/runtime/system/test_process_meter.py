"""What a process measures of itself: waiting for processors, swapping and garbage collection."""

from __future__ import annotations

import gc

import pytest

from penstock.runtime.system import process_meter
from penstock.runtime.system.process_meter import SWITCH_SECONDS, ProcessMeter, stolen_seconds


def test_figures_never_fall_and_come_from_the_kernel():
    with ProcessMeter(lambda: (5_000_000_000, 2_500_000_000)) as meter:
        first, second = meter.figures(), meter.figures()
    assert first[0] == 2.5
    assert len(first) == 5
    assert all(after >= before >= 0 for before, after in zip(first, second, strict=True))


def test_without_the_times_of_the_kernel_the_waiting_is_estimated_from_switches():
    waited, _, switches, _, _ = ProcessMeter(lambda: None).figures()
    assert waited == pytest.approx(switches * SWITCH_SECONDS)


def test_the_time_of_garbage_collection_is_counted_while_the_meter_runs():
    with ProcessMeter() as meter:
        before = meter.figures()[4]
        gc.collect()
        after = meter.figures()[4]
    gc.collect()
    assert before < after == meter.figures()[4]


def test_a_callback_that_user_code_has_removed_is_no_fault():
    with ProcessMeter():
        gc.callbacks.pop(0)


def test_a_collection_that_had_begun_before_is_left_out():
    with ProcessMeter() as meter:
        gc.callbacks[0]("stop", {})
        assert meter.figures()[4] >= 0


def test_a_kernel_without_such_figures_has_stolen_nothing(monkeypatch: pytest.MonkeyPatch):
    assert stolen_seconds() >= 0

    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(process_meter, "open", refuse, raising=False)
    assert stolen_seconds() == 0.0
