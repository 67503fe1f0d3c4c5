"""Decompile small user functions into syntax trees, so that they can be inlined.

The decompiler reads only bytecode, since the source of a function may be missing. `_Evaluator`
executes the instructions on syntax trees instead of values. It supports few instructions. A
function with one of the following is not decompiled:

* a loop outside of a list comprehension,
* an assignment to a variable,
* a call of anything but a method that changes nothing (`_HARMLESS`).

A mistake of the decompiler does no harm. The tree is compiled again, and is used only if the result
has exactly the same instructions, names and constants (`penstock.runtime.codegen.recompilation`).
A function that cannot be decompiled is called as before.

In Python 3.11, a list comprehension is a function of its own. From 3.12 on, it is part of the
enclosing function (PEP 709). The decompiler reads both forms.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import TypeVar

from penstock.runtime.codegen.instructions import Instruction, instructions_of
from penstock.runtime.codegen.recompilation import compiles_to

#: The greatest number of instructions of a function that is inlined. A longer function is called,
#: since a call takes little time compared with the work of such a function.
MOST_INSTRUCTIONS = 40

N = TypeVar("N", bound=ast.expr | ast.stmt)

_UNUSUAL = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
#: The types of constants for which an equal type and `repr` mean an equal constant.
_CONSTANTS = frozenset({int, float, str, bytes, bool, type(None)})
#: The names of methods of strings, bytes and dicts that change nothing.
_HARMLESS = frozenset(
    {
        *("split", "rsplit", "splitlines", "partition", "rpartition", "join", "replace"),
        *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "encode", "decode"),
        *("lower", "upper", "casefold", "title", "capitalize", "zfill", "startswith", "endswith"),
        *("find", "rfind", "index", "count", "isdigit", "isalpha", "isalnum", "isspace"),
        *("items", "keys", "values", "get"),
    }
)
_BINARY: dict[str, type[ast.operator]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "/": ast.Div,
    "//": ast.FloorDiv,
    "%": ast.Mod,
    "**": ast.Pow,
    "<<": ast.LShift,
    ">>": ast.RShift,
    "&": ast.BitAnd,
    "|": ast.BitOr,
    "^": ast.BitXor,
    "@": ast.MatMult,
}
_UNARY: dict[str, type[ast.unaryop]] = {
    "UNARY_NEGATIVE": ast.USub,
    "UNARY_NOT": ast.Not,
    "UNARY_INVERT": ast.Invert,
}
_COMPARE: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt,
    "<=": ast.LtE,
    "==": ast.Eq,
    "!=": ast.NotEq,
    ">": ast.Gt,
    ">=": ast.GtE,
}
_TESTS: dict[str, tuple[type[ast.cmpop], type[ast.cmpop]]] = {
    "IS_OP": (ast.Is, ast.IsNot),
    "CONTAINS_OP": (ast.In, ast.NotIn),
}
_SEQUENCES: dict[str, type[ast.Tuple | ast.List]] = {
    "BUILD_TUPLE": ast.Tuple,
    "BUILD_LIST": ast.List,
}
#: The instructions that follow an inlined comprehension. They end its loop, and restore the
#: variables of the function that have the same names as variables of the comprehension.
_AFTER_LOOP = frozenset({"JUMP_BACKWARD", "END_FOR", "POP_TOP", "SWAP", "STORE_FAST"})


@dataclass(frozen=True)
class FunctionBody:
    """The decompiled body of a function: its statements and its result.

    Arguments:
        parameters: the names of the parameters, without the `self` of a method.
        owner: the name of the parameter `self` in a method; None for a function.
        statements: the statements that the function executes before it returns.
        result: the expression that the function returns. It contains a list comprehension only if
            the whole expression is one, and if there are no statements.
    """

    parameters: list[str]
    owner: str | None
    statements: list[ast.stmt]
    result: ast.expr

    @property
    def is_expression(self) -> bool:
        """Whether the body may replace a call inside of an expression."""
        return not self.statements and not isinstance(self.result, ast.ListComp)


def decompile(code: CodeType, is_method: bool) -> FunctionBody | None:
    """Return the body of a function, or None if it cannot be decompiled.

    Arguments:
        code: the code of a function or a method without default arguments.
        is_method: whether the first parameter is the object of a method (`self`).
    """
    if (
        code.co_flags & _UNUSUAL
        or code.co_kwonlyargcount
        or code.co_freevars
        or code.co_cellvars
        or code.co_argcount < is_method
    ):
        return None
    steps = list(instructions_of(code))
    if len(steps) > MOST_INSTRUCTIONS:
        return None
    evaluator = _Evaluator(steps)
    try:
        result = evaluator.run()
    except (_NotUnderstood, IndexError):  # a misread instruction has emptied the stack: IndexError
        return None
    parameters = list(code.co_varnames[: code.co_argcount])
    if not compiles_to(code, parameters, evaluator.statements, result):
        return None
    owner = parameters.pop(0) if is_method else None
    body = FunctionBody(parameters, owner, evaluator.statements, result)
    _forget_lines((*body.statements, body.result))
    return body if _may_be_moved(body) else None


def _may_be_moved(body: FunctionBody) -> bool:
    """Return whether the calls and comprehensions of a body may be inlined.

    A method call on a record may be inlined, since records hold values of known types. A method
    call on an attribute of `self` may not, since the attribute may be an object of any class.
    """
    nodes = [node for each in (*body.statements, body.result) for node in ast.walk(each)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = {node.id for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)}
    lists = [node for node in nodes if isinstance(node, ast.ListComp)]
    alone = not lists or (lists == [body.result] and not body.statements)
    return alone and body.owner not in names


def _forget_lines(trees: Iterable[ast.AST]) -> None:
    """Remove the line and column numbers of the user's source from trees."""
    for tree in trees:
        for node in ast.walk(tree):
            for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"):
                vars(node).pop(name, None)


class _NotUnderstood(Exception):
    """The decompiler does not support an instruction at its position."""


class _Method(ast.expr):
    """Represents a method that was loaded onto the stack and not called yet."""

    _fields = ("attribute",)

    def __init__(self, attribute: ast.Attribute) -> None:
        super().__init__()
        self.attribute = attribute


class _Function(ast.expr):
    """Represents the function of a comprehension before its call, in Python 3.11."""

    _fields = ("code",)

    def __init__(self, code: CodeType) -> None:
        super().__init__()
        self.code = code


class _InPlace(ast.BinOp):
    """Represents the result of an operator such as `+=` before it is stored."""

    _fields = ast.BinOp._fields


class _Evaluator:
    """Executes instructions on a stack of syntax trees.

    Arguments:
        steps: the instructions of a function.
    """

    def __init__(self, steps: list[Instruction]) -> None:
        self._steps = steps
        self._next = 0
        self._line: int | None = None
        self._stack: list[ast.expr] = []
        #: The syntax trees of the statements that were executed.
        self.statements: list[ast.stmt] = []

    def run(self) -> ast.expr:
        """Execute the instructions up to the first return, and return its value's tree."""
        while (step := self._take()).name != "RETURN_VALUE":
            self._execute(step)
        return self._stack.pop()

    def _take(self) -> Instruction:
        step = self._steps[self._next]
        self._next += 1
        self._line = step.line
        return step

    def _push(self, node: ast.expr) -> None:
        self._stack.append(self._placed(node))

    def _placed(self, node: N) -> N:
        """Set the line of a node, and return the node.

        The compiler needs lines, since the jumps that it makes depend on them.
        """
        if self._line is not None:
            node.lineno = node.end_lineno = self._line
            node.col_offset = node.end_col_offset = 0
        return node

    def _pop_all(self, count: int) -> list[ast.expr]:
        if len(self._stack) < count:
            raise _NotUnderstood
        items = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return items

    def _execute(self, step: Instruction) -> None:
        handler = _HANDLERS.get(step.name)
        if handler is None:
            raise _NotUnderstood
        handler(self, step)

    # ---- expressions

    def _load_name(self, step: Instruction) -> None:
        self._push(ast.Name(step.value, ast.Load()))

    def _load_constant(self, step: Instruction) -> None:
        if isinstance(step.value, CodeType):
            self._push(_Function(step.value))
        elif type(step.value) in _CONSTANTS:
            self._push(ast.Constant(step.value))
        else:
            raise _NotUnderstood

    def _load_attribute(self, step: Instruction) -> None:
        self._push(ast.Attribute(self._stack.pop(), step.value, ast.Load()))

    def _load_method(self, step: Instruction) -> None:
        if step.value not in _HARMLESS:
            raise _NotUnderstood
        owner = self._stack.pop()
        self._push(_Method(self._placed(ast.Attribute(owner, step.value, ast.Load()))))

    def _call(self, step: Instruction) -> None:
        arguments = self._pop_all(step.number)
        method = self._stack.pop()
        if not isinstance(method, _Method):
            raise _NotUnderstood
        self._push(ast.Call(method.attribute, arguments, []))

    def _subscript(self, step: Instruction) -> None:
        del step
        index = self._stack.pop()
        self._push(ast.Subscript(self._stack.pop(), index, ast.Load()))

    def _binary(self, step: Instruction) -> None:
        in_place = step.value not in _BINARY
        operator = _BINARY.get(step.value[:-1] if in_place else step.value)
        if operator is None:
            raise _NotUnderstood
        right = self._stack.pop()
        kind = _InPlace if in_place else ast.BinOp
        self._push(kind(self._stack.pop(), operator(), right))

    def _unary(self, step: Instruction) -> None:
        self._push(ast.UnaryOp(_UNARY[step.name](), self._stack.pop()))

    def _compare(self, step: Instruction) -> None:
        operator = _TESTS[step.name][step.number] if step.name in _TESTS else _COMPARE[step.value]
        right = self._stack.pop()
        self._push(ast.Compare(self._stack.pop(), [operator()], [right]))

    def _build(self, step: Instruction) -> None:
        if not step.number:
            raise _NotUnderstood  # the list is empty, or later instructions add its items
        items = self._pop_all(step.number)
        self._push(_SEQUENCES[step.name](items, ast.Load()))

    # ---- statements

    def _copy(self, step: Instruction) -> None:
        self._stack.append(self._stack[-step.number])

    def _swap(self, step: Instruction) -> None:
        stack, depth = self._stack, step.number
        stack[-1], stack[-depth] = stack[-depth], stack[-1]

    def _store_attribute(self, step: Instruction) -> None:
        self._store(ast.Attribute(self._stack.pop(), step.value, ast.Store()))

    def _store_item(self, step: Instruction) -> None:
        del step
        index = self._stack.pop()
        self._store(ast.Subscript(self._stack.pop(), index, ast.Store()))

    def _store(self, target: ast.Attribute | ast.Subscript) -> None:
        value = self._stack.pop()
        statement: ast.stmt
        if isinstance(value, _InPlace):
            statement = ast.AugAssign(self._placed(target), value.op, value.right)
        else:
            statement = ast.Assign([self._placed(target)], value)
        self.statements.append(self._placed(statement))

    # ---- comprehensions

    def _make_function(self, step: Instruction) -> None:
        if step.number:
            raise _NotUnderstood  # the function has defaults or free variables

    def _iterate(self, step: Instruction) -> None:
        del step
        iterable = self._stack.pop()
        if not (self._stack and isinstance(self._stack[-1], _Function)):
            self._push(self._comprehension(iterable))
            while self._steps[self._next].name in _AFTER_LOOP:
                self._next += 1
            return
        code = self._stack.pop()
        assert isinstance(code, _Function)
        if code.code.co_freevars or code.code.co_cellvars:
            raise _NotUnderstood
        found = _Evaluator(list(instructions_of(code.code)))._comprehension(iterable)
        if self._take().name != "CALL":
            raise _NotUnderstood
        self._push(found)

    def _comprehension(self, iterable: ast.expr) -> ast.ListComp:
        """Return the list comprehension whose loop begins with the next `FOR_ITER`."""
        line = self._line
        while (step := self._take()).name != "FOR_ITER":
            line = step.line
            if step.name not in ("LOAD_FAST_AND_CLEAR", "LOAD_FAST", "SWAP", "BUILD_LIST"):
                raise _NotUnderstood
        target = self._target()
        outside, self._stack = self._stack, []
        tests: list[ast.expr] = []
        while (step := self._take()).name != "LIST_APPEND":
            if step.name.startswith("JUMP_IF_"):
                tests.append(self._test(step))
            else:
                self._execute(step)
        item = self._stack.pop()
        self._stack, self._line = outside, line
        generator = ast.comprehension(target, iterable, tests, 0)
        return self._placed(ast.ListComp(item, [generator]))

    def _target(self) -> ast.expr:
        """Return the variable, or tuple of variables, that the loop assigns each item to."""
        step = self._take()
        wide = step.name == "UNPACK_SEQUENCE"
        stores = [self._take() for _ in range(step.number)] if wide else [step]
        if any(store.name != "STORE_FAST" for store in stores):
            raise _NotUnderstood
        names: list[ast.expr] = [
            self._placed(ast.Name(store.value, ast.Store())) for store in stores
        ]
        return self._placed(ast.Tuple(names, ast.Store())) if wide else names[0]

    def _test(self, step: Instruction) -> ast.expr:
        """Return the condition under which the comprehension takes an item.

        A conditional jump tests the condition. Either it jumps back to the loop and so leaves the
        item out, or it takes the item by jumping forward over a `JUMP_BACKWARD`.
        """
        taken_if_jumps = self._steps[self._next].name == "JUMP_BACKWARD"
        if taken_if_jumps:
            self._next += 1
        condition = step.name.removeprefix("JUMP_IF_")
        value = self._stack.pop()
        if condition in ("TRUE", "FALSE"):
            if (condition == "TRUE") is taken_if_jumps:
                return value
            return self._placed(ast.UnaryOp(ast.Not(), value))
        operator = ast.Is() if (condition == "NONE") is taken_if_jumps else ast.IsNot()
        return self._placed(ast.Compare(value, [operator], [self._placed(ast.Constant(None))]))


_HANDLERS: dict[str, Callable[[_Evaluator, Instruction], None]] = {
    "LOAD_FAST": _Evaluator._load_name,
    "LOAD_CONST": _Evaluator._load_constant,
    "LOAD_ATTR": _Evaluator._load_attribute,
    "LOAD_METHOD": _Evaluator._load_method,
    "CALL": _Evaluator._call,
    "BINARY_SUBSCR": _Evaluator._subscript,
    "BINARY_OP": _Evaluator._binary,
    **dict.fromkeys(_UNARY, _Evaluator._unary),
    **dict.fromkeys(("COMPARE_OP", *_TESTS), _Evaluator._compare),
    **dict.fromkeys(_SEQUENCES, _Evaluator._build),
    "COPY": _Evaluator._copy,
    "SWAP": _Evaluator._swap,
    "STORE_ATTR": _Evaluator._store_attribute,
    "STORE_SUBSCR": _Evaluator._store_item,
    "MAKE_FUNCTION": _Evaluator._make_function,
    "GET_ITER": _Evaluator._iterate,
}
