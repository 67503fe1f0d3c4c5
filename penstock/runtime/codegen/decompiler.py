"""What a small function of the user's does, read from its code, to be said in another place.

There is only code: a function's source is not always there, and its text not always all of it.
The code is run on names instead of values (`_read`), by something that knows a few instructions
and none that jumps, assigns to a name or calls anything but methods that change nothing
(`_HARMLESS`). That need not be trusted: what was read is compiled again, and is taken only if that
gives the very same instructions, names and constants (`_same`). Of whatever else, on whatever
version of Python, nothing is known (Python 3.11 makes a comprehension a function of its own, and
that is the only way that is known here).

Who puts it where is in `penstock.runtime.codegen.inliner` and
`penstock.runtime.operators.columnar_fusion`.
"""

from __future__ import annotations

import ast
import dis
import inspect
import warnings
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

__all__ = ["FILE", "Body", "body_of", "calls_kept", "compiled", "expression_of", "plain_code"]

#: The file name of code that was read and compiled again, in tracebacks.
FILE = "<penstock: a loop with the user's expressions in it>"
#: Functions with more instructions are called: a call is little beside what they do.
MOST_INSTRUCTIONS = 64

#: Set where a debugger or coverage must see each call of a function: none is inlined then.
calls_kept = ContextVar("calls_kept", default=False)

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


def expression_of(function: Any) -> tuple[list[str], ast.expr] | None:
    """The names of a function's parameters and the expression it returns; None if not known."""
    plain = plain_code(function)
    body = None if plain is None else body_of(plain[0], plain[1] is not None)
    return None if body is None or not body.is_value else (body.parameters, body.result)


def plain_code(function: Any) -> tuple[CodeType, Any] | None:
    """Code that has nothing but its parameters, and the object whose method it is, if any."""
    if calls_kept.get():
        return None
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
    outer = compiled(tree)
    if outer is None:
        return False
    (again,) = (const for const in outer.co_consts if isinstance(const, CodeType))
    return _meaning(again) == _meaning(code)


def compiled(module: ast.Module) -> CodeType | None:
    """The code of a module; None of what no source can have.

    Python warned of the user's code where that was compiled; here it would name no line of theirs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compile(ast.fix_missing_locations(module), FILE, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, TypeError, RecursionError):
            return None


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
