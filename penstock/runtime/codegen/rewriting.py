"""Rename variables in syntax trees, unroll comprehensions and take tuples apart."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

A = TypeVar("A", bound=ast.AST)


def rename(node: A, names: dict[str, str]) -> A:
    """Return a copy of a tree with renamed variables.

    Arguments:
        node: the tree.
        names: the new name of each variable in the tree.
    """
    renamed: A = _Rename(names).visit(copy.deepcopy(node))
    return renamed


def unroll(
    items: ast.ListComp, names: dict[str, str], use: Callable[[ast.expr], list[ast.stmt]]
) -> ast.For:
    """Return a `for` loop that replaces a list comprehension.

    Arguments:
        items: the comprehension.
        names: the new name of each variable of the function that contains the comprehension.
        use: takes the expression of an item, and returns the statements of the loop's body.
    """
    (over,) = items.generators
    # A variable of the comprehension may have the same name as a variable of the function. Its new
    # name keeps the two apart.
    variables = [each.id for each in ast.walk(over.target) if isinstance(each, ast.Name)]
    inside = {**names, **{name: f"{name}_of_an_item" for name in variables}}
    inner = use(rename(items.elt, inside))
    for test in reversed(over.ifs):
        inner = [ast.If(rename(test, inside), inner, [])]
    return ast.For(rename(over.target, inside), rename(over.iter, names), inner, [])


class _Rename(ast.NodeTransformer):
    """Renames the variables of a tree, all in one pass."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Return the variable under its new name."""
        return ast.Name(self._names[node.id], node.ctx)


class TupleUnpacker(ast.NodeTransformer):
    """Replaces a variable that holds a tuple by one variable for each of its items.

    Arguments:
        name: the name of the variable that holds the tuple.
        items: the names of the variables that hold its items.
    """

    def __init__(self, name: str, items: Sequence[str]) -> None:
        self._name, self._items = name, items
        #: The number of expressions that use only one item of the tuple.
        self.items_used = 0
        #: The number of expressions that use the whole tuple.
        self.tuples_used = 0

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace `tuple[index]` by the item's variable, if the index is a valid constant."""
        match node:
            case ast.Subscript(ast.Name(self._name), ast.Constant(int(place)), ast.Load()):
                if -len(self._items) <= place < len(self._items):
                    self.items_used += 1
                    return ast.Name(self._items[place], ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace the whole tuple by a new tuple of the variables of its items."""
        if node.id != self._name:
            return node
        self.tuples_used += isinstance(node.ctx, ast.Load)
        return ast.Tuple([ast.Name(name, node.ctx) for name in self._items], node.ctx)
