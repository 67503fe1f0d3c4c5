"""The watermark of a task, against a second implementation that only looks at all channels."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK, Watermark
from penstock.runtime.network.elements import TimeElement, WatermarkStatus
from penstock.runtime.task.watermark_valve import WatermarkValve

IDLE, ACTIVE, END = WatermarkStatus(True), WatermarkStatus(False), Watermark(MAX_WATERMARK)


@dataclass
class Input:
    watermark: int = MIN_WATERMARK
    idle: bool = False
    behind: bool = False

    @property
    def live(self) -> bool:
        return not self.idle and self.watermark != MAX_WATERMARK


class NaiveValve:
    """Looks at all channels after each element, and remembers only what it has emitted."""

    def __init__(self, channels: int) -> None:
        self.inputs = [Input() for _ in range(channels)]
        self.watermark, self.idle = MIN_WATERMARK, False

    def handle(self, index: int, element: TimeElement) -> list[TimeElement]:
        one = self.inputs[index]
        held_back = one.live and one.watermark == self.watermark and not one.behind
        if one.watermark == MAX_WATERMARK:
            return []
        match element:
            case Watermark(time) if time == MAX_WATERMARK or (
                not one.idle and time > one.watermark
            ):
                one.watermark = time
            case WatermarkStatus(idle) if one.idle != idle:
                one.idle = idle
            case _:
                return []
        one.behind = one.live and one.watermark < self.watermark
        if element == ACTIVE:  # as in Flink, the next watermark decides
            was_idle, self.idle = self.idle, False
            return [ACTIVE] if was_idle else []
        return self.look(held_back and not one.live)

    def look(self, gone: bool) -> list[TimeElement]:
        out: list[TimeElement] = []
        open_inputs = [i for i in self.inputs if i.watermark != MAX_WATERMARK]
        live = [i for i in open_inputs if i.live]
        if not open_inputs:
            time = MAX_WATERMARK
        elif live:
            time = min((i.watermark for i in live if not i.behind), default=self.watermark)
        else:
            time = max(i.watermark for i in open_inputs) if gone else self.watermark
        if live and self.idle:
            self.idle = False
            out.append(ACTIVE)
        if time > self.watermark:
            self.watermark = time
            out.append(Watermark(time))
        if open_inputs and not live and not self.idle:
            self.idle = True
            out.append(IDLE)
        return out


def test_every_short_story_of_two_channels_is_as_the_naive_valve_tells_it() -> None:
    steps = [
        (channel, element)
        for channel in (0, 1)
        for element in (Watermark(1), Watermark(2), IDLE, ACTIVE, END)
    ]
    for story in itertools.product(steps, repeat=4):
        valve, naive = WatermarkValve([0, 1]), NaiveValve(2)
        for channel, element in story:
            assert valve.handle(channel, element) == naive.handle(channel, element), story
        assert (valve.watermark, valve.idle) == (naive.watermark, naive.idle)


def test_long_stories_of_many_channels_are_as_the_naive_valve_tells_them() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        count = rng.randint(1, 5)
        valve, naive = WatermarkValve(range(count)), NaiveValve(count)
        for step in range(120):
            element = rng.choice([Watermark(rng.randint(-5, step)), Watermark(step), IDLE, ACTIVE])
            if rng.random() < 0.01:
                element = END
            channel = rng.randrange(count)
            assert valve.handle(channel, element) == naive.handle(channel, element), seed


def test_watermarks_never_go_back_and_the_last_one_comes_when_all_channels_have_ended() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        valve = WatermarkValve(range(3))
        seen: list[int] = []
        story = [(c, Watermark(rng.randint(0, 50))) for c in range(3) for _ in range(20)]
        story += [(rng.randrange(3), rng.choice([IDLE, ACTIVE])) for _ in range(10)]
        rng.shuffle(story)
        for channel, element in [*story, (0, END), (1, END), (2, END)]:
            for out in valve.handle(channel, element):
                if isinstance(out, Watermark):
                    seen.append(out.timestamp)
        assert seen == sorted(set(seen))
        assert seen[-1] == MAX_WATERMARK


def test_an_idle_channel_does_not_hold_the_others_back() -> None:
    valve = WatermarkValve("ab")
    assert valve.handle("a", Watermark(5)) == []
    assert valve.handle("b", IDLE) == [Watermark(5)]
    assert valve.handle("a", Watermark(7)) == [Watermark(7)]
    # It counts again when it has caught up.
    assert valve.handle("b", ACTIVE) == []
    assert valve.handle("b", Watermark(6)) == []
    assert valve.handle("a", Watermark(9)) == [Watermark(9)]
    assert valve.handle("b", Watermark(9)) == []
    assert valve.handle("a", Watermark(12)) == []
    assert valve.handle("b", Watermark(11)) == [Watermark(11)]


def test_an_ended_channel_does_not_end_event_time_while_another_is_idle() -> None:
    valve = WatermarkValve("ab")
    valve.handle("a", Watermark(5))
    valve.handle("b", Watermark(3))
    assert valve.handle("b", IDLE) == [Watermark(5)]
    assert valve.handle("a", END) == [IDLE]
    assert valve.handle("b", ACTIVE) == [ACTIVE]
    assert valve.handle("b", Watermark(8)) == [Watermark(8)]
    assert valve.handle("b", END) == [END]


def test_all_channels_are_idle_only_together() -> None:
    valve = WatermarkValve("ab")
    valve.handle("a", Watermark(1))
    valve.handle("b", Watermark(4))
    assert valve.handle("b", IDLE) == []
    # No records of "a" come for now, so the watermark of "b" need not wait for it any more.
    assert valve.handle("a", IDLE) == [Watermark(4), IDLE]
    assert valve.handle("a", ACTIVE) == [ACTIVE]
    assert valve.handle("a", Watermark(3)) == []


def test_a_restored_valve_goes_on_at_its_watermark() -> None:
    valve = WatermarkValve("ab")
    valve.restore(10)
    assert valve.handle("a", Watermark(8)) == []
    assert valve.handle("a", Watermark(12)) == []
    assert valve.handle("b", Watermark(11)) == [Watermark(11)]
