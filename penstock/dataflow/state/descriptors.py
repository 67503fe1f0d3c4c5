"""Define the descriptors of states, with the names of PyFlink.

A descriptor gives a state its name and its kind. PyFlink's arguments for types are accepted and
ignored, since values keep their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Generic, Protocol, TypeAlias

from penstock.dataflow.arguments.aliases import checked_aliases
from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.errors import GraphError
from penstock.dataflow.state.states import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from penstock.dataflow.state.time_to_live import StateTtlConfig
from penstock.dataflow.type_variables import ACC, IN_contra, K, OUT_co, R, S_co, T, UserValue, V
from penstock.dataflow.types import TypeInformation

#: The type of a value: type information or a class. It tells type checkers the type of the state.
TypeOf: TypeAlias = TypeInformation[T] | type[T] | None

#: Converts a value of an older version: it gets the value and its version.
Migration: TypeAlias = Callable[[UserValue, int], T]

_AGGREGATE_METHODS = {"create_accumulator": 0, "add": 2, "get_result": 1}


class Reduces(Protocol[T]):
    """The method of a `ReduceFunction`."""

    def reduce(self, value1: T, value2: T, /) -> T:
        """Combine two values."""


class Aggregates(Protocol[IN_contra, ACC, OUT_co]):
    """The methods of an `AggregateFunction`."""

    def create_accumulator(self) -> ACC:
        """Return a new accumulator, without values."""

    def add(self, value: IN_contra, accumulator: ACC, /) -> ACC:
        """Return an accumulator with one more value."""

    def get_result(self, accumulator: ACC, /) -> OUT_co:
        """Return the result of an accumulator."""


class StateDescriptor(Generic[S_co]):
    """Gives a name to a state of a function. (Flink: `StateDescriptor`.)

    Arguments:
        name: the name of the state, unique within the function. A resumed job finds the state by
            this name, even if the program has changed.
        type_info: an argument of PyFlink, which Penstock ignores.
        aliases: former names of the state. If a snapshot has a state with one of them, a resumed
            job takes that state. A later resume may do without.
        version: the version of the form in which the program stores values. Raise it when values
            have another meaning or another form than before.
        migrate: converts a value of an older version: `migrate(value, version)` gets a value and
            its version, and returns the value in the present form. When a job resumes from a
            snapshot with values of an older version, all of them are converted before its first
            record. For a map the values are converted, for a list the elements, and for an
            aggregating state the accumulators.

    Raises:
        TypeError: if the name or an alias is not a non-empty string.
        GraphError: if an alias is the name itself, or is given twice; if the version is not a
            positive integer; if `migrate` cannot be called with a value and a version.
    """

    #: The kind of the state, for error messages.
    kind: ClassVar[str] = "state"

    def __init__(
        self,
        name: str,
        type_info: object = None,
        *,
        aliases: Iterable[str] = (),
        version: int = 1,
        migrate: Migration[UserValue] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a state needs a name that is a non-empty string, not {name!r}")
        self.name = name
        self.aliases = checked_aliases(f"state {name!r}", name, aliases)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise GraphError(f"the version of state {name!r} is 1 or higher, not {version!r}")
        if migrate is not None:
            check_argument_count(f"state {name!r}", migrate, 2, "migrate(value, version)")
        self.version, self.migrate = version, migrate
        self.type_info = type_info
        self._ttl_config: StateTtlConfig | None = None

    def get_name(self) -> str:
        """Return the name of the state."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let the values of the state expire. (Flink: `StateDescriptor.enableTimeToLive`.)

        Raises:
            GraphError: if the argument is not a `StateTtlConfig`.
        """
        if not isinstance(ttl_config, StateTtlConfig):
            raise GraphError(
                f"enable_time_to_live of state {self.name!r} takes a StateTtlConfig, and got "
                f"{ttl_config!r}: use StateTtlConfig.new_builder(...).build()"
            )
        self._ttl_config = ttl_config

    @property
    def ttl_config(self) -> StateTtlConfig | None:
        """How the values of the state expire, or None if they never do."""
        config = self._ttl_config
        return config if config is not None and config.is_enabled() else None


class ValueStateDescriptor(StateDescriptor[ValueState[T]], Generic[T]):
    """Describes a `ValueState`, which stores one value per key.

    (Flink: `ValueStateDescriptor`.)

    Arguments:
        name: the name of the state, unique within the function.
        value_type_info: an argument of PyFlink, which Penstock ignores.
        aliases: former names of the state, by which a resumed job finds it in a snapshot.
        version, migrate: the form of its values, and how older ones are converted; see
            `StateDescriptor`.

    Examples:
        >>> descriptor = ValueStateDescriptor("stats", aliases=["stat"])
    """

    kind = "value"

    def __init__(
        self,
        name: str,
        value_type_info: TypeOf[T] = None,
        *,
        aliases: Iterable[str] = (),
        version: int = 1,
        migrate: Migration[T] | None = None,
    ) -> None:
        super().__init__(name, value_type_info, aliases=aliases, version=version, migrate=migrate)


class ListStateDescriptor(StateDescriptor[ListState[T]], Generic[T]):
    """Describes a `ListState`, which stores a list per key. (Flink: `ListStateDescriptor`.)

    Arguments:
        name: the name of the state, unique within the function.
        elem_type_info: an argument of PyFlink, which Penstock ignores.
        aliases: former names of the state, by which a resumed job finds it in a snapshot.
        version, migrate: the form of its values, and how older ones are converted; see
            `StateDescriptor`.

    Examples:
        >>> descriptor = ListStateDescriptor("last readings")
    """

    kind = "list"

    def __init__(
        self,
        name: str,
        elem_type_info: TypeOf[T] = None,
        *,
        aliases: Iterable[str] = (),
        version: int = 1,
        migrate: Migration[T] | None = None,
    ) -> None:
        super().__init__(name, elem_type_info, aliases=aliases, version=version, migrate=migrate)


class MapStateDescriptor(StateDescriptor[MapState[K, V]], Generic[K, V]):
    """Describes a `MapState`, which stores a map per key. (Flink: `MapStateDescriptor`.)

    Arguments:
        name: the name of the state, unique within the function.
        key_type_info: an argument of PyFlink, which Penstock ignores.
        value_type_info: an argument of PyFlink, which Penstock ignores.
        aliases: former names of the state, by which a resumed job finds it in a snapshot.
        version, migrate: the form of its values, and how older ones are converted; see
            `StateDescriptor`.

    Examples:
        >>> descriptor = MapStateDescriptor("visits by page")
    """

    kind = "map"

    def __init__(
        self,
        name: str,
        key_type_info: TypeOf[K] = None,
        value_type_info: TypeOf[V] = None,
        *,
        aliases: Iterable[str] = (),
        version: int = 1,
        migrate: Migration[T] | None = None,
    ) -> None:
        super().__init__(name, value_type_info, aliases=aliases, version=version, migrate=migrate)
        self.key_type_info = key_type_info


class ReducingStateDescriptor(StateDescriptor[ReducingState[T]], Generic[T]):
    """Describes a `ReducingState`, which combines all values that are added into one.

    (Flink: `ReducingStateDescriptor`.)

    Arguments:
        name: the name of the state, unique within the function.
        reduce_function: a function, or a `ReduceFunction`, that combines two values.
        type_info: an argument of PyFlink, which Penstock ignores.
        aliases: former names of the state, by which a resumed job finds it in a snapshot.
        version, migrate: the form of its values, and how older ones are converted; see
            `StateDescriptor`.

    Raises:
        GraphError: if the function cannot be called with two values.

    Examples:
        >>> descriptor = ReducingStateDescriptor("largest", max)
    """

    kind = "reducing"

    def __init__(
        self,
        name: str,
        reduce_function: Callable[[T, T], T] | Reduces[T],
        type_info: TypeOf[T] = None,
        *,
        aliases: Iterable[str] = (),
        version: int = 1,
        migrate: Migration[T] | None = None,
    ) -> None:
        super().__init__(name, type_info, aliases=aliases, version=version, migrate=migrate)
        if isinstance(reduce_function, type):
            raise GraphError(
                f"reducing state {name!r} needs an instance of {reduce_function.__name__}, not "
                f"the class"
            )
        combine = getattr(reduce_function, "reduce", reduce_function)
        check_argument_count(f"reducing state {name!r}", combine, 2, "reduce(value1, value2)")
        self.reduce_function = reduce_function

    def get_reduce_function(self) -> UserValue:
        """Return the function that combines two values."""
        return self.reduce_function


class AggregatingStateDescriptor(StateDescriptor[AggregatingState[T, R]], Generic[T, R]):
    """Describes an `AggregatingState`, which stores the accumulator of an `AggregateFunction`.

    (Flink: `AggregatingStateDescriptor`.)

    Arguments:
        name: the name of the state, unique within the function.
        agg_function: an `AggregateFunction`.
        state_type_info: an argument of PyFlink, which Penstock ignores.
        aliases: former names of the state, by which a resumed job finds it in a snapshot.
        version, migrate: the form of its values, and how older ones are converted; see
            `StateDescriptor`.

    Raises:
        GraphError: if `agg_function` is not an `AggregateFunction`.

    Examples:
        >>> class Sum(AggregateFunction):
        ...     def create_accumulator(self):
        ...         return 0
        ...     def add(self, value, accumulator):
        ...         return accumulator + value
        ...     def get_result(self, accumulator):
        ...         return accumulator
        ...     def merge(self, a, b):
        ...         return a + b
        >>> descriptor = AggregatingStateDescriptor("sum", Sum())
    """

    kind = "aggregating"

    def __init__(
        self,
        name: str,
        agg_function: Aggregates[T, UserValue, R],
        state_type_info: object = None,
        *,
        aliases: Iterable[str] = (),
        version: int = 1,
        migrate: Migration[T] | None = None,
    ) -> None:
        super().__init__(name, state_type_info, aliases=aliases, version=version, migrate=migrate)
        missing = [method for method in _AGGREGATE_METHODS if not hasattr(agg_function, method)]
        if missing or isinstance(agg_function, type):
            raise GraphError(
                f"aggregating state {name!r} needs an instance of an AggregateFunction, and got "
                f"{agg_function!r}"
            )
        for method, count in _AGGREGATE_METHODS.items():
            arguments = {0: "()", 1: "(accumulator)", 2: "(value, accumulator)"}[count]
            function = getattr(agg_function, method)
            check_argument_count(f"aggregating state {name!r}", function, count, method + arguments)
        self.agg_function = agg_function

    def get_agg_function(self) -> UserValue:
        """Return the aggregate function."""
        return self.agg_function
