"""Makes the state objects of one operator from descriptors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from penstock.dataflow.arguments.aliases import UsedNames
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import method_of
from penstock.dataflow.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    KeyedStateStore,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from penstock.runtime.operators.state.cells import Cells, ExpiringCells, PlainCells
from penstock.runtime.operators.state.expiry_cleanup import ExpiryCleanup
from penstock.runtime.operators.state.list_state import CellListState, TableListState
from penstock.runtime.operators.state.map_state import CellMapState, TableMapState
from penstock.runtime.operators.state.migration import migration_of
from penstock.runtime.operators.state.scope import KeyScope, NamespaceScope
from penstock.runtime.operators.state.value_states import (
    CellAggregatingState,
    CellReducingState,
    CellValueState,
    TableValueState,
)
from penstock.snapshot.state import MISSING, CompositeTable, KeyedBackend, KeyedTable, StateKind

Descriptor = TypeVar("Descriptor", bound=StateDescriptor)


class StateStore(KeyedStateStore):
    """The keyed states of one operator.

    Arguments:
        operator: the name of the operator, for error messages.
        backend: the operator's keyed state; None if the stream is not keyed.
        scope: returns the keys of entries. With a `NamespaceScope`, the states belong to a key and
            a namespace.
        now_ms: returns the time of the clock, in milliseconds since the epoch.
        prefix: the prefix of the names of tables. States of different scopes must not share one.
    """

    def __init__(
        self,
        operator: str,
        backend: KeyedBackend | None,
        scope: KeyScope | NamespaceScope,
        now_ms: Callable[[], int],
        prefix: str = "",
    ) -> None:
        self._operator = operator
        self._backend = backend
        self._scope = scope
        self._now_ms = now_ms
        self._prefix = prefix
        self._states: dict[str, tuple[str, State]] = {}
        self._names = UsedNames("states of one operator")
        self._cleanups: list[ExpiryCleanup] = []
        #: The tables with one entry for each key.
        self._single_tables: list[KeyedTable] = []

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """Return the value state with the descriptor's name."""
        state: ValueState = self._state(state_descriptor, ValueStateDescriptor, self._value_state)
        return state

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """Return the list state with the descriptor's name."""
        state: ListState = self._state(state_descriptor, ListStateDescriptor, self._list_state)
        return state

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """Return the map state with the descriptor's name."""
        state: MapState = self._state(state_descriptor, MapStateDescriptor, self._map_state)
        return state

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return the reducing state with the descriptor's name."""
        state: ReducingState = self._state(
            state_descriptor, ReducingStateDescriptor, self._reducing_state
        )
        return state

    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor
    ) -> AggregatingState:
        """Return the aggregating state with the descriptor's name."""
        make = self._aggregating_state
        state: AggregatingState = self._state(state_descriptor, AggregatingStateDescriptor, make)
        return state

    def of_descriptor(self, state_descriptor: StateDescriptor) -> Any:
        """Return the state of a descriptor of any kind."""
        getters: dict[type[StateDescriptor], Callable[[Any], State]] = {
            ValueStateDescriptor: self.get_state,
            ListStateDescriptor: self.get_list_state,
            MapStateDescriptor: self.get_map_state,
            ReducingStateDescriptor: self.get_reducing_state,
            AggregatingStateDescriptor: self.get_aggregating_state,
        }
        for kind, get in getters.items():
            if isinstance(state_descriptor, kind):
                return get(state_descriptor)
        raise GraphError(f"{state_descriptor!r} is no descriptor of a keyed state")

    def clean_up(self) -> None:
        """Remove some expired values of the states that are cleaned up with every record.

        Called for each batch of records.
        """
        for cleanup in self._cleanups:
            cleanup.step()

    def read_ahead(self, keys: Sequence[Any]) -> None:
        """Read the state of several keys from RocksDB at once, before the keys are used."""
        for table in self._single_tables:
            table.read_ahead(keys)

    @property
    def has_cold(self) -> bool:
        """Whether state of a key may be in RocksDB only, so that `read_ahead` has an effect."""
        return any(table.has_cold for table in self._single_tables)

    # --- methods that make states ---

    def _state(
        self,
        descriptor: Descriptor,
        wanted: type[Descriptor],
        make: Callable[[Descriptor], Any],
    ) -> Any:
        if not isinstance(descriptor, wanted):
            raise GraphError(
                f"operator {self._operator!r} asked for a {wanted.kind} state with {descriptor!r}: "
                f"use a {wanted.__name__}"
            )
        name = descriptor.name
        if name in self._states:
            kind, state = self._states[name]
            if kind != wanted.kind:
                raise GraphError(
                    f"operator {self._operator!r} uses the name {name!r} for a {kind} state and "
                    f"for a {wanted.kind} state: give one of them another name"
                )
            return state
        self._names.add(name, descriptor.aliases)
        state = make(descriptor)
        self._states[name] = wanted.kind, state
        return state

    def _value_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        table, cells = self._table(descriptor, StateKind.VALUE)
        if isinstance(cells, PlainCells) and isinstance(self._scope, KeyScope):
            return TableValueState(table, self._scope.current)
        return CellValueState(cells, self._scope)

    def _reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        _, cells = self._table(descriptor, StateKind.REDUCING)
        return CellReducingState(
            cells, self._scope, method_of(descriptor.get_reduce_function(), "reduce")
        )

    def _aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        _, cells = self._table(descriptor, StateKind.AGGREGATING)
        return CellAggregatingState(cells, self._scope, descriptor.get_agg_function())

    def _list_state(self, descriptor: ListStateDescriptor) -> ListState:
        table, cells = self._table(descriptor, StateKind.LIST)
        assert isinstance(table, CompositeTable)
        if isinstance(cells, PlainCells) and isinstance(self._scope, KeyScope):
            return TableListState(cells, table, self._scope)
        return CellListState(cells, table, self._scope)

    def _map_state(self, descriptor: MapStateDescriptor) -> MapState:
        table, cells = self._table(descriptor, StateKind.MAP)
        assert isinstance(table, CompositeTable)
        if isinstance(cells, PlainCells) and isinstance(self._scope, KeyScope):
            return TableMapState(cells, table, self._scope)
        return CellMapState(cells, table, self._scope)

    def _table(self, descriptor: StateDescriptor, kind: StateKind) -> tuple[KeyedTable, Cells]:
        if self._backend is None:
            raise GraphError(
                f"operator {self._operator!r} asked for state {descriptor.name!r}, but keyed state "
                f"exists only on a keyed stream: use key_by(...).process(...)"
            )
        if isinstance(self._scope, NamespaceScope):
            kind = kind.of_windows()
        name, *aliases = (self._prefix + one for one in (descriptor.name, *descriptor.aliases))
        table = self._backend.table(name, kind, aliases)
        # The user's function may store mutable values, and may delete values.
        table.allow_mutable()
        if not table.is_composite:
            self._single_tables.append(table)
        config = descriptor.ttl_config
        self._convert(table, descriptor)
        if config is None:
            return table, PlainCells(table)
        cleanup = ExpiryCleanup(self._backend, table, config, self._now_ms)
        if cleanup.every_record:
            self._cleanups.append(cleanup)
        # A task that repeats steps after a restore does so at their times. Nothing may depend on
        # which expired values the snapshot contains, nor on which were removed before it.
        repeats = self._backend.in_order
        if config.cleanup.in_full_snapshot() and not repeats:
            table.leave_out_expired(cleanup.has_expired)
        return table, ExpiringCells(table, config, self._now_ms, cleanup, hides_expired=repeats)

    def _convert(self, table: KeyedTable, descriptor: StateDescriptor) -> None:
        """Change the values of a restored table if the program stores them in another form.

        They may be of an older version, or may expire now and not before, or the other way. (Flink
        refuses the change of the time to live.)
        """
        expired, expires = table.expires, descriptor.ttl_config is not None
        migrate = None
        if table.is_restored:
            migrate = migration_of(descriptor, table.version, is_late=table.is_late)
        table.version = descriptor.version
        if expired == expires and migrate is None:
            return
        assert self._backend is not None
        now = self._now_ms()

        def convert(key: Any, stored: Any) -> Any:
            if table.kind.is_list and key[-1] is None:
                return stored  # the bounds of a list
            value, used = stored if expired else (stored, now)
            if migrate is not None:
                value = migrate(value)
                if value is None and descriptor.kind not in ("map", "list"):
                    return MISSING  # as with `update`
            return (value, used) if expires else value

        self._backend.rewrite(table, convert)
        table.expires = expires


class MergeableState(Protocol):
    """A state whose content in several namespaces can be merged."""

    def take(self) -> Any:
        """Return the content of the current key and namespace, and remove it."""

    def put_merged(self, parts: Sequence[Any]) -> None:
        """Set the content of the current key and namespace to the merged parts."""


def merge_namespaces(
    state: MergeableState, scope: NamespaceScope, target: Any, sources: Sequence[Any]
) -> None:
    """Merge a state of the current key from several namespaces into one of them.

    Afterwards `target` is the current namespace.

    Arguments:
        state: a list, reducing or aggregating state with this scope.
        scope: the scope of the state.
        target: the namespace of the merged content.
        sources: the namespaces whose content is merged and removed, in this order.
    """
    parts = []
    for namespace in dict.fromkeys((target, *sources)):
        scope.set_namespace(namespace)
        part = state.take()
        if part is not MISSING:
            parts.append(part)
    scope.set_namespace(target)
    if parts:
        state.put_merged(parts)
