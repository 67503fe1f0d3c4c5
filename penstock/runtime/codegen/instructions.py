"""Read bytecode in one form for all supported versions of Python.

Minor versions of CPython rename, merge and split instructions. The decompiler uses only the
instruction names of this module:

* Instructions that do nothing by themselves (`RESUME`, `PRECALL`, `TO_BOOL`, …) are left out.
* Merged instructions are split: `STORE_FAST_LOAD_FAST` is a `STORE_FAST` and a `LOAD_FAST`.
* An instruction that loads a method is called `LOAD_METHOD`. In Python 3.12 and newer, it is
  `LOAD_ATTR` with a flag.
* A conditional jump is `JUMP_IF_TRUE`, `JUMP_IF_FALSE`, `JUMP_IF_NONE` or `JUMP_IF_NOT_NONE`,
  both for forward and backward jumps.

All other instructions keep their names. The decompiler refuses a function with an instruction
whose name it does not know.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple


class Instruction(NamedTuple):
    """One bytecode instruction in the form that all versions of Python share.

    Arguments:
        name: the name of the instruction, the same for each version of Python.
        value: the name, constant or operator that the argument refers to.
        number: the argument itself.
        line: the number of the line in the source, or None if it is not known.
    """

    name: str
    value: Any
    number: int
    line: int | None


_SILENT = frozenset(
    {
        *("RESUME", "NOP", "CACHE", "PRECALL", "EXTENDED_ARG"),
        # Python 3.13 and newer convert to bool before a test; Python 3.14 marks branches.
        *("TO_BOOL", "NOT_TAKEN"),
    }
)
_RENAMED = {
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_FAST_CHECK": "LOAD_FAST",
    "LOAD_SMALL_INT": "LOAD_CONST",
    "POP_ITER": "POP_TOP",
}
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
_JUMPS = {
    f"POP_JUMP_{direction}IF_{condition}": f"JUMP_IF_{condition}"
    for direction in ("", "FORWARD_", "BACKWARD_")
    for condition in ("TRUE", "FALSE", "NONE", "NOT_NONE")
}
#: Whether `LOAD_ATTR` has a flag to load a method instead of an attribute (Python 3.12 and newer).
_ATTRIBUTE_OR_METHOD = sys.version_info >= (3, 12)


def instructions_of(code: CodeType) -> Iterator[Instruction]:
    """Yield all instructions of code, except those that do nothing by themselves."""
    for step in dis.get_instructions(code):
        name, value, count = step.opname, step.argval, step.arg or 0
        line = step.positions.lineno if step.positions is not None else None
        if name in _SILENT:
            continue
        if name in _PAIRS:
            for half, variable in zip(_PAIRS[name], value, strict=True):
                yield Instruction(half, variable, 0, line)
            continue
        if name == "RETURN_CONST":
            yield Instruction("LOAD_CONST", value, 0, line)
            name = "RETURN_VALUE"
        elif name == "LOAD_ATTR" and _ATTRIBUTE_OR_METHOD and count & 1:
            name = "LOAD_METHOD"
        elif name == "BINARY_OP":
            name, value = ("BINARY_SUBSCR", None) if step.argrepr == "[]" else (name, step.argrepr)
        else:
            name = _RENAMED.get(name) or _JUMPS.get(name) or name
        yield Instruction(name, value, count, line)
