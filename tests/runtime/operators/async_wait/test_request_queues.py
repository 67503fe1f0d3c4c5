"""The order in which results leave: compared with a naive model, in random orders."""

from __future__ import annotations

import random

import pytest

from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.operators.async_wait.request import Request
from penstock.runtime.operators.async_wait.request_queues import (
    OrderedQueue,
    RequestQueue,
    UnorderedQueue,
)
from penstock.runtime.operators.requests import Held
from tests.sizes import sized

SEEDS = sized(200, 5_000)


class Naive:
    """Looks at all items each time."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.items: list[Request | Held] = []
        self.ended: list[Request] = []

    def take(self, most: int) -> list[Request] | Held | None:
        if not self.items:
            return None
        if isinstance(first := self.items[0], Held):
            return self.items.pop(0)  # type: ignore[return-value]
        allowed = []
        for item in self.items:
            if isinstance(item, Held) or (self.ordered and item.results is None):
                break
            allowed.append(item)
        taken = [one for one in (allowed if self.ordered else self.ended) if one in allowed]
        taken = [one for one in taken if one.results is not None][:most]
        assert isinstance(first, Request)
        self.items = [item for item in self.items if item not in taken]
        self.ended = [item for item in self.ended if item not in taken]
        return taken or None


@pytest.mark.parametrize("ordered", [True, False])
def test_results_leave_in_the_order_of_the_model(ordered: bool) -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        queue: RequestQueue = OrderedQueue() if ordered else UnorderedQueue()
        model, running = Naive(ordered), list[Request]()
        for step in range(60):
            match rng.choice(["add", "add", "add", "end", "end", "end", "take", "take", "hold"]):
                case "add":
                    request = Request(step, 0, False)
                    running.append(request)
                    queue.add(request)
                    model.items.append(request)
                case "hold":
                    held = Held("channel", Watermark(step))
                    queue.hold(held)
                    model.items.append(held)
                case "end" if running:
                    request = running.pop(rng.randrange(len(running)))
                    request.end([])
                    queue.ended(request)
                    model.ended.append(request)
                case "take":
                    most = rng.choice([1, 2, 100])
                    ready = queue.ready
                    taken = queue.take(most)
                    assert taken == model.take(most), f"seed {seed}, step {step}"
                    assert ready == (taken is not None), f"seed {seed}, step {step}"
            assert queue.empty == (not model.items), f"seed {seed}, step {step}"
