"""Define the key and the namespace to which the content of a state belongs."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.dataflow.errors import JobError


class NoKey:
    """The current key while there is none; every access of state with it raises an error.

    Arguments:
        problem: the text of the error.
    """

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __hash__(self) -> int:
        raise JobError(self._problem)

    def __repr__(self) -> str:
        return "NO_KEY"


#: The current key of an operator before its first record.
NO_KEY = NoKey(
    "keyed state was used while there is no current key: use it while a record or a timer is "
    "processed, and not in open()"
)


class CurrentKey(Protocol):
    """An object that knows the current key of an operator."""

    key: Any


class Scope(Protocol):
    """Returns the keys under which a state stores its content at the moment."""

    def single(self) -> Any:
        """Return the key of the only entry of a value, reducing or aggregating state."""

    def entry(self, part: Any) -> tuple[Any, ...]:
        """Return the composite key of an entry of a list or map state."""


class KeyScope:
    """The scope of most states: their content belongs to the current key.

    Arguments:
        current: knows the current key.
    """

    def __init__(self, current: CurrentKey) -> None:
        self.current = current

    def single(self) -> Any:
        """Return the current key."""
        return self.current.key

    def entry(self, part: Any) -> tuple[Any, ...]:
        """Return the composite key of an entry of the current key."""
        return (self.current.key, part)


class NamespaceScope:
    """The scope of states that belong to a key and a namespace, for example a window.

    All tables are composite then. (Flink: `InternalKvState.setCurrentNamespace`.)

    Arguments:
        current: knows the current key.
    """

    def __init__(self, current: CurrentKey) -> None:
        self.current = current
        #: The current namespace, of a type that a key may have.
        self.namespace: Any = None

    def set_namespace(self, namespace: Any) -> None:
        """Set the current namespace, of a type that a key may have."""
        self.namespace = namespace

    def single(self) -> tuple[Any, ...]:
        """Return the composite key of the current key and namespace."""
        return (self.current.key, self.namespace)

    def entry(self, part: Any) -> tuple[Any, ...]:
        """Return the composite key of an entry of the current key and namespace."""
        return (self.current.key, self.namespace, part)
