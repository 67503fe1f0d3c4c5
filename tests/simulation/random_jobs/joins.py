"""Joins of random jobs. No record is late, so that the output is the same in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock import Time, TumblingEventTimeWindows
from penstock.dataflow.streams import DataStream
from tests.simulation.random_jobs.windows import STEP, punctual

__all__ = ["expected_pairs", "joined_pairs"]

#: The numbers of a window, and the largest difference of two numbers in an interval.
WINDOW, FAR = 5, 3


def joined_pairs(stream: DataStream, choices: Any) -> DataStream:
    """Join numbers with the same numbers in a window, in an interval, and as of their time."""
    keys, numbers = choices.keys, punctual(stream, choices)
    texts = numbers.rebalance().map(lambda i: str(i)).uid("texts")
    left, right = numbers.key_by(lambda i: i % keys), texts.key_by(lambda text: int(text) % keys)
    windows = numbers.join(texts).where(lambda i: i % keys).equal_to(lambda text: int(text) % keys)
    joined = windows.window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW * STEP)))
    in_windows = joined.apply(lambda i, text: ("window", i, int(text))).uid("window join")
    near = (
        left.interval_join(right)
        .between(Time.milliseconds(-FAR * STEP), Time.milliseconds(FAR * STEP))
        .process(lambda i, text: ("near", i, int(text)))
        .uid("interval join")
    )
    even = texts.filter(lambda text: int(text) % 2 == 0).uid("even texts")
    as_of = left.as_of_join(
        even.key_by(lambda text: int(text) % keys),
        how="left",
        function=lambda i, text: ("as of", i, -1 if text is None else int(text)),
    )
    return in_windows.union(near, as_of.uid("as-of join"))


def expected_pairs(inputs: Sequence[int], keys: int) -> Counter[Any]:
    """Return what `joined_pairs` must emit."""
    pairs = [(i, j) for i in inputs for j in inputs if i % keys == j % keys]
    expected = Counter[Any](("window", i, j) for i, j in pairs if i // WINDOW == j // WINDOW)
    expected.update(("near", i, j) for i, j in pairs if abs(i - j) <= FAR)
    even = Counter(dict.fromkeys(inputs, -1))
    for i, j in pairs:
        if j <= i and j % 2 == 0:
            even[i] = max(even[i], j)
    expected.update(("as of", i, j) for i, j in even.items())
    return expected
