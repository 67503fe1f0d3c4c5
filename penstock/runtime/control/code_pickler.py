"""Pickle the job's code so that unpickled objects have fast attribute access.

Unpickling writes an object's attributes into its `__dict__`. In CPython 3.11 the interpreter does
not specialise attribute access for a dictionary that was filled in this way. A method of one or two
lines then takes twice as long as on an object whose `__init__` has set the attributes. This
matters in a worker, which unpickles the user's function objects and calls them for each record. So
this pickler makes unpickling set the attributes one by one, as `__init__` does.

It also keeps the file names of functions, which tracebacks, debuggers and coverage need. From
version 3.1.3, cloudpickle replaces them by `<dynamic-code>`.

cloudpickle does all other work.
"""

from __future__ import annotations

import copyreg
import inspect
import io
import pickle
from types import CodeType
from typing import Any

import cloudpickle

from penstock.runtime.control.struct_pickling import class_by_value

_NEW: Any = copyreg.__newobj__  # type: ignore[attr-defined]
#: CPython's flag Py_TPFLAGS_HEAPTYPE. Each class that a `class` statement defines has it. The class
#: of functions does not have it.
_MADE_BY_CLASS_STATEMENT = 1 << 9
#: The position of the file name among the arguments of `CodeType`.
_FILE_NAME = 10


def dumps(value: Any) -> bytes:
    """Return a value as bytes, for `pickle.load`.

    Raise the errors of cloudpickle if the value cannot be pickled.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def copied_as_code(value: Any) -> Any:
    """Return a copy of a value, as another process of the job gets it."""
    return pickle.loads(dumps(value))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        """Return the instructions to unpickle a value whose type is not built in.

        Return NotImplemented if the value needs no special instructions.
        """
        if type(value) is CodeType:
            make, arguments = self.dispatch_table[CodeType](value)
            return make, (*arguments[:_FILE_NAME], value.co_filename, *arguments[_FILE_NAME + 1 :])
        reduced = super().reducer_override(value)
        if isinstance(value, type) and isinstance(reduced, tuple):
            return class_by_value(value, reduced)
        if reduced is not NotImplemented or not self._is_ordinary(type(value)):
            return reduced
        made = value.__reduce_ex__(cloudpickle.DEFAULT_PROTOCOL)
        if not isinstance(made, tuple) or made[0] is not _NEW or len(made) < 3:
            return made
        state = made[2]
        if type(state) is not dict or any(_goes_elsewhere(type(value), name) for name in state):
            return made
        # The state is a pair: pickle writes the first part into `__dict__`, and sets each item of
        # the second part as an attribute.
        return (*made[:2], (None, state), *made[3:])

    def _is_ordinary(self, cls: Any) -> bool:
        """Return whether a class inherits pickling and attribute assignment from `object`."""
        return (
            bool(cls.__flags__ & _MADE_BY_CLASS_STATEMENT)
            and cls not in self.dispatch_table
            and cls.__reduce_ex__ is object.__reduce_ex__
            and cls.__reduce__ is object.__reduce__
            and cls.__setattr__ is object.__setattr__
            and not hasattr(cls, "__setstate__")
        )


def _goes_elsewhere(cls: type, name: Any) -> bool:
    """Return whether setting an attribute writes elsewhere than into `__dict__`."""
    return type(name) is not str or hasattr(inspect.getattr_static(cls, name, None), "__set__")
