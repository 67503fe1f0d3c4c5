"""Pickles the job's code so that its objects are quick when they are made again.

Unpickling writes an object's attributes into its `__dict__`. In CPython 3.11 an object that has
been given one so stays slow: the dictionary shares its keys with the class, and the interpreter
does not learn where in such a dictionary an attribute is, so a method of a line or two takes twice
as long as where `__init__` has made the attributes. A user's function is such an object in each
worker, and is called for each record. So attributes are set one by one here, as `__init__` does.

cloudpickle decides what is sent, and how; this changes only how attributes come back.
"""

from __future__ import annotations

import copyreg
import inspect
import io
from typing import Any

import cloudpickle

__all__ = ["dumps"]

_NEW: Any = copyreg.__newobj__  # type: ignore[attr-defined]
#: Py_TPFLAGS_HEAPTYPE. Functions and the like are not; they have a `__dict__` for other purposes.
_MADE_BY_CLASS_STATEMENT = 1 << 9


def dumps(value: Any) -> bytes:
    """The value as bytes, for `pickle.load`. Raises what cloudpickle raises."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        """How to make a value again; asked about all but the built-in types."""
        reduced = super().reducer_override(value)
        if reduced is not NotImplemented or not self._is_ordinary(type(value)):
            return reduced
        made = value.__reduce_ex__(cloudpickle.DEFAULT_PROTOCOL)
        if not isinstance(made, tuple) or made[0] is not _NEW or len(made) < 3:
            return made
        state = made[2]
        if type(state) is not dict or any(_goes_elsewhere(type(value), name) for name in state):
            return made
        # Of a pair, the second are attributes to be set, and the first what goes into `__dict__`.
        return (*made[:2], (None, state), *made[3:])

    def _is_ordinary(self, cls: Any) -> bool:
        """Whether `object` makes the class's objects again, and sets their attributes."""
        return (
            bool(cls.__flags__ & _MADE_BY_CLASS_STATEMENT)
            and cls not in self.dispatch_table
            and cls.__reduce_ex__ is object.__reduce_ex__
            and cls.__reduce__ is object.__reduce__
            and cls.__setattr__ is object.__setattr__
            and not hasattr(cls, "__setstate__")
        )


def _goes_elsewhere(cls: type, name: Any) -> bool:
    """Whether setting an attribute does something else than to write it into `__dict__`."""
    return type(name) is not str or hasattr(inspect.getattr_static(cls, name, None), "__set__")
