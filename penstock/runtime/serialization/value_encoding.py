"""Encode values that msgpack would change, so that decoding restores their types.

Examples of such values are tuples, sets, big integers and dataclass instances. Each is *lowered* to
an array that begins with a tag: first a container, then its items. Decoding *restores* the items
before their container, in the list hook of msgpack. In lowered data every array begins with a tag,
even that of a list, so no array is ambiguous.

Restoring does not recurse and imports nothing. It finds record classes by index in a
`TypeRegistry`, and makes instances without calling `__init__`.

This module lowers single values. `penstock.runtime.serialization.value_codec` chooses between the
plain and the lowered form, and `penstock.runtime.serialization.batch_codec` encodes batches.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from penstock.dataflow.object_reuse import IMMUTABLE
from penstock.dataflow.types.row import Row, RowKind
from penstock.runtime.serialization.class_serializers import why_unsupported
from penstock.runtime.serialization.leaf_encoding import (
    ATOMS,
    COUNTER,
    DEFAULT_DICT,
    DEQUE,
    DICT,
    FROZENSET,
    LEAF_LOWERERS,
    LEAF_RESTORERS,
    LIST,
    OBJECT,
    ORDERED_DICT,
    ROW,
    SET,
    TUPLE,
    is_numpy_scalar,
    lower_atom,
    lower_numpy,
)
from penstock.runtime.serialization.record_schemas import name_of
from penstock.runtime.serialization.record_serializers import UnsupportedTypeError
from penstock.runtime.serialization.type_registry import TypeRegistry

MAX_DEPTH = 100
"""The greatest depth of nested containers in a value."""

# The factories of a `defaultdict` that can be encoded, by the name that encoded data contains.
_FACTORIES: dict[str | None, Any] = {None: None}
_FACTORIES |= {kind.__name__: kind for kind in (bool, int, float, str, bytes)}
_FACTORIES |= {kind.__name__: kind for kind in (list, dict, set, tuple)}


class ValueEncoding:
    """Lowers values to a form that msgpack packs without loss, and restores them.

    Arguments:
        registry: the job's record classes. Classes may be added later.
    """

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._lowerers: dict[type, Callable[[Any, int], list[Any]]] = {
            list: lambda value, depth: [LIST, *self._all(value, depth)],
            tuple: lambda value, depth: [TUPLE, *self._all(value, depth)],
            set: lambda value, depth: [SET, *self._all(value, depth)],
            frozenset: lambda value, depth: [FROZENSET, *self._all(value, depth)],
            OrderedDict: lambda value, depth: [ORDERED_DICT, *self._pairs(value, depth)],
            Counter: lambda value, depth: [COUNTER, *self._pairs(value, depth)],
            defaultdict: self._lower_default_dict,
            deque: lambda value, depth: [DEQUE, value.maxlen, *self._all(value, depth)],
            Row: self._lower_row,
        }
        self._restorers: dict[int, Callable[[list[Any]], Any]] = {
            **_RESTORERS,
            OBJECT: lambda items: registry.serializer_at(items[1]).from_rows(
                len(items) - 2, [items[2:]]
            )[0],
        }

    def lower(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """Return the lowered form of a value, for msgpack.

        Arguments:
            value: the value.
            depth: the greatest depth to which containers may be nested in the value.

        Raises:
            UnsupportedTypeError: if a type is not supported, or if containers are nested deeper.
                The message contains the type and a remedy.
        """
        kind = type(value)
        if kind in ATOMS:
            return lower_atom(kind, value)
        leaf = LEAF_LOWERERS.get(kind)
        if leaf is not None:
            return leaf(value)
        if depth == 0:
            raise UnsupportedTypeError(
                f"a value is nested deeper than {MAX_DEPTH} containers (a {name_of(kind)} there), "
                "or it contains itself; keep such data flat, with references by key"
            )
        if kind is dict:
            return self._lower_dict(value, depth - 1)
        lowerer = self._lowerers.get(kind)
        if lowerer is not None:
            return lowerer(value, depth - 1)
        serializer = self._registry.serializer_of(kind)
        if serializer is not None:
            serializer.mark_written()
            return [OBJECT, serializer.index, *self._all(serializer.to_row(value), depth - 1)]
        if is_numpy_scalar(kind):
            return lower_numpy(value)
        raise UnsupportedTypeError(_why_not(value, self._registry))

    def why_unsupported(self, value: Any) -> str | None:
        """Return why a value cannot be encoded, or None if its type is supported.

        Values inside of a container are not examined.
        """
        kind = type(value)
        supported = (
            kind in ATOMS
            or kind in LEAF_LOWERERS
            or kind is dict
            or kind in self._lowerers
            or self._registry.serializer_of(kind) is not None
            or is_numpy_scalar(kind)
        )
        return None if supported else _why_not(value, self._registry)

    def restore(self, items: list[Any]) -> Any:
        """Return the value of one lowered array whose items were restored before.

        This is the list hook of msgpack.
        """
        return self._restorers[items[0]](items)

    def _all(self, values: Iterable[Any], depth: int) -> list[Any]:
        lower = self.lower
        return [lower(value, depth) for value in values]

    def _lower_dict(self, value: dict[Any, Any], depth: int) -> Any:
        # A lowered key may be a list, which is not hashable. Such a dict is lowered to an array.
        if ATOMS.issuperset(map(type, value)):
            keys = list(value)
            if all(map(_is_native, keys)):
                return dict(zip(keys, self._all(value.values(), depth), strict=True))
        return [DICT, *self._all((item for pair in value.items() for item in pair), depth)]

    def _pairs(self, value: dict[Any, Any], depth: int) -> list[Any]:
        if getattr(value, "__dict__", None):
            raise UnsupportedTypeError(
                f"a {type(value).__name__} has attributes of its own ({sorted(value.__dict__)}), "
                "which can't be carried; use a dataclass that holds both"
            )
        return self._all((item for pair in value.items() for item in pair), depth)

    def _lower_row(self, value: Row, depth: int) -> list[Any]:
        kind, names, values = value.parts
        names = names or ()
        return [ROW, kind.value, len(names), *names, *self._all(values, depth)]

    def _lower_default_dict(self, value: defaultdict[Any, Any], depth: int) -> list[Any]:
        factory: Any = value.default_factory
        name = getattr(factory, "__name__", None)
        if name not in _FACTORIES or _FACTORIES[name] is not factory:
            raise UnsupportedTypeError(
                f"a defaultdict with the factory {factory!r} can't be carried, since code is not "
                "data; use a dict, or one of the factories "
                f"{', '.join(name for name in _FACTORIES if name)}"
            )
        return [DEFAULT_DICT, name, *self._pairs(value, depth)]


def _restore_row(items: list[Any]) -> Row:
    _, kind, count, *parts = items
    return Row.of_parts(RowKind(kind), parts[:count] or None, parts[count:])


def _is_native(atom: Any) -> bool:
    return lower_atom(type(atom), atom) is atom


def _restore_tuple(items: list[Any]) -> tuple[Any, ...]:
    return tuple(items[1:])


def _dict(items: list[Any], first: int = 1) -> dict[Any, Any]:
    return dict(zip(items[first::2], items[first + 1 :: 2], strict=True))


_RESTORERS: dict[int, Callable[[list[Any]], Any]] = {
    **LEAF_RESTORERS,
    LIST: lambda items: items[1:],
    TUPLE: _restore_tuple,
    SET: lambda items: set(items[1:]),
    FROZENSET: lambda items: frozenset(items[1:]),
    DICT: _dict,
    ORDERED_DICT: lambda items: OrderedDict(_dict(items)),
    COUNTER: lambda items: Counter(_dict(items)),
    DEFAULT_DICT: lambda items: defaultdict(_FACTORIES[items[1]], _dict(items, 2)),
    DEQUE: lambda items: deque(items[2:], items[1]),
    ROW: _restore_row,
}


def _why_not(value: Any, registry: TypeRegistry) -> str:
    kind = type(value)
    problem = f"a value of type {name_of(kind)} can't be carried: "
    named = isinstance(value, tuple) and hasattr(kind, "_fields")
    if named or isinstance(value, Enum) or "__dataclass_fields__" in vars(kind):
        if (reason := why_unsupported(kind)) is not None:
            return problem + reason
        if name_of(kind) in registry.names():
            return problem + "another class of that name is registered; rename one of the two"
        return problem + (
            "no function of the program mentions its class, or mentions another one of that "
            f"name, too; register it with env.register_type({kind.__qualname__})"
        )
    if isinstance(value, memoryview):
        return problem + "it is a view of memory; use bytes(value)"
    bases = [base for base in kind.__mro__[1:] if base in IMMUTABLE or base in _CONTAINERS]
    if bases:
        return problem + f"convert it to {bases[0].__name__}, or put it in a registered dataclass"
    return (
        problem + "make it a dataclass, a NamedTuple or an Enum (all types: `penstock docs types`)"
    )


_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, OrderedDict, Counter, deque, bytearray})
