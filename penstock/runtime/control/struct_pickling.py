"""Pickle classes that msgspec has made or knows, if a program defines them itself.

A worker cannot import the classes of a program's own file, so cloudpickle sends their definitions.
For structs of msgspec this loses the fields, and for other classes it fails as soon as msgspec has
kept something about them in the class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from cloudpickle import cloudpickle

from penstock.runtime.serialization.record_schemas import (
    is_struct,
    struct_defaults,
    struct_positions,
)

#: The attribute in which msgspec keeps what it has found out about a class.
_CACHE = "__msgspec_cache__"
#: The attributes that the metaclass makes again.
_MADE = frozenset(("__slots__", "__weakref__", "__dict__", "__match_args__", "__annotations__"))
_SETTINGS = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "repr_omit_defaults",
    "omit_defaults",
    "forbid_unknown_fields",
    "weakref",
    "dict",
    "cache_hash",
    "tag",
    "tag_field",
)


def class_by_value(cls: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the instructions to unpickle a class, of which the definition is sent.

    Arguments:
        cls: the class.
        reduced: the instructions of cloudpickle.
    """
    if is_struct(cls):
        return _reduced_struct(cls)
    state = reduced[2] if len(reduced) > 2 else None
    if isinstance(state, tuple) and state and isinstance(state[0], dict):
        state[0].pop(_CACHE, None)
    return reduced


def _reduced_struct(cls: Any) -> tuple[Any, ...]:
    """Return the instructions to make a struct: first its fields, then the rest of its class.

    Its methods may refer to the class, so they are set when the class is known already.
    """
    own = dict(vars(cls))
    annotations = inspect.get_annotations(cls)
    fields, encoded = cls.__struct_fields__, cls.__struct_encode_fields__
    defaults = struct_defaults(cls)
    mine = [name for name in fields if name in annotations]
    settings = {name: getattr(cls.__struct_config__, name) for name in _SETTINGS}
    by_name = fields[struct_positions(cls) :]
    settings["kw_only"] = any(name in by_name for name in mine)
    settings["rename"] = {
        name: other
        for name, other in zip(fields, encoded, strict=True)
        if name in mine and name != other
    }
    rest = {
        name: value
        for name, value in own.items()
        if name not in _MADE
        and name not in fields
        and not name.startswith("__struct_")
        and not isinstance(value, MemberDescriptorType | GetSetDescriptorType)
    }
    rest.pop(_CACHE, None)
    first = {name: rest.pop(name) for name in ("__module__", "__post_init__") if name in rest}
    arguments = (
        type(cls),
        cls.__name__,
        cls.__qualname__,
        cls.__bases__,
        annotations,
        {name: defaults[name] for name in mine if name in defaults},
        first,
        settings,
        cloudpickle._get_or_create_tracker_id(cls),
    )
    return _make_struct, arguments, rest, None, None, _set_attributes


def _make_struct(
    meta: Any,
    name: str,
    qualified: str,
    bases: tuple[Any, ...],
    annotations: dict[str, Any],
    defaults: dict[str, Callable[[], Any]],
    first: dict[str, Any],
    settings: dict[str, Any],
    tracker: str,
) -> Any:
    import msgspec

    namespace = {**first, "__qualname__": qualified, "__annotations__": annotations}
    for field, make in defaults.items():
        namespace[field] = msgspec.field(default_factory=make)
    made = meta(name, bases, namespace, **settings)
    # The same class may come several times, and is then the same one.
    return cloudpickle._lookup_class_or_track(tracker, made)


def _set_attributes(cls: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(cls, name, value)
