"""Variants of loops: what they leave out or swap, their lines, and loops without a text."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.runtime.codegen import (
    raised_by_generated_code,
    specialize,
    with_swapped_arguments,
    without_times,
)
from penstock.runtime.operators import record_loops
from penstock.runtime.operators.joins import table_loops

NAMES = {"timestamp", "timestamps", "times"}


def shout(
    function: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: list[int],
    times: list[int],
) -> list[Any]:
    out: list[Any] = []
    for record, timestamp in zip(iterator, timestamps, strict=False):
        for word in function(record):
            if word:
                out.append(f"{word}!")
                times.append(timestamp)
    return out


def shout_by_hand(function: Callable[[Any], Any], iterator: Iterator[Any]) -> list[Any]:
    out: list[Any] = []
    for record in iterator:
        for word in function(record):
            if word:
                out.append(f"{word}!")
    return out


def fold(add: Callable[[Any, Any], Any], iterator: Iterator[Any], value: Any) -> Any:
    for record in iterator:
        value = add(record, value)
    return value


def names_of(loop: Any) -> set[str]:
    return {*loop.__code__.co_varnames, *loop.__code__.co_names}


def test_a_variant_has_the_code_of_a_loop_that_is_written_by_hand() -> None:
    variant: Any = without_times(shout)
    assert variant.__code__.co_code == shout_by_hand.__code__.co_code
    assert variant.__code__.co_varnames == shout_by_hand.__code__.co_varnames
    assert variant(str.split, iter(["a b", "c"])) == ["a!", "b!", "c!"]
    assert without_times(shout) is variant


def test_no_variant_uses_event_times() -> None:
    loops = [*vars(record_loops).values(), *vars(table_loops).values()]
    timed = [each for each in loops if inspect.isfunction(each) and "times" in names_of(each)]
    # The two whose loop without event times is written by hand.
    timed = [each for each in timed if "_timed_" not in each.__name__]
    assert len(timed) == 5
    for loop in timed:
        assert not NAMES & names_of(without_times(loop)), loop.__name__


def test_arguments_are_swapped() -> None:
    assert fold(lambda record, text: text + record, iter("abc"), "") == "abc"
    swapped = with_swapped_arguments(fold, "add")
    assert swapped(lambda text, record: text + record, iter("abc"), "") == "abc"


def test_errors_have_the_line_of_the_loop() -> None:
    def fails(_: Any) -> Any:
        raise ValueError

    with pytest.raises(ValueError) as caught:
        without_times(shout)(fails, iter(["a"]))
    frame = traceback.extract_tb(caught.value.__traceback__)[-2]
    assert frame.filename == __file__ and frame.name == "shout"
    assert frame.line == "for word in function(record):"


def test_functions_are_inlined_into_a_variant() -> None:
    function = lambda record: record["a"]  # noqa: E731
    loop = specialize(without_times(shout), {"function": function})
    assert loop is not None
    assert loop(None, iter([{"a": ["x", ""]}])) == ["x!"]
    with pytest.raises(KeyError) as caught:
        loop(None, iter([{}]))
    assert raised_by_generated_code(caught.value)
    add = lambda text, record: text + record  # noqa: E731
    swapped = specialize(with_swapped_arguments(fold, "add"), {"add": add})
    assert swapped is not None and swapped(None, iter("abc"), "") == "abc"


def test_without_its_text_a_loop_has_slower_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_text(_: Any) -> str:
        raise OSError

    monkeypatch.setattr(inspect, "getsource", no_text)
    loop = without_times.__wrapped__(shout)
    assert loop(str.split, iter(["a b", "c"])) == ["a!", "b!", "c!"]
    swapped = with_swapped_arguments.__wrapped__(fold, "add")
    assert swapped(lambda text, record: text + record, iter("abc"), "") == "abc"
    assert specialize(loop, {"function": lambda record: record}) is None
