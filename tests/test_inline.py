"""Expressions of users' functions in loops: which are found, that they mean the same, errors."""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.runtime import loops
from penstock.runtime.inline import expression_of, inlined, was_inlined
from penstock.snapshot.state import MISSING

OUTSIDE = 3


def second(record: Any) -> Any:
    """With a docstring, which is a constant of its code."""
    return record[1]


def assigns(record: Any) -> Any:
    found = record[1]
    return found, found


def text_of(function: Callable[..., Any]) -> str | None:
    found = expression_of(function)
    return None if found is None else ast.unparse(found[1])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda pair: pair[0], "pair[0]"),
        (lambda a, b: (a[0], a[1] + b[1]), "(a[0], a[1] + b[1])"),
        (lambda record: record["user"], "record['user']"),
        (lambda record: record.user.name, "record.user.name"),
        (lambda record: record[-1], "record[-1]"),
        (lambda n: n * -0.0, "n * -0.0"),
        (lambda n: n % 2 == 0, "n % 2 == 0"),
        (lambda n: -n - (n - 1), "-n - (n - 1)"),
        (lambda n: n is not None, "n is not None"),
        (lambda a, b: a not in b, "a not in b"),
        (lambda n: [n, n], "[n, n]"),
        (lambda a, b: b**a // 2 | a, "b ** a // 2 | a"),
        (lambda record: record, "record"),
        (lambda _: True, "True"),
        (second, "record[1]"),
    ],
)
def test_what_only_computes_is_an_expression(function: Callable[..., Any], expected: str) -> None:
    assert text_of(function) == expected


class Callable_:
    def __call__(self, record: Any) -> Any:
        return record[0]

    def method(self, record: Any) -> Any:
        return record[0]


def with_cell(number: int) -> Callable[[Any], Any]:
    return lambda record: record[number]


@pytest.mark.parametrize(
    "function",
    [
        assigns,
        Callable_(),
        Callable_().method,
        operator.itemgetter(0),
        len,
        with_cell(0),
        lambda n: n + OUTSIDE,
        lambda n: len(n),
        lambda n: n.lower(),
        lambda n: f"{n}",
        lambda n: n if n else None,
        lambda n: n and n[0],
        lambda n: [m + 1 for m in n],
        lambda *n: n,
        lambda n, m=1: n,
        lambda n, /: n,
        lambda n, *, m: n,
        lambda n: (yield n),
        lambda n: n[0] + n[0] + n[0] + n[0] + n[0] + n[0] + n[0] + n[0] + n[0] + n[0] + n[0],
    ],
)
def test_everything_else_is_called(function: Any) -> None:
    assert text_of(function) is None
    assert inlined(loops.map_records, function=function) is loops.map_records


class Random:
    """Makes random expressions of one parameter."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __call__(self, depth: int) -> str:
        rng = self._rng
        if depth == 0 or rng.random() < 0.2:
            return rng.choice(["r[0]", "r[1]", "r[2]", "1", "7", "True", "0.5"])
        left, right = self(depth - 1), self(depth - 1)
        return rng.choice(
            [
                f"({left} + {right})",
                f"({left} - {right})",
                f"({left} * {right})",
                f"({left} < {right})",
                f"({left} == {right})",
                f"({left} is not {right})",
                f"(not {left})",
                f"(-{left})",
                f"({left}, {right})[0]",
                f"({left} and {right})",
                f"({left} if {right} else {left})",
            ]
        )


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("seed", range(100))
def test_a_loop_with_an_expression_gives_what_the_function_gives(seed: int) -> None:
    text = Random(seed)(3)
    function = eval(f"lambda r: {text}")
    loop = inlined(loops.map_records, function=function)
    records = [(n, n % 3, -n) for n in range(20)]
    assert list(map(repr, loop(function, iter(records)))) == [repr(function(r)) for r in records]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_most_random_expressions_are_found() -> None:
    functions = [eval(f"lambda r: {Random(seed)(1)}") for seed in range(60)]
    assert sum(expression_of(function) is not None for function in functions) > 30


def test_a_reduce_has_both_expressions_and_keeps_its_state() -> None:
    combine, key_of = lambda a, b: (b[0], b[1] + a[1]), lambda pair: pair[0]
    loop = inlined(loops.reduce_records, combine=combine, key_of=key_of)
    assert loop is not loops.reduce_records
    state: dict[Any, Any] = {"a": ("a", 10)}
    records = [("a", 1), ("b", 2), ("a", 3)]

    def never(*_: Any) -> Any:
        raise AssertionError

    out = loop(never, never, iter(records), state, lambda _: MISSING, hash, never)
    assert out == [("a", 11), ("b", 2), ("a", 14)]
    assert state == {"a": ("a", 14), "b": ("b", 2)}


def test_what_an_expression_raises_is_told_from_what_a_function_raises() -> None:
    def calls(record: Any) -> Any:
        return len(record)

    divides = lambda n: 1 // n  # noqa: E731
    with pytest.raises(ZeroDivisionError) as caught:
        inlined(loops.map_records, function=divides)(divides, iter([0]))
    assert was_inlined(caught.value)
    with pytest.raises(TypeError) as also:
        loops.map_records(calls, iter([0]))
    assert not was_inlined(also.value)
    assert not was_inlined(ValueError())


def test_a_function_with_another_number_of_parameters_is_left_to_raise() -> None:
    wrong = lambda a, b: a[0]  # noqa: E731
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        inlined(loops.map_records, function=wrong)(wrong, iter([(1, 2)]))
