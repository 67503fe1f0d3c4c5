"""How the objects of a job's code come back in a worker: equal, and with quick attributes."""

from __future__ import annotations

import gc
import pickle
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from penstock import SinkFunction
from penstock.runtime.control.code_pickler import copied_as_code, dumps


def sent(value: Any) -> Any:
    return pickle.loads(dumps(value))


def has_dict(value: Any) -> bool:
    """Whether its attributes are in a dictionary, instead of in the object itself."""
    return any(type(part) is dict for part in gc.get_referents(value))


class Last(SinkFunction):
    def __init__(self, name: str) -> None:
        self.name, self.records = name, 0

    def invoke(self, value: Any) -> None:
        self.records += 1


class Local:
    pass


def test_attributes_are_in_the_object_itself():
    class Inner:
        def __init__(self) -> None:
            self.rate = 0.5

    function = Last("a")
    function.inner = Inner()  # type: ignore[attr-defined]
    copy = sent(function)
    assert type(copy) is Last and copy.name == "a" and copy.records == 0 and copy.inner.rate == 0.5
    assert not has_dict(copy) and not has_dict(copy.inner)
    # Where this is not so any more, all of this is not needed; it is not from 3.13 on.
    assert has_dict(pickle.loads(pickle.dumps(Last("a")))) == (sys.version_info < (3, 13))
    copy.invoke(1)
    assert copy.records == 1 and vars(copy).keys() == vars(function).keys()


def test_objects_that_refer_to_each_other_do_so_again():
    left, right = Local(), Local()
    left.other, right.other, left.own = right, left, left  # type: ignore[attr-defined]
    copy = sent([left, right, left])
    assert copy[0] is copy[2] and copy[0].own is copy[0]
    assert copy[0].other is copy[1] and copy[1].other is copy[0]


class Noisy:
    def __init__(self) -> None:
        vars(self).update(a=1, b=2)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("it is not to be called")


@dataclass(frozen=True)
class Frozen:
    a: int
    b: str


@dataclass(slots=True)
class Slots:
    a: int


class SlotsAndMore(Slots):
    pass


class Doubled:
    """Its attribute is not what is in its dictionary."""

    @property
    def a(self) -> int:
        return 2 * int(vars(self)["a"])

    @a.setter
    def a(self, value: int) -> None:
        raise AssertionError("it is not to be called")


class Cached:
    def __init__(self) -> None:
        self.calls = 0

    @cached_property
    def a(self) -> int:
        self.calls += 1
        return 5


class States:
    asked = 0

    def __init__(self) -> None:
        self.a, self.lock = 1, "not sent"

    def __getstate__(self) -> dict[str, Any]:
        States.asked += 1
        return {"a": self.a}


class Sets:
    def __init__(self) -> None:
        self.a = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.a = state["a"] + 1


class Reduces:
    def __init__(self, a: int) -> None:
        self.a = a

    def __reduce__(self) -> Any:
        return Reduces, (self.a + 1,)


class Items(dict[str, int]):
    a = 0


def test_classes_with_ways_of_their_own_keep_them():
    assert vars(sent(Noisy())) == {"a": 1, "b": 2}
    assert sent(Frozen(1, "b")) == Frozen(1, "b")
    assert sent(Slots(1)) == Slots(1)
    more = SlotsAndMore(1)
    more.b = 2  # type: ignore[attr-defined]
    assert (sent(more).a, sent(more).b) == (1, 2)
    doubled = Doubled()
    vars(doubled)["a"] = 4
    assert sent(doubled).a == 8
    cached = Cached()
    assert (cached.a, sent(cached).a, sent(cached).calls) == (5, 5, 1)
    assert sent(Sets()).a == 2
    assert sent(Reduces(1)).a == 2
    items = Items(x=1)
    items.a = 3
    assert (sent(items), sent(items).a) == ({"x": 1}, 3)
    odd = Local()
    vars(odd)[1] = "not a name"  # type: ignore[index]
    assert vars(sent(odd)) == {1: "not a name"}
    assert sent(Local()).__dict__ == {}


def test_a_state_is_asked_for_once():
    States.asked = 0
    copy = dumps(States())
    assert States.asked == 1
    assert vars(pickle.loads(copy)) == {"a": 1}


def test_functions_keep_their_files_and_lines():
    def outer(number):
        return [1 // number for _ in range(2)], lambda: number

    copy = copied_as_code(outer)
    for mine, theirs in ((outer, copy), (outer(1)[1], copy(1)[1])):
        assert theirs.__code__.co_filename == __file__
        assert theirs.__code__ == mine.__code__
    with pytest.raises(ZeroDivisionError) as caught:
        copy(0)
    assert [str(entry.path) for entry in caught.traceback[-2:]] == [__file__] * 2


def test_functions_modules_and_what_cannot_be_sent_are_cloudpickles():
    assert sent(lambda x: x + 1)(1) == 2
    assert sent(len) is len and sent(gc) is gc and sent(Last) is Last
    with pytest.raises(TypeError, match="cannot pickle"):
        dumps(iter_of := (n for n in [1]))
    del iter_of
