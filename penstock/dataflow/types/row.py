"""Define `Row`: a record whose fields are found by position or by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.types.hash_probe import distrust_hashes

#: Whether this process has made a row.
_made = False


class RowKind(Enum):
    """The kind of a row in a stream of changes. (Flink: `RowKind`.)

    INSERT: a new row.
    UPDATE_BEFORE: an updated row as it was before.
    UPDATE_AFTER: an updated row as it is now.
    DELETE: a row that is removed.

    Examples:
        >>> row = Row(7, "a")
        >>> row.set_row_kind(RowKind.DELETE)
        >>> row.get_row_kind()
        <RowKind.DELETE: 3>
    """

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return ("+I", "-U", "+U", "-D")[self.value]


class Row:
    """A record whose fields are found by position or by name. (PyFlink: `Row`.)

    As in PyFlink, `Row(name="a", id=7)` sorts its fields by name, so `id` is the first one. Two
    rows are equal if they have the same names with the same values, and if they are of one kind.

    A row can be changed: `row[0] = 8`, `row["name"] = "b"`. So a row cannot be a key. Use one of
    its fields, or `tuple(row)`. A row that is in a set or a dict must not be changed.

    Arguments:
        args: the values of a row without names.
        kwargs: the values of a row with names.

    Raises:
        ValueError: if there are values of both kinds.

    Examples:
        >>> Row(7, "a")[0]
        7
        >>> Row(id=7, name="a").name
        'a'
        >>> Person = Row("id", "name")  # a row of names makes rows with these names
        >>> Person(7, "a")
        Row(id=7, name='a')
    """

    __slots__ = ("_kind", "_names", "_values")

    _kind: RowKind
    _names: tuple[str, ...] | None
    _values: list[UserValue]

    def __init__(self, *args: object, **kwargs: object) -> None:
        if args and kwargs:
            raise ValueError("a Row has either values without names, or values with names")
        global _made
        if not _made:
            # A row has a hash and can change, so hashes no longer show what can change.
            distrust_hashes()
            _made = True
        names = sorted(kwargs)
        put = object.__setattr__
        put(self, "_names", tuple(names) if names else None)
        put(self, "_values", [kwargs[name] for name in names] if names else list(args))
        put(self, "_kind", RowKind.INSERT)

    @staticmethod
    def of_kind(row_kind: RowKind, *args: object, **kwargs: object) -> Row:
        """Return a row of the given kind."""
        row = Row(*args, **kwargs)
        row.set_row_kind(row_kind)
        return row

    @staticmethod
    def of_parts(kind: RowKind, names: Sequence[str] | None, values: Sequence[object]) -> Row:
        """Return a row with these parts.

        Arguments:
            kind: the kind of the row.
            names: the names of the fields; None if they have none.
            values: the values of the fields.

        Raises:
            ValueError: if the number of names differs from the number of values.
        """
        row = Row(*values)
        row.set_row_kind(kind)
        if names is not None:
            row.set_field_names(names)
        return row

    @property
    def parts(self) -> tuple[RowKind, tuple[str, ...] | None, list[UserValue]]:
        """The kind of the row, the names of its fields (None without names), and their values."""
        return self._kind, self._names, self._values

    def get_row_kind(self) -> RowKind:
        """Return the kind of the row."""
        return self._kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Set the kind of the row."""
        object.__setattr__(self, "_kind", row_kind)

    def set_field_names(self, field_names: Sequence[str]) -> None:
        """Give the fields names, in the order of their positions.

        Raises:
            ValueError: if there are more or fewer names than fields.
        """
        if len(field_names) != len(self._values):
            raise ValueError(f"{len(field_names)} names for a Row of {len(self._values)} fields")
        object.__setattr__(self, "_names", tuple(field_names) or None)

    def get_field_names(self) -> tuple[str, ...] | None:
        """Return the names of the fields; None if they have none."""
        return self._names

    def get_fields_by_names(self, names: Sequence[str]) -> list[UserValue]:
        """Return the values of the fields with these names."""
        return [self[name] for name in names]

    def as_dict(self, recursive: bool = False) -> dict[str, UserValue]:
        """Return a dict from the names of the fields to their values.

        Arguments:
            recursive: whether rows in fields, also in lists and dicts, become dicts, too.

        Raises:
            TypeError: if the fields have no names.
        """
        if self._names is None:
            raise TypeError("a Row without names cannot be a dict: make it with Row(name=value)")
        values = map(_plain, self._values) if recursive else self._values
        return dict(zip(self._names, values, strict=True))

    def replaced(self, field: int | str, value: object) -> Row:
        """Return a copy of the row with another value in one field."""
        row = Row.of_parts(self._kind, self._names, self._values)
        row[field] = value
        return row

    def _position(self, name: str) -> int:
        if self._names is None or name not in self._names:
            raise ValueError(f"a Row has no field {name!r}: {self!r}")
        return self._names.index(name)

    def __call__(self, *args: object) -> Row:
        """Return a row whose names are the values of this row."""
        return Row.of_parts(RowKind.INSERT, self._values, args)

    def __getitem__(self, field: UserValue) -> UserValue:
        return self._values[self._position(field) if isinstance(field, str) else field]

    def __setitem__(self, field: UserValue, value: object) -> None:
        self._values[self._position(field) if isinstance(field, str) else field] = value

    def __getattr__(self, name: str) -> UserValue:
        # The slots are missing while a row is being unpickled.
        if name not in Row.__slots__ and self._names is not None and name in self._names:
            return self._values[self._names.index(name)]
        raise AttributeError(f"a Row has no field {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"a field of a Row is set by its name or position: write row[{name!r}] = ...",
            name=name,
            obj=self,
        )

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[UserValue]:
        return iter(self._values)

    def __contains__(self, value: object) -> bool:
        # As in PyFlink: a name of a field, or a value if the fields have no names.
        return value in (self._values if self._names is None else self._names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        return self._kind is other._kind and self._by_name() == other._by_name()

    def __hash__(self) -> int:
        fields = self._by_name()
        return hash(frozenset(fields.items()) if isinstance(fields, dict) else tuple(fields))

    def _by_name(self) -> list[UserValue] | dict[str, UserValue]:
        """Return the values by name; as a list if they have no names."""
        names, values = self._names, self._values
        return values if names is None else dict(zip(names, values, strict=True))

    def __reduce__(self) -> tuple[object, ...]:
        return Row.of_parts, self.parts

    def __repr__(self) -> str:
        names = self._names
        if names is None:
            fields = ", ".join(map(repr, self._values))
            if self._kind is RowKind.INSERT:
                return f"<Row({fields})>"
        else:
            pairs = zip(names, self._values, strict=True)
            fields = ", ".join(f"{name}={value!r}" for name, value in pairs)
        if self._kind is RowKind.INSERT:
            return f"Row({fields})"
        return f"Row.of_kind({self._kind!s}, {fields})"


def _plain(value: object) -> object:
    if isinstance(value, Row):
        return value.as_dict(True) if value.parts[1] is not None else [_plain(v) for v in value]
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
