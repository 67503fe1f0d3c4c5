"""Define the types of values that have parts: lists, dicts, tuples and rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import K, T, T_co, UserValue, V
from penstock.dataflow.types.row import Row, RowKind
from penstock.dataflow.types.type_information import TypeInformation, check_type_info, nullable


class ArrayTypeInfo(TypeInformation[list[T]]):
    """The type of lists and arrays, with the type of their items.

    An item may be None, except in a `PRIMITIVE_ARRAY`. (PyFlink: `ListTypeInfo`,
    `BasicArrayTypeInfo`, `PrimitiveArrayTypeInfo`, `ObjectArrayTypeInfo`.)

    Arguments:
        name: the name of the type, such as `LIST`.
        item: the type of the items.
    """

    def __init__(self, name: str, item: TypeInformation[T]) -> None:
        super().__init__(name, Sequence)
        check_type_info(f"Types.{name}", item, required=True)
        self._item = item

    @property
    def item_type(self) -> TypeInformation[T]:
        """The type of the items."""
        return self._item

    @property
    def is_of_bytes(self) -> bool:
        """Whether this is the type of arrays of bytes."""
        return self.name == "PRIMITIVE_ARRAY" and self._item.name == "BYTE"

    def converted(self, value: UserValue) -> object:
        """Return the list or array; the items of a list are converted.

        An array of bytes may also be `bytes`, as in PyFlink.
        """
        if isinstance(value, bytes | bytearray) and self.is_of_bytes:
            return value
        if isinstance(value, str | bytes | Row) or not hasattr(value, "__iter__"):
            raise ValueError(f"{value!r} is no {self}")
        convert = self._item.converted
        if self.name != "PRIMITIVE_ARRAY":
            convert = partial(nullable, convert)
        items = [convert(item) for item in value]
        return items if isinstance(value, list) else value

    def text(self, value: UserValue) -> str:
        """Return a list or array as Flink prints it, such as `[1, 2]`."""
        return "null" if value is None else f"[{', '.join(map(self._item.text, value))}]"

    def __repr__(self) -> str:
        return f"{self.name}({self._item!r})"


class MapTypeInfo(TypeInformation[dict[K, V]]):
    """The type of dicts, with the types of their keys and values. A value may be None.

    (PyFlink: `MapTypeInfo`.)
    """

    def __init__(
        self, key_type_info: TypeInformation[K], value_type_info: TypeInformation[V]
    ) -> None:
        super().__init__("MAP", Mapping)
        check_type_info("Types.MAP", key_type_info, required=True)
        check_type_info("Types.MAP", value_type_info, required=True)
        self._key, self._value = key_type_info, value_type_info

    @property
    def value_type(self) -> TypeInformation[V]:
        """The type of the values."""
        return self._value

    def converted(self, value: UserValue) -> object:
        """Return a dict with converted keys and values."""
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is no {self}")
        key, convert = self._key.converted, self._value.converted
        return {key(k): nullable(convert, v) for k, v in value.items()}

    def text(self, value: UserValue) -> str:
        """Return a dict as Flink prints it, such as `{a=1, b=2}`."""
        if value is None:
            return "null"
        key, item = self._key.text, self._value.text
        return f"{{{', '.join(f'{key(k)}={item(v)}' for k, v in value.items())}}}"

    def __repr__(self) -> str:
        return f"MAP({self._key!r}, {self._value!r})"


class TupleTypeInfo(TypeInformation[T_co]):
    """The type of tuples, with the types of their items. An item may be None.

    (PyFlink: `TupleTypeInfo`.)

    Arguments:
        field_types: the types of the items.
        name: the name of the type.
    """

    def __init__(self, field_types: Sequence[TypeInformation], name: str = "TUPLE") -> None:
        super().__init__(name, tuple)
        if not isinstance(field_types, Sequence):
            raise GraphError(f"Types.{name} takes a list of types, not {field_types!r}")
        for item in field_types:
            check_type_info(f"Types.{name}", item, required=True)
        self._items = tuple(field_types)

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields."""
        return list(self._items)

    def converted(self, value: UserValue) -> object:
        """Return a tuple of the converted items of a tuple, list or `Row`."""
        if not isinstance(value, tuple | list | Row):
            raise ValueError(f"{value!r} is no {self}")
        return tuple(self._fields(list(value)))

    def converted_all(self, values: Sequence[UserValue]) -> Sequence[UserValue]:
        """Return the converted tuples; the same object if no tuple has to be converted."""
        if set(map(type, values)) == {tuple} and set(map(len, values)) == {len(self._items)}:
            columns = list(zip(*values, strict=True))
            try:
                unchanged = all(
                    kind.converted_all(column) is column
                    for kind, column in zip(self._items, columns, strict=True)
                )
            except ValueError:  # a None, or a wrong value, which the loop below finds
                unchanged = False
            if unchanged:
                return values
        return [self.converted(value) for value in values]

    def text(self, value: UserValue) -> str:
        """Return a tuple as Flink prints it, such as `(a,1.5)`."""
        return "null" if value is None else f"({','.join(self._texts(value))})"

    def _texts(self, values: Iterable[object]) -> list[str]:
        return [kind.text(value) for kind, value in zip(self._items, values, strict=True)]

    def _fields(self, values: Sequence[object]) -> list[object]:
        if len(values) != len(self._items):
            raise ValueError(f"{values!r} has {len(values)} fields, and {self} {len(self._items)}")
        pairs = zip(self._items, values, strict=True)
        return [nullable(kind.converted, value) for kind, value in pairs]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self._items))})"


class RowTypeInfo(TupleTypeInfo[Row]):
    """The type of rows, with the types and names of their fields. (PyFlink: `RowTypeInfo`.)

    Arguments:
        field_types: the types of the fields.
        field_names: the names of the fields. If it is None, they are called `f0`, `f1`, …
    """

    def __init__(
        self, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None
    ) -> None:
        super().__init__(field_types, "ROW" if field_names is None else "ROW_NAMED")
        if field_names is not None and len(field_names) != len(self._items):
            raise GraphError(
                f"Types.ROW_NAMED got {len(field_names)} names and {len(self._items)} types: give "
                f"each field a name and a type"
            )
        self._given = field_names is not None
        names = field_names or [f"f{position}" for position in range(len(self._items))]
        self._names = tuple(names)

    def get_field_names(self) -> list[str]:
        """Return the names of the fields."""
        return list(self._names)

    def get_field_index(self, field_name: str) -> int:
        """Return the position of the field with this name; -1 if there is none."""
        return self._names.index(field_name) if field_name in self._names else -1

    def converted(self, value: UserValue) -> object:
        """Return a `Row` with the converted fields of a row, tuple, list or dict."""
        kind, names = RowKind.INSERT, None
        if isinstance(value, Row):
            kind, names, values = value.parts
        elif isinstance(value, tuple | list):
            values = list(value)
        elif isinstance(value, dict):
            values = [value.get(name) for name in self._names]
        else:
            raise ValueError(f"{value!r} is no {self}")
        if names is not None and names != self._names:
            if set(names) != set(self._names):
                raise ValueError(f"{value!r} has other names than {self}")
            values = value.get_fields_by_names(self._names)
        return Row.of_parts(kind, self._names, self._fields(values))

    def text(self, value: UserValue) -> str:
        """Return a row inside of another value as Flink prints it, such as `+I[1, a]`."""
        if value is None:
            return "null"
        return f"{value.get_row_kind()}[{', '.join(self._texts(value))}]"

    def converted_all(self, values: Sequence[UserValue]) -> Sequence[UserValue]:
        """Return the values as rows with names."""
        return [self.converted(value) for value in values]

    def __repr__(self) -> str:
        if not self._given:
            return super().__repr__()
        pairs = zip(self._names, self._items, strict=True)
        return f"ROW({', '.join(f'{name}: {kind!r}' for name, kind in pairs)})"
