"""Give keys a version, so that a job can go on with other keys: `VersionedKeySelector`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions.basic_functions import KeySelector, KeySelectorLike
from penstock.dataflow.functions.function import check_function, method_of
from penstock.dataflow.type_variables import UserValue


class VersionedKeySelector(KeySelector):
    """A key selector whose keys have a version, and a function that converts older keys.

    It is the argument of `key_by`. A job that resumes from a snapshot with keys of an earlier
    version converts them before its first record. Keys without a version have version 1.

    Arguments:
        selector: returns the key of a record: a function or a `KeySelector`.
        version: the version of its keys, from 1 on.
        migrate_key: takes a key of an earlier version, and returns the present one.
        merge: combines the values of two keys that become one; None refuses that.

    Raises:
        GraphError: if an argument is something else.

    Examples:
        >>> by_user = VersionedKeySelector(
        ...     lambda name: name.lower(),
        ...     version=2,
        ...     migrate_key=str.lower,
        ...     merge=lambda one, other: one + other,
        ... )
        >>> list(env.from_collection(["Ada", "ada"]).key_by(by_user).count().execute_and_collect())
        [('ada', 1), ('ada', 2)]
    """

    def __init__(
        self,
        selector: KeySelectorLike,
        version: int,
        migrate_key: Callable[[UserValue], UserValue] | None = None,
        merge: Callable[[UserValue, UserValue], UserValue] | None = None,
    ) -> None:
        selector = check_function(selector, KeySelector, "key_by")
        if type(version) is not int or version < 1:
            raise GraphError(f"the version of keys is a number from 1 on, not {version!r}")
        for name, function in (("migrate_key", migrate_key), ("merge", merge)):
            if function is not None and not callable(function):
                raise GraphError(f"{name} is a function, not {function!r}")
        if merge is not None and migrate_key is None:
            raise GraphError("merge combines keys that migrate_key makes equal: give both")
        self.selector, self.key_version = selector, version
        self.migrate_key, self.merge = migrate_key, merge
        self._key_of = method_of(selector, "get_key")

    def get_key(self, value: UserValue) -> UserValue:
        """Return the key of a record."""
        return self._key_of(value)

    def open(self, runtime_context: UserValue) -> None:
        """Open the selector."""
        if isinstance(self.selector, KeySelector):
            self.selector.open(runtime_context)

    def close(self) -> None:
        """Close the selector."""
        if isinstance(self.selector, KeySelector):
            self.selector.close()


def key_versions(selectors: Iterable[object]) -> VersionedKeySelector | None:
    """Return the selector that says the version of an operator's keys; None for version 1.

    Arguments:
        selectors: the key selectors of the inputs of the operator.

    Raises:
        GraphError: if the inputs have keys of different versions.
    """
    found = list(selectors)
    versioned = [one for one in found if isinstance(one, VersionedKeySelector)]
    versions = {getattr(one, "key_version", 1) for one in found}
    if len(versions) > 1:
        raise GraphError(
            f"the inputs of an operator have keys of the versions "
            f"{', '.join(map(str, sorted(versions)))}: give all of them the same version"
        )
    return versioned[0] if versioned else None
