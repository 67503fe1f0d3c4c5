"""Compare the annotations of a record class's fields between two versions of a program.

An annotation is recorded as normalised text, so that different spellings of one type are equal:
`Optional[int]`, `typing.Union[None, int]` and `int | None` all become `int | None`. Annotations
are not evaluated, because they may contain names that exist only for type checkers.
"""

from __future__ import annotations

import ast
from types import NoneType
from typing import Annotated, Any, get_origin

_UNKNOWN = "Any"

# Maps other spellings of a type to the normalised spelling.
_SPELLINGS = {
    "List": "list",
    "Dict": "dict",
    "Tuple": "tuple",
    "Set": "set",
    "FrozenSet": "frozenset",
    "Type": "type",
    "Deque": "deque",
    "DefaultDict": "defaultdict",
    "Text": "str",
    "NoneType": "None",
    "object": _UNKNOWN,
}
# Pairs of types: a value of the first type is accepted where the second is annotated (PEP 484).
_PROMOTIONS = {("bool", "int"), ("bool", "float"), ("int", "float")}
_PROMOTIONS |= {(kind, "complex") for kind in ("bool", "int", "float")}


def text_of(annotation: Any) -> str:
    """Return the normalised text of an annotation, or `Any` if it cannot be parsed."""
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    if annotation is None or annotation is NoneType:
        return "None"
    if isinstance(annotation, str):
        text = annotation
    elif type(annotation) is type or (isinstance(annotation, type) and not get_origin(annotation)):
        text = annotation.__qualname__
    else:
        text = repr(annotation)
    return _parsed(text)


def includes(new: str, old: str) -> bool:
    """Return whether type `new` includes all values of type `old`.

    Both arguments are texts that `text_of` returned. `Any` includes every type, and every type
    includes `Any`.
    """
    new_types, old_types = _union_of(new), _union_of(old)
    return all(any(_takes(one, other) for one in new_types) for other in old_types)


def _takes(new: ast.expr, old: ast.expr) -> bool:
    one, other = ast.unparse(new), ast.unparse(old)
    if one == other or _UNKNOWN in (one, other) or (other, one) in _PROMOTIONS:
        return True
    if _base(new) != _base(old):
        return False
    if not (isinstance(new, ast.Subscript) and isinstance(old, ast.Subscript)):
        return True  # only one of the two annotations names the types of the items
    wide, narrow = _arguments(new), _arguments(old)
    return len(wide) == len(narrow) and all(
        includes(ast.unparse(one), ast.unparse(other))
        for one, other in zip(wide, narrow, strict=True)
    )


def _union_of(text: str) -> list[ast.expr]:
    found, left = [], ast.parse(text, mode="eval").body
    while isinstance(left, ast.BinOp) and isinstance(left.op, ast.BitOr):
        found.append(left.right)
        left = left.left
    return [left, *found]


def _base(node: ast.expr) -> str:
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node)


def _arguments(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _parsed(text: str) -> str:
    try:
        return _text(ast.parse(text.strip().replace(".<locals>", ""), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return _UNKNOWN


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(str(text)) | ast.Call(ast.Name("ForwardRef"), [ast.Constant(str(text))]):
            return _parsed(text)
        case ast.Name(name) | ast.Attribute(_, name):
            # Drop the module's name, because the same type can be imported in several ways.
            return _SPELLINGS.get(name, name)
        case ast.UnaryOp(_, ast.Name(name)):
            return name  # the repr of a type variable begins with the sign of its variance
        case ast.BinOp(left, ast.BitOr(), right):
            return _union([left, right])
        case ast.Subscript(value, _):
            return _subscript(_text(value), node)
        case ast.List(items):
            return f"[{', '.join(map(_text, items))}]"
    return ast.unparse(node)


def _subscript(base: str, node: ast.Subscript) -> str:
    items = _arguments(node)
    if base == "Optional":
        return _union([*items, ast.Constant(None)])
    if base == "Union":
        return _union(items)
    if base in ("Annotated", "Final"):
        return _text(items[0])
    if base == "Literal":
        return f"Literal[{', '.join(sorted(map(ast.unparse, items)))}]"
    return f"{base}[{', '.join(map(_text, items))}]"


def _union(items: list[ast.expr]) -> str:
    found = {ast.unparse(part) for item in items for part in _union_of(_text(item))}
    return " | ".join(sorted(found, key=lambda text: (text == "None", text)))
