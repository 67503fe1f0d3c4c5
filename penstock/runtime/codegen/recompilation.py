"""Compile syntax trees, and compare the compiled code with the code of a function."""

from __future__ import annotations

import ast
import dis
import inspect
import warnings
from types import CodeType
from typing import Any

#: The file name that tracebacks show for generated code.
GENERATED_FILE = "<penstock: a loop with the user's expressions in it>"

#: The flag of code whose first constant is a docstring, in Python 3.14 and newer. It is None in
#: older versions, where the first constant of a function is always its docstring or None.
_HAS_DOCSTRING: int | None = getattr(inspect, "CO_HAS_DOCSTRING", None)


def compile_module(module: ast.Module) -> CodeType | None:
    """Return the compiled code of a module, or None if its tree cannot be compiled."""
    with warnings.catch_warnings():
        # Python has already warned about the user's source. A second warning would show a line of
        # generated code instead.
        warnings.simplefilter("ignore")
        try:
            tree = ast.fix_missing_locations(module)
            return compile(tree, GENERATED_FILE, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, TypeError, RecursionError):
            return None


def compiles_to(
    code: CodeType, parameters: list[str], statements: list[ast.stmt], result: ast.expr
) -> bool:
    """Return whether a function with this body compiles to exactly the given code.

    Arguments:
        code: the code to compare with.
        parameters: the names of the function's parameters.
        statements: the statements before the `return`.
        result: the expression that the function returns.
    """
    function: ast.stmt
    arguments = ast.arguments([], [ast.arg(name) for name in parameters], None, [], [], None, [])
    if code.co_name == "<lambda>":
        function = ast.Expr(ast.copy_location(ast.Lambda(arguments, result), result))
    else:
        docstring = _docstring(code)
        text: list[ast.stmt] = [] if docstring is None else [ast.Expr(ast.Constant(docstring))]
        body = [*text, *statements, ast.copy_location(ast.Return(result), result)]
        (function,) = ast.parse("def function(): pass").body
        assert isinstance(function, ast.FunctionDef)
        function.args, function.body = arguments, body
    module = compile_module(ast.Module([function], []))
    if module is None:
        return False
    (again,) = (const for const in module.co_consts if isinstance(const, CodeType))
    return _meaning(again) == _meaning(code)


def _docstring(code: CodeType) -> str | None:
    if _HAS_DOCSTRING is not None and not code.co_flags & _HAS_DOCSTRING:
        return None
    first = code.co_consts[0] if code.co_consts else None
    return first if type(first) is str else None


def _meaning(code: CodeType) -> tuple[Any, ...]:
    """Return the instructions of code with their names and constants, to compare."""
    steps = [
        (step.opname, step.arg, type(step.argval), _shown(step.argval))
        for step in dis.get_instructions(code)
    ]
    return code.co_code, code.co_exceptiontable, code.co_argcount, code.co_posonlyargcount, steps


def _shown(argument: Any) -> Any:
    return _meaning(argument) if isinstance(argument, CodeType) else repr(argument)
