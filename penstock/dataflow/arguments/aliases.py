"""Check the former names that a program gives to its states and fields."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.dataflow.errors import GraphError


def checked_aliases(what: str, name: str, aliases: Iterable[str]) -> tuple[str, ...]:
    """Return former names as a tuple.

    Arguments:
        what: the part of the program that has them, for error messages.
        name: the present name.
        aliases: the former names.

    Raises:
        TypeError: if the aliases are not a list of non-empty strings.
        GraphError: if an alias is the present name, or is given twice.
    """
    if isinstance(aliases, str) or not isinstance(aliases, Iterable):
        raise TypeError(f"the aliases of {what} are a list of names, not {aliases!r}")
    names = tuple(aliases)
    for alias in names:
        if not isinstance(alias, str) or not alias:
            raise TypeError(f"an alias of {what} is a non-empty string, not {alias!r}")
        if alias == name:
            raise GraphError(f"the alias {alias!r} of {what} is its present name: take it out")
    if len(set(names)) < len(names):
        raise GraphError(f"the aliases of {what} have a name twice: {list(names)}")
    return names


class UsedNames:
    """The names and former names of several states or fields. No name is used twice.

    Arguments:
        things: the kind of thing with these names, for error messages.
    """

    def __init__(self, things: str) -> None:
        self._things = things
        self._owners: dict[str, str] = {}

    def add(self, name: str, aliases: Iterable[str]) -> None:
        """Add a state or field with its former names.

        Raises:
            GraphError: if another one has, or had, one of the names.
        """
        for one in (name, *aliases):
            owner = self._owners.setdefault(one, name)
            if owner != name:
                raise GraphError(
                    f"{one!r} would be the name of two {self._things}, {owner!r} and {name!r}: "
                    f"take it out of the aliases"
                )
