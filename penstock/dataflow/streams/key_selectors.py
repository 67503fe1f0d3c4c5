"""Check the argument of `key_by`: a function, or fields of the records."""

from __future__ import annotations

from penstock.dataflow.arguments.fields import values_of
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeySelector, KeySelectorLike, check_function
from penstock.dataflow.types import check_type_info

#: Fields of a key: a position, a name, or several of them.
KeyFields = int | str | tuple[int | str, ...]


def check_key_selector(
    key_selector: object, *more_fields: object, key_type: object = None, method: str = "key_by"
) -> KeySelectorLike:
    """Return the function that returns the key of a record.

    Arguments:
        key_selector: a function, a field, or a tuple of fields.
        more_fields: more fields; or the type of the key, as in PyFlink.
        key_type: the type of the key.
        method: the name of the API's method, for error messages.

    Raises:
        GraphError: if an argument is something else.
    """
    declared = declared_key_type(more_fields, key_type)
    if declared is not key_type:
        more_fields = more_fields[:-1]
    check_type_info("key_type", declared)
    if not isinstance(key_selector, int | str | tuple):
        if more_fields:
            raise GraphError(
                f"{method} takes one function, or positions and names of fields, and got "
                f"{key_selector!r} with {', '.join(map(repr, more_fields))}"
            )
        checked: KeySelectorLike = check_function(key_selector, KeySelector, method)
        return checked
    if not isinstance(key_selector, tuple):
        return values_of(method, [key_selector, *more_fields])
    if not key_selector or more_fields:
        raise GraphError(f"{method} takes a tuple of at least one field, and then no more fields")
    return values_of(method, key_selector, as_tuple=True)


def declared_key_type(more_fields: tuple[object, ...], key_type: object) -> object:
    """Return the type of the key that a program declares, or None.

    Arguments:
        more_fields: more fields of the key; or the type of the key, as in PyFlink.
        key_type: the type of the key, if it is given by its name.
    """
    given = bool(more_fields) and not isinstance(more_fields[-1], int | str)
    return more_fields[-1] if given else key_type
