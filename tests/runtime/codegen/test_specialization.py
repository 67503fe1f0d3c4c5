"""Expressions of users' functions in loops: which are found, that they mean the same, errors."""

from __future__ import annotations

import ast
import operator
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock.runtime.codegen import raised_by_generated_code, specialize, without_times
from penstock.runtime.codegen.decompiler import MOST_INSTRUCTIONS, decompile
from penstock.runtime.codegen.instructions import instructions_of
from penstock.runtime.codegen.specialization import plain_code
from penstock.runtime.operators import record_loops as loops
from penstock.snapshot.state import MISSING

OUTSIDE = 3
flat_map_records = without_times(loops.flat_map_records)


def second(record: Any) -> Any:
    """With a docstring, which is a constant of its code."""
    return record[1]


def assigns(record: Any) -> Any:
    found = record[1]
    return found, found


def inlined(loop: Callable[..., Any], **functions: Any) -> Callable[..., Any]:
    return specialize(loop, functions) or loop


def text_of(function: Any) -> str | None:
    """The expression that a function returns, if it is nothing else and is understood."""
    plain = plain_code(function)
    body = None if plain is None else decompile(plain[0], plain[1] is not None)
    return None if body is None or not body.is_expression else ast.unparse(body.result)


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
        (lambda n: n.strip().lower(), "n.strip().lower()"),
        (lambda n: n.split(",", 1)[0], "n.split(',', 1)[0]"),
        (lambda n: (n.get("a"), n["b"].replace("x", "")), "(n.get('a'), n['b'].replace('x', ''))"),
        (second, "record[1]"),
    ],
)
def test_what_only_computes_is_an_expression(function: Callable[..., Any], expected: str) -> None:
    assert text_of(function) == expected


class Position:
    def __init__(self, position: int) -> None:
        self.position = position

    def __call__(self, record: Any) -> Any:
        return record[self.position]

    def method(self, record: Any) -> Any:
        return record[self.position + 1]

    @staticmethod
    def static(record: Any) -> Any:
        return record[0]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Position(1), "record[self.position]"),
        (Position(1).method, "record[self.position + 1]"),
        (Position(1).static, "record[0]"),
    ],
)
def test_methods_and_objects_that_are_called_are_expressions_of_the_object(
    function: Callable[..., Any], expected: str
) -> None:
    assert text_of(function) == expected
    loop = inlined(loops.map_records, function=function)
    assert loop is not loops.map_records

    def never(_: Any) -> Any:
        raise AssertionError

    records = [(1, 2, 3), (4, 5, 6)]
    assert loop(never, iter(records)) == list(map(function, records))


def test_the_object_of_a_method_is_looked_at_each_time_and_is_its_own():
    one, two = Position(0), Position(1)
    loops_of = [inlined(loops.map_records, function=each) for each in (one, two)]
    assert [loop(None, iter(["abc"])) for loop in loops_of] == [["a"], ["b"]]
    one.position = 2
    assert [loop(None, iter(["abc"])) for loop in loops_of] == [["c"], ["b"]]


class Splits:
    """What its object holds may be anything, a queue for example: it is called."""

    def __init__(self, by: Any) -> None:
        self.by = by

    def flat_map(self, line: str) -> list[str]:
        return [part for part in line.split() if part]

    def all(self, line: str) -> list[str]:
        return [part + part for part in line.split(self.by)]

    def asks(self, line: str) -> Any:
        return (self.by.get(), line[0])

    def asked(self, line: Any) -> Any:
        return line.get(self.by.items())


class Calls:
    count = 0

    def __call__(self, record: Any) -> Any:
        return self.method(record)

    def method(self, record: Any = None) -> Any:
        return record


def with_cell(number: int) -> Callable[[Any], Any]:
    return lambda record: record[number]


@pytest.mark.parametrize(
    "function",
    [
        assigns,
        Calls(),
        Calls().method,
        Position,
        print,
        operator.itemgetter(0),
        len,
        with_cell(0),
        lambda n: n + OUTSIDE,
        lambda n: len(n),
        lambda n: n.pop(),
        lambda n: n.lower(*n),
        lambda n: n.encode(encoding="ascii"),
        Splits(",").asks,
        Splits(",").asked,
        lambda n: lambda: 0,
        lambda n: (lambda: 0, n),
        lambda n: (lambda: 0)(),
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


def words(line: str) -> list[Any]:
    """With a docstring."""
    return [(word, 1) for word in line.split()]


LINES = ["a b,c", "", "d", " e  f,"]
#: In these versions a comprehension is a function of its own, so it sees no parameter without a
#: free variable, and such a function is called.
SEPARATE = sys.version_info < (3, 12)


@pytest.mark.parametrize(
    ("function", "records"),
    [
        (words, LINES),
        (lambda line: [(word, 1) for word in line.split()], LINES),
        (Splits(0).flat_map, LINES),
        (lambda line: [line * 2 for line in line.split()], LINES),
        (lambda out: [(out,) for out in out.split() if out > "b"], LINES),
        (lambda record: [(b, a) for a, b in record.items() if b if not a], [{0: 1, 2: 3, "": 4}]),
        (lambda line: [word.upper() for word in line.split() if not word.isdigit()], LINES),
        (lambda pairs: [a + b for a, b in pairs], [[(1, 2), (3, 4)], []]),
    ],
)
def test_a_comprehension_is_a_loop_in_the_loop(function: Any, records: list[Any]) -> None:
    loop = inlined(flat_map_records, function=function)
    assert loop is not flat_map_records

    def never(_: Any) -> Any:
        raise AssertionError

    expected = flat_map_records(function, iter(records))
    assert loop(never, iter(records)) == expected
    assert text_of(function) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda line: [word + str(OUTSIDE) for word in line.split()],
        lambda line: [a + b for a in line for b in line],
        lambda line: [a for a, *b in line],
        lambda line: [[-a for a in b] for b in line],
        lambda line: [(a, a)[a and 1] for a in line],
        lambda line: [-a for a in line] + [1],
        lambda line: {-a for a in line},
        lambda line: {a: -a for a in line},
        lambda line: (a for a in line),
        lambda line: [-a for a in line.pop()],
        lambda line: [-a for a in line.split()[0:2]],
        Splits(",").all,
        lambda line: [a for a in line if a and len(a)],
    ],
)
def test_other_comprehensions_are_called(function: Any) -> None:
    assert inlined(flat_map_records, function=function) is flat_map_records


def several_lines(line: str) -> list[Any]:
    return [(word, 1) for word in line.split() if word if not word.isdigit() if word is not None]


def one_test_on_a_line(lines: list[Any]) -> list[Any]:
    return [
        line
        for line in lines
        if line is not None
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "records"),
    [(several_lines, LINES), (one_test_on_a_line, [["a", None], []])],
)
def test_lines_of_a_comprehension_make_no_difference(function: Any, records: list[Any]) -> None:
    loop = inlined(flat_map_records, function=function)
    assert loop is not flat_map_records
    expected = flat_map_records(function, iter(records))
    assert loop(None, iter(records)) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda line: [(word, line) for word in line.split()],
        lambda line: [line for word in line.split() if word > line],
        lambda line: [(line, line + "x") for line in line.split() if line > "b"],
    ],
)
def test_a_comprehension_may_see_the_parameter(function: Any) -> None:
    loop = inlined(flat_map_records, function=function)
    sees = "line" in function.__code__.co_cellvars
    assert (loop is flat_map_records) == sees and (SEPARATE or not sees)
    assert loop(function, iter(LINES)) == flat_map_records(function, iter(LINES))


def test_a_comprehension_is_put_nowhere_else() -> None:
    for loop in (loops.map_records, loops.filter_records, loops.call_records):
        assert inlined(loop, function=words) is loop


def test_what_a_comprehension_raises_is_told_and_names_its_record() -> None:
    function = lambda line: [1 // len_ for len_ in line]  # noqa: E731
    loop = inlined(flat_map_records, function=function)
    records = iter([[1], [1, 0], [2]])
    with pytest.raises(ZeroDivisionError) as caught:
        loop(function, records)
    assert raised_by_generated_code(caught.value)
    assert operator.length_hint(records) == 1


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
@pytest.mark.parametrize("seed", range(100))
def test_a_loop_with_a_comprehension_gives_what_the_function_gives(seed: int) -> None:
    make = Random(seed)
    function = eval(f"lambda rs: [{make(2)} for r in rs.values() if {make(1)} if {make(1)}]")
    loop = inlined(flat_map_records, function=function)
    records = [{n: (n, n % 3, -n) for n in range(length)} for length in (3, 0, 9)]
    expected = flat_map_records(function, iter(records))
    assert list(map(repr, loop(function, iter(records)))) == list(map(repr, expected))


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_most_random_expressions_are_found() -> None:
    functions = [eval(f"lambda r: {Random(seed)(1)}") for seed in range(60)]
    assert sum(text_of(function) is not None for function in functions) > 30


def test_a_reduce_has_both_expressions_and_keeps_its_state() -> None:
    combine, key_of = lambda a, b: (b[0], b[1] + a[1]), lambda pair: pair[0]
    loop = inlined(loops.reduce_records, combine=combine, key_of=key_of)
    assert loop is not loops.reduce_records
    state: dict[Any, Any] = {"a": ("a", 10)}
    records = [("a", 1), ("b", 2), ("a", 3)]

    def never(*_: Any) -> Any:
        raise AssertionError

    out = loop(never, never, iter(records), state, lambda _: MISSING, {}, never)
    assert out == [("a", 11), ("b", 2), ("a", 14)]
    assert state == {"a": ("a", 14), "b": ("b", 2)}


def test_what_an_expression_raises_is_told_from_what_a_function_raises() -> None:
    def calls(record: Any) -> Any:
        return len(record)

    divides = lambda n: 1 // n  # noqa: E731
    with pytest.raises(ZeroDivisionError) as caught:
        inlined(loops.map_records, function=divides)(divides, iter([0]))
    assert raised_by_generated_code(caught.value)
    with pytest.raises(TypeError) as also:
        loops.map_records(calls, iter([0]))
    assert not raised_by_generated_code(also.value)
    assert not raised_by_generated_code(ValueError())


def test_a_function_with_another_number_of_parameters_is_left_to_raise() -> None:
    wrong = lambda a, b: a[0]  # noqa: E731
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        inlined(loops.map_records, function=wrong)(wrong, iter([(1, 2)]))


class Keeps:
    """A sink's function: what it does is to set attributes and items."""

    def __init__(self) -> None:
        self.records, self.total, self.newest = 0, 0, None
        self.last: dict[Any, Any] = {}
        self.sums = {"a": 0, "b": 0}
        self.own = self

    def invoke(self, value: Any) -> None:
        self.records += 1
        self.last[value[0]] = value

    def more(self, value: Any) -> None:
        self.sums[value[0]] += value[1]

    def deep(self, value: Any) -> None:
        self.own.own.total -= value[1] * 2

    def documented(self, value: Any) -> None:
        """With a docstring."""
        self.newest = value

    def returns(self, value: Any) -> Any:
        self.newest = value
        return value[0]

    def nothing(self, value: Any) -> None:
        pass

    def both(self, value: Any) -> None:
        self.newest = self.total = value

    def swaps(self, value: Any) -> None:
        self.newest, self.total = value

    def local(self, value: Any) -> None:
        first = value[0]
        self.newest = first

    def calls(self, value: Any) -> None:
        self.last.setdefault(*value)

    def branches(self, value: Any) -> None:
        if value:
            self.newest = value

    def deletes(self, value: Any) -> None:
        del self.last[value[0]]


class Anything:
    def __init__(self) -> None:
        self.a, self.b, self.c = 0, 1, 2
        self.d: dict[Any, Any] = {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("seed", range(200))
def test_random_statements_do_what_the_method_does(seed: int) -> None:
    rng = random.Random(seed)
    targets = ["self.a", "self.b", "self.c", "self.d[v[0]]", "self.d[self.d[v[1]] % 3]"]
    values = ["v[2]", "self.a", "self.d[v[0]]", "v[0] + self.b", "(v[1] - 2) * 3", "7", "-self.c"]
    signs = ["=", "+=", "-=", "*=", "|="]
    lines = [
        f"    {rng.choice(targets)} {rng.choice(signs)} {rng.choice(values)}"
        for _ in range(rng.randrange(1, 4))
    ]
    lines.append(rng.choice(["    return v", "    return self.a", "    return", "    pass"]))
    scope: dict[str, Any] = {}
    exec("\n".join(["def invoke(self, v):", *lines]), scope)
    kind = type("Kind", (Anything,), {"invoke": scope["invoke"]})
    inline: Any = kind()
    plain: Any = kind()
    loop = inlined(loops.call_records, function=inline.invoke)
    assert loop is not loops.call_records or too_long(scope["invoke"])
    for n in range(6):
        record = (n % 3, n * n % 3, n)
        errors = [raised(loop, inline.invoke, iter([record])), raised(plain.invoke, record)]
        assert errors[0] == errors[1] and vars(inline) == vars(plain), "\n".join(lines)


def too_long(function: Any) -> bool:
    return len(list(instructions_of(function.__code__))) > MOST_INSTRUCTIONS


def raised(function: Callable[..., Any], *arguments: Any) -> str | None:
    try:
        function(*arguments)
    except Exception as error:
        return repr(error)
    return None


RECORDS = [("a", 1), ("b", 2), ("a", 3)]


@pytest.mark.parametrize("name", ["invoke", "more", "deep", "documented", "returns", "nothing"])
def test_attributes_and_items_that_are_set_are_set_in_the_loop(name: str) -> None:
    inline, plain = Keeps(), Keeps()
    loop = inlined(loops.call_records, function=getattr(inline, name))
    assert loop is not loops.call_records
    assert loop(getattr(inline, name), iter(RECORDS)) == []
    for record in RECORDS:
        getattr(plain, name)(record)
    state, expected = ({**vars(each), "own": None} for each in (inline, plain))
    assert state == expected
    assert name != "invoke" or state["last"] == {"a": ("a", 3), "b": ("b", 2)}


@pytest.mark.parametrize("name", ["both", "swaps", "local", "calls", "branches", "deletes"])
def test_other_statements_are_called(name: str) -> None:
    function = getattr(Keeps(), name)
    assert inlined(loops.call_records, function=function) is loops.call_records


def test_what_sets_something_is_called_where_its_value_is_wanted() -> None:
    keeps = Keeps()
    assert inlined(loops.map_records, function=keeps.returns) is loops.map_records
    assert text_of(keeps.returns) is None


def test_statements_that_raise_are_told_from_what_they_call() -> None:
    class Strict(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise KeyError(key)

    keeps = Keeps()
    loop = inlined(loops.call_records, function=keeps.invoke)
    with pytest.raises(TypeError) as caught:
        loop(keeps.invoke, iter([([], 1)]))
    assert raised_by_generated_code(caught.value)
    keeps.last = Strict()
    with pytest.raises(KeyError) as also:
        loop(keeps.invoke, iter([("a", 1)]))
    assert not raised_by_generated_code(also.value)
