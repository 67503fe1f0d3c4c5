"""Equal records have equal texts in all processes, and other records have others."""

import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import numpy as np
import pytest

from penstock.runtime.shadow.record_text import record_text

Pair = namedtuple("Pair", "left right")


@dataclass
class Point:
    x: int
    tags: set

    def __repr__(self):
        return "a point"


class Plain:
    def __init__(self, value):
        self.value = value


class Opaque:
    """Has no attributes to compare, and a `repr` that raises."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        raise ValueError("no repr")


@pytest.mark.parametrize(
    "one, other",
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({3, 1, 2}, {2, 3, 1}),
        ([float("nan")], [float("nan")]),
        (Point(1, {"b", "a"}), Point(1, {"a", "b"})),
        (Plain([1]), Plain([1])),
        (Opaque(1), Opaque(1)),
        (np.arange(5_000), np.arange(5_000)),
    ],
)
def test_equal_records_have_equal_texts(one, other):
    assert record_text(one) == record_text(other)


@pytest.mark.parametrize(
    "one, other",
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        ([1], (1,)),
        ({1: 2}, {1: 3}),
        (set(), frozenset()),
        (Point(1, set()), Point(2, set())),
        (Plain(1), Plain(2)),
        (Opaque(1), Opaque(2)),
        (Pair(1, 2), (1, 2)),
        (Decimal("1.0"), Decimal("1.00")),
        (date(2026, 1, 1), date(2026, 1, 2)),
        # Its repr has the same first and last three elements.
        (np.zeros(5_000), np.where(np.arange(5_000) == 2_500, 1.0, 0.0)),
        (np.zeros(3), np.zeros(3, dtype=np.float32)),
    ],
)
def test_other_records_have_other_texts(one, other):
    assert record_text(one) != record_text(other)


def test_a_text_can_be_read():
    assert record_text(Pair("a", [None, b"x"])) == "Pair(left='a', right=[None, b'x'])"
    assert record_text(Opaque(1)).startswith("<Opaque, whose repr raised ValueError> [")
    assert record_text(Point(1, {2, 1})) == "Point(x=1, tags={1, 2})"


def test_another_process_writes_the_same_text():
    program = "from penstock.runtime.shadow.record_text import record_text; " + (
        "print(record_text({'b': {'x', 'y', 'z'}, 'a': frozenset('pqr')}))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(texts) == 1
