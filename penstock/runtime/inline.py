"""Puts what small functions of the user's compute into the loops that call them.

A call from Python to Python takes about as long as what `lambda pair: pair[0]` does. So a loop of
`penstock.runtime.loops` is compiled anew for an operator, with `pair[0]` in the place of the call.
What is called for its effect only may also set attributes and items: `self.last[value[0]] = value`.
A list comprehension that a loop's list is extended by becomes a loop in that loop. The object of a
method is found where the loop finds its globals.

That needs a source, and a function has only code. It is read from the code by running that on
names instead of values (`_read`), which knows a few instructions and none that jumps, assigns to a
name or calls anything but methods that change nothing (`_HARMLESS`). It need not be trusted: what
was read is compiled again, and is used only if that gives the very same instructions, names and
constants (`_same`). Whatever is not recognised, on whatever version of Python, is called as before
(Python 3.11 makes a comprehension a function of its own, and that is the only way known here).

Where what is inlined raises, there is no frame of the user's function in the traceback:
`was_inlined` tells, and the caller then runs the plain loop for that one record. So a body that
raises half-way is begun a second time, before the job goes back to a snapshot. Only what a class of
the user's does when an attribute or item is set, as an iterator, or in a method with one of those
names, is done twice then.

Nothing here knows operators. It takes about three milliseconds, so what was compiled is kept: tasks
of one operator in one process have the same code.
"""

from __future__ import annotations

import ast
import copy
import dis
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeVar

__all__ = [
    "FILE",
    "Body",
    "Unpacked",
    "body_of",
    "expression_of",
    "inlined",
    "inlined_by_column",
    "owner_name",
    "plain_code",
    "renamed",
    "was_inlined",
]

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=ast.AST)

#: The file name of compiled loops, in tracebacks.
FILE = "<penstock: a loop with the user's expressions in it>"
#: Functions with more instructions are called: a call is little beside what they do.
MOST_INSTRUCTIONS = 64

_UNUSUAL = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
#: Constants that are told apart by their type and `repr`.
_CONSTANTS = frozenset({int, float, str, bytes, bool, type(None)})
_SILENT = frozenset({"RESUME", "NOP", "CACHE", "PRECALL"})
#: Methods of strings and bytes, and of dicts, that change nothing.
_HARMLESS = frozenset(
    {
        *("split", "rsplit", "splitlines", "partition", "rpartition", "join", "replace"),
        *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "encode", "decode"),
        *("lower", "upper", "casefold", "title", "capitalize", "zfill", "startswith", "endswith"),
        *("find", "rfind", "index", "count", "isdigit", "isalpha", "isalnum", "isspace"),
        *("items", "keys", "values", "get"),
    }
)
_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"})
_PAIRS = frozenset({"LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"})
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


@dataclass(frozen=True)
class Body:
    """What a function does.

    Arguments:
        parameters: their names; of a method without that of its object.
        owner: the name of a method's object in its code; None of a function.
        statements: what it does first.
        result: what it returns; a comprehension only if there are no statements.
    """

    parameters: list[str]
    owner: str | None
    statements: list[ast.stmt]
    result: ast.expr

    @property
    def is_value(self) -> bool:
        """Whether it may stand where a value is wanted."""
        return not self.statements and not isinstance(self.result, ast.ListComp)


def inlined(loop: F, **functions: Any) -> F:
    """The loop with calls of its parameters replaced by what the functions compute.

    Arguments:
        loop: a function at the top level of a module.
        functions: for parameters of `loop` the functions that they will be given. The loop calls
            them with plain names only.

    Returns a function of the same parameters; `loop` itself if nothing can be replaced, or if its
    source is not there.
    """
    return _with(loop, None, functions) or loop


def inlined_by_column(loop: F, width: int, **functions: Any) -> F | None:
    """As `inlined`, for records that are tuples: the loop goes through tuples of their items.

    So it may be given a `zip` of columns, whose tuples are taken apart at once: `record[0]` is a
    name in it. Where the loop needs a record as a whole, it puts a tuple together.

    Arguments:
        loop: one whose records are called `record`, a name that it gives to nothing else.
        width: of the tuples.
        functions: as of `inlined`.

    Returns None if the loop looks at fewer items than it needs whole records.
    """
    return _with(loop, width, functions)


def _with(loop: F, width: int | None, functions: dict[str, Any]) -> F | None:
    found = {name: plain_code(function) for name, function in functions.items()}
    known = {name: plain for name, plain in found.items() if plain is not None}
    codes = tuple((name, code, owner is not None) for name, (code, owner) in known.items())
    compiled = _compiled(loop, width, codes)
    if compiled is None:
        return None
    scope = dict(loop.__globals__)
    scope |= {owner_name(name): owner for name, (_, owner) in known.items() if owner is not None}
    exec(compiled, scope)
    result: F = scope[loop.__name__]
    return result


@lru_cache(maxsize=256)
def _compiled(
    loop: Callable[..., Any], width: int | None, codes: tuple[tuple[str, CodeType, bool], ...]
) -> CodeType | None:
    """The code of a module with the loop in it; None if nothing can be replaced."""
    found = ((name, body_of(code, is_method)) for name, code, is_method in codes)
    bodies = {name: body for name, body in found if body is not None}
    if not bodies:
        return None
    try:
        tree = ast.parse(inspect.getsource(loop))
    except (OSError, SyntaxError):
        return None
    replace = _Replace(bodies)
    replaced = replace.visit(tree)
    if not replace.done:
        return None
    if width is not None:
        unpack = Unpacked("record", [ast.Name(f"record_{index}") for index in range(width)])
        replaced = unpack.visit(replaced)
        if unpack.whole > unpack.items:
            return None
    return compile(ast.fix_missing_locations(replaced), FILE, "exec", dont_inherit=True)


def owner_name(name: str) -> str:
    """What the object of a method is called in the loop's scope."""
    return f"_owner_of_{name}"


def was_inlined(error: BaseException) -> bool:
    """Whether an error was raised by the compiled loop itself, and by no function it called."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename == FILE


def expression_of(function: Any) -> tuple[list[str], ast.expr] | None:
    """The names of a function's parameters and the expression it returns; None if not known."""
    plain = plain_code(function)
    body = None if plain is None else body_of(plain[0], plain[1] is not None)
    return None if body is None or not body.is_value else (body.parameters, body.result)


def plain_code(function: Any) -> tuple[CodeType, Any] | None:
    """Code that has nothing but its parameters, and the object whose method it is, if any."""
    owner = None
    if type(function) is MethodType:
        owner, function = function.__self__, function.__func__
    elif type(function) is not FunctionType:
        owner, function = function, inspect.getattr_static(type(function), "__call__", None)
    if type(function) is not FunctionType or function.__defaults__:
        return None
    return function.__code__, owner


def body_of(code: CodeType, is_method: bool) -> Body | None:
    """What code does that has nothing but its parameters; None if that is not known."""
    if (
        code.co_flags & _UNUSUAL
        or code.co_kwonlyargcount
        or code.co_freevars
        or code.co_cellvars
        or code.co_nlocals != code.co_argcount
        or code.co_argcount < is_method
        or len(code.co_code) > 2 * MOST_INSTRUCTIONS
    ):
        return None
    parameters = list(code.co_varnames)
    read = _read(code)
    if read is None or not _same(code, parameters, *read):
        return None
    owner = parameters.pop(0) if is_method else None
    body = Body(parameters, owner, *read)
    return body if _may_be_moved(body) else None


def _may_be_moved(body: Body) -> bool:
    """Whether calls and comprehensions of a body are where they may be.

    A record holds values, and their methods are known; what its object holds may be anything.
    """
    nodes = [node for each in (*body.statements, body.result) for node in ast.walk(each)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = {node.id for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)}
    lists = [node for node in nodes if isinstance(node, ast.ListComp)]
    alone = not lists or (lists == [body.result] and not body.statements)
    return alone and body.owner not in names


def _read(code: CodeType) -> tuple[list[ast.stmt], ast.expr] | None:
    """What code without jumps seems to do, and what it then seems to return."""
    stack: list[ast.expr] = []
    statements: list[ast.stmt] = []
    try:
        for step in dis.get_instructions(code):
            if step.opname == "RETURN_VALUE":
                return statements, stack.pop()
            if step.opname == "RETURN_CONST":
                return statements, ast.Constant(step.argval)
            known = _step(step, stack) or _call(step, stack) or _store(step, stack, statements)
            if not known:
                return None
    except IndexError:  # it took from an empty stack, so it was misread
        pass
    return None


class _Inner(ast.expr):
    """On its way to a call: a comprehension's code, an iterator, or a method that is harmless."""

    _fields = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _call(step: dis.Instruction, stack: list[ast.expr]) -> bool:
    """As `_step`, for harmless methods and for comprehensions."""
    name, value, count = step.opname, step.argval, step.arg or 0
    if name == "LOAD_METHOD" and value in _HARMLESS:
        stack.append(_Inner(ast.Attribute(stack.pop(), value, ast.Load())))
    elif (name == "LOAD_CONST" and isinstance(value, CodeType)) or name == "GET_ITER":
        stack.append(_Inner(value if name == "LOAD_CONST" else stack.pop()))
    elif name == "MAKE_FUNCTION":
        return count == 0
    elif name == "CALL" and len(stack) > count:
        arguments = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        called = stack.pop()
        what = called.value if isinstance(called, _Inner) else None
        if isinstance(what, ast.Attribute):
            stack.append(ast.Call(what, arguments, []))
            return True
        inner = stack.pop()
        if not (isinstance(what, ast.expr) and isinstance(inner, _Inner)):
            return False
        found = _comprehension(inner.value, what)
        if found is not None:
            stack.append(found)
        return found is not None
    else:
        return False
    return True


def _comprehension(code: Any, iterable: ast.expr) -> ast.ListComp | None:
    """What code of a list comprehension seems to make of what it goes through."""
    if not isinstance(code, CodeType) or code.co_freevars or code.co_cellvars:
        return None
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    names: list[ast.expr] = []
    tests: list[ast.expr] = []
    stack: list[ast.expr] = []
    body = iter(steps[3:-3])  # around it: a list is made, the loop begins, and is closed
    step = next(body, None)
    wide = step is not None and step.opname == "UNPACK_SEQUENCE"
    stores = [next(body, None) for _ in range(step.argval)] if wide and step else [step]
    for store in stores:
        if store is None or store.opname != "STORE_FAST":
            return None
        names.append(ast.Name(store.argval, ast.Store()))
    for step in body:
        if step.opname == "POP_JUMP_BACKWARD_IF_FALSE":
            tests.append(stack.pop())
        elif step.opname == "POP_JUMP_BACKWARD_IF_TRUE":
            tests.append(ast.UnaryOp(ast.Not(), stack.pop()))
        elif not (_step(step, stack) or _call(step, stack)):
            return None
    target = ast.Tuple(names, ast.Store()) if wide else names[0]
    return ast.ListComp(stack.pop(), [ast.comprehension(target, iterable, tests, 0)])


class _InPlace(ast.BinOp):
    """A value made by `+=` or the like, on its way to where it is kept."""

    _fields = ast.BinOp._fields


def _store(step: dis.Instruction, stack: list[ast.expr], statements: list[ast.stmt]) -> bool:
    """As `_step`, for what only statements have."""
    name, depth = step.opname, step.arg or 0
    if name == "COPY":
        stack.append(stack[-depth])
    elif name == "SWAP":
        stack[-1], stack[-depth] = stack[-depth], stack[-1]
    elif name == "BINARY_OP" and step.argrepr[:-1] in _BINARY and step.argrepr[-1] == "=":
        right = stack.pop()
        stack.append(_InPlace(stack.pop(), _BINARY[step.argrepr[:-1]](), right))
    elif name in ("STORE_ATTR", "STORE_SUBSCR"):
        target: ast.Attribute | ast.Subscript
        if name == "STORE_ATTR":
            target = ast.Attribute(stack.pop(), step.argval, ast.Store())
        else:
            index = stack.pop()
            target = ast.Subscript(stack.pop(), index, ast.Store())
        value = stack.pop()
        if isinstance(value, _InPlace):
            statements.append(ast.AugAssign(target, value.op, value.right))
        else:
            statements.append(ast.Assign([target], value))
    else:
        return False
    return True


def _step(step: dis.Instruction, stack: list[ast.expr]) -> bool:
    """Do to the stack of expressions what an instruction does to values; False if not known."""
    name, value = step.opname, step.argval
    if name in _SILENT:
        return True
    if name in _LOADS:
        stack.append(ast.Name(value, ast.Load()))
    elif name in _PAIRS:
        stack += [ast.Name(each, ast.Load()) for each in value]
    elif name in ("LOAD_CONST", "LOAD_SMALL_INT") and type(value) in _CONSTANTS:
        stack.append(ast.Constant(value))
    elif name == "LOAD_ATTR":
        stack.append(ast.Attribute(stack.pop(), value, ast.Load()))
    elif name == "BINARY_SUBSCR" or (name == "BINARY_OP" and step.argrepr == "[]"):
        index = stack.pop()
        stack.append(ast.Subscript(stack.pop(), index, ast.Load()))
    elif name == "BINARY_OP" and step.argrepr in _BINARY:
        right = stack.pop()
        stack.append(ast.BinOp(stack.pop(), _BINARY[step.argrepr](), right))
    elif name in _UNARY:
        stack.append(ast.UnaryOp(_UNARY[name](), stack.pop()))
    elif (name == "COMPARE_OP" and value in _COMPARE) or name in _TESTS:
        comparison = _TESTS[name][step.arg or 0] if name in _TESTS else _COMPARE[value]
        right = stack.pop()
        stack.append(ast.Compare(stack.pop(), [comparison()], [right]))
    elif name in ("BUILD_TUPLE", "BUILD_LIST") and step.arg:
        if len(stack) < step.arg:
            return False
        items = stack[-step.arg :]
        del stack[-step.arg :]
        sequence = ast.Tuple if name == "BUILD_TUPLE" else ast.List
        stack.append(sequence(items, ast.Load()))
    else:
        return False
    return True


def _same(
    code: CodeType, parameters: list[str], statements: list[ast.stmt], result: ast.expr
) -> bool:
    """Whether a function of these parameters that does this has the same code."""
    kind = "lambda: 0" if code.co_name == "<lambda>" else "def function(): return 0"
    tree = ast.parse(kind)
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            node.args.args = [ast.arg(name) for name in parameters]
        if isinstance(node, ast.Lambda):
            node.body = result
        elif isinstance(node, ast.FunctionDef):
            # A docstring is the first constant, and where there is none None is.
            first = code.co_consts[0] if code.co_consts else None
            text: list[ast.stmt] = [ast.Expr(ast.Constant(first))] if type(first) is str else []
            node.body = [*text, *statements, ast.Return(result)]
            break  # what is in it is not ours to walk through
    try:
        outer = compile(ast.fix_missing_locations(tree), FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, TypeError, RecursionError):  # what no source can have
        return False
    (again,) = (const for const in outer.co_consts if isinstance(const, CodeType))
    return _meaning(again) == _meaning(code)


def _meaning(code: CodeType) -> tuple[Any, ...]:
    """All that code computes with: its instructions, and what their arguments stand for."""
    steps = [
        (step.opname, step.arg, type(step.argval), _shown(step.argval))
        for step in dis.get_instructions(code)
    ]
    handlers = getattr(code, "co_exceptiontable", b"")
    return code.co_code, handlers, code.co_argcount, code.co_posonlyargcount, steps


def _shown(argument: Any) -> Any:
    return _meaning(argument) if isinstance(argument, CodeType) else repr(argument)


class _Replace(ast.NodeTransformer):
    """Puts what functions do in the place of their calls; `done` says whether there was one."""

    def __init__(self, bodies: dict[str, Body]) -> None:
        self._bodies = bodies
        self.done = False

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        """A call for its effect: all that the function does. What it returns is made, too."""
        found = self._called(node.value)
        if found is None or isinstance(found[0].result, ast.ListComp):
            extended = self._extended(node.value)
            return self.generic_visit(node) if extended is None else extended
        self.done = True
        body, names = found
        return [renamed(each, names) for each in (*body.statements, ast.Expr(body.result))]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A call for its value: the expression of a function that has nothing else."""
        self.generic_visit(node)
        found = self._called(node)
        if found is None or not found[0].is_value:
            return node
        self.done = True
        body, names = found
        return renamed(body.result, names)

    def _extended(self, node: ast.expr) -> ast.For | None:
        """A loop that appends to a list what the list is extended by, if that is one's items."""
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "extend"
        ):
            return None
        found = self._called(node.args[0])
        items = found[0].result if found is not None else None
        if found is None or not isinstance(items, ast.ListComp):
            return None
        self.done = True
        (over,) = items.generators
        # It is a function of its own, which sees none of the parameters.
        variables = [each.id for each in ast.walk(over.target) if isinstance(each, ast.Name)]
        own = {name: f"{name}_of_an_item" for name in variables}
        append = ast.Attribute(node.func.value, "append", ast.Load())
        inner: ast.stmt = ast.Expr(ast.Call(append, [renamed(items.elt, own)], []))
        for test in reversed(over.ifs):
            inner = ast.If(renamed(test, own), [inner], [])
        target, iterable = renamed(over.target, own), renamed(over.iter, found[1])
        return ast.For(target, iterable, [inner], [])

    def _called(self, node: ast.expr) -> tuple[Body, dict[str, str]] | None:
        """What is called, and what its parameters are called here."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return None
        body = self._bodies.get(node.func.id)
        if body is None or len(body.parameters) != len(node.args):
            return None  # or it is to be refused by the function itself, when it is called
        names = {} if body.owner is None else {body.owner: owner_name(node.func.id)}
        for parameter, argument in zip(body.parameters, node.args, strict=True):
            assert isinstance(argument, ast.Name), "loops give names to functions"
            names[parameter] = argument.id
        return body, names


def renamed(node: A, names: dict[str, str]) -> A:
    """A copy with other names, all of them given."""
    renamed: A = _Rename(names).visit(copy.deepcopy(node))
    return renamed


class _Rename(ast.NodeTransformer):
    """Gives names other names, all at once."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """The name that stands for it."""
        return ast.Name(self._names[node.id], node.ctx)


class Unpacked(ast.NodeTransformer):
    """Gives the items of a tuple in the place of the tuple; where it is bound, they are.

    Arguments:
        name: of the tuple.
        items: what stands for each of its items; names, and constants if it is bound nowhere.
    """

    def __init__(self, name: str, items: Sequence[ast.expr]) -> None:
        self._name, self._items = name, items
        #: How often an item is asked for, and how often the tuple.
        self.items = self.whole = 0

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An item, if its place is known and there is one."""
        read = isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name)
        if read and node.value.id == self._name:  # type: ignore[attr-defined]
            place = _place(node.slice)
            if place is not None and -len(self._items) <= place < len(self._items):
                self.items += 1
                return _loaded(self._items[place])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """The tuple."""
        if node.id != self._name:
            return node
        if isinstance(node.ctx, ast.Store):
            names = [item.id for item in self._items if isinstance(item, ast.Name)]
            return ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        self.whole += 1
        return ast.Tuple([_loaded(item) for item in self._items], ast.Load())


def _place(index: ast.expr) -> int | None:
    return index.value if isinstance(index, ast.Constant) and type(index.value) is int else None


def _loaded(item: ast.expr) -> ast.expr:
    return ast.Name(item.id, ast.Load()) if isinstance(item, ast.Name) else copy.deepcopy(item)
