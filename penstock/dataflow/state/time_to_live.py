"""Define how long values of state live, with the names of PyFlink.

A value expires when its time to live has passed since it was written or, if so configured, read.
The time is that of the clock. `penstock.runtime.operators.state` implements these rules.
(Flink: "State Time-To-Live" in "Working with State".)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, TypeVar

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of, whole_number
from penstock.dataflow.errors import GraphError
from penstock.dataflow.time.durations import Time


class TtlUpdateType(Enum):
    """When the time to live of a value begins again."""

    Disabled = 0
    OnCreateAndWrite = 1
    OnReadAndWrite = 2


class TtlVisibility(Enum):
    """Whether an access returns a value that has expired and is not removed yet.

    With `ReturnExpiredIfNotCleanedUp` the first access returns the value and removes it.
    """

    ReturnExpiredIfNotCleanedUp = 0
    NeverReturnExpired = 1


class TtlTime(Enum):
    """The kind of time by which values expire."""

    ProcessingTime = 0


@dataclass(frozen=True)
class IncrementalCleanup:
    """Removes expired values step by step while the state is used.

    Arguments:
        cleanup_size: the number of entries that are checked for each access, on average.
        every_record: whether entries are also checked while the state is not used.
    """

    cleanup_size: int = 5
    every_record: bool = False

    def get_cleanup_size(self) -> int:
        """Return the number of entries that are checked for each access, on average."""
        return self.cleanup_size

    def run_cleanup_for_every_record(self) -> bool:
        """Return whether entries are also checked while the state is not used."""
        return self.every_record


@dataclass(frozen=True)
class CompactFilterCleanup:
    """Removes expired values from RocksDB while the job runs.

    Penstock reads the rows of RocksDB step by step for this. (Flink: compaction filter.)

    Arguments:
        query_time_after_num_entries: an argument of PyFlink, which Penstock ignores.
        periodic_compaction_ms: the time between two rounds through all rows, in milliseconds. With
            None, it is a quarter of the time to live.
    """

    query_time_after_num_entries: int = 1000
    periodic_compaction_ms: int | None = None

    def get_query_time_after_num_entries(self) -> int:
        """Return the argument of PyFlink, which Penstock ignores."""
        return self.query_time_after_num_entries

    def get_periodic_compaction_time(self) -> int | None:
        """Return the time between two rounds through all rows, in milliseconds."""
        return self.periodic_compaction_ms


@dataclass(frozen=True)
class TtlCleanup:
    """Configures when expired values are removed, in addition to each access.

    Arguments:
        background: whether expired values are removed while the job runs.
        full_snapshot: whether snapshots that contain a whole state leave out expired values.
        incremental: how values are checked while the state is used, or None for the default.
        compact_filter: how rows of RocksDB are checked, or None for the default.
    """

    background: bool = True
    full_snapshot: bool = False
    incremental: IncrementalCleanup | None = None
    compact_filter: CompactFilterCleanup | None = None

    def is_cleanup_in_background(self) -> bool:
        """Return whether expired values are removed while the job runs."""
        return self.background

    def in_full_snapshot(self) -> bool:
        """Return whether snapshots that contain a whole state leave out expired values."""
        return self.full_snapshot

    def in_rocksdb_compact_filter(self) -> bool:
        """Return whether expired values are removed from RocksDB."""
        return self.background or self.compact_filter is not None

    def get_incremental_cleanup_strategy(self) -> IncrementalCleanup | None:
        """Return how values are checked while the state is used, or None."""
        default = IncrementalCleanup() if self.background else None
        return self.incremental or default

    def get_rocksdb_compact_filter_cleanup_strategy(self) -> CompactFilterCleanup | None:
        """Return how rows of RocksDB are checked, or None."""
        default = CompactFilterCleanup() if self.background else None
        return self.compact_filter or default


Member = TypeVar("Member", bound=Enum)

_DEFAULT_CLEANUP = TtlCleanup()


@dataclass(frozen=True)
class StateTtlConfig:
    """Configures how long the values of a state live. (Flink: `StateTtlConfig`.)

    Elements of a list and entries of a map expire one by one.

    Arguments:
        ttl_ms: the time to live, in milliseconds.
        update_type: when the time to live of a value begins again.
        visibility: whether an access may return an expired value.
        cleanup: when expired values are removed, in addition to each access.

    Examples:
        >>> config = (
        ...     StateTtlConfig.new_builder(Time.hours(1))
        ...     .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
        ...     .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
        ...     .build()
        ... )
        >>> descriptor = ValueStateDescriptor("last login")
        >>> descriptor.enable_time_to_live(config)
    """

    UpdateType: ClassVar = TtlUpdateType
    StateVisibility: ClassVar = TtlVisibility
    TtlTimeCharacteristic: ClassVar = TtlTime
    CleanupStrategies: ClassVar = TtlCleanup

    ttl_ms: int
    update_type: TtlUpdateType = TtlUpdateType.OnCreateAndWrite
    visibility: TtlVisibility = TtlVisibility.NeverReturnExpired
    cleanup: TtlCleanup = _DEFAULT_CLEANUP

    @staticmethod
    def new_builder(ttl: DurationLike) -> StateTtlConfig.Builder:
        """Return a builder of a configuration.

        Arguments:
            ttl: the time to live: a `Time`, a `Duration`, a `timedelta`, or milliseconds.

        Raises:
            GraphError: if `ttl` is not a time, or is not above zero.
        """
        return StateTtlConfig.Builder(ttl)

    def get_ttl(self) -> Time:
        """Return the time to live."""
        return Time.milliseconds(self.ttl_ms)

    def get_update_type(self) -> TtlUpdateType:
        """Return when the time to live of a value begins again."""
        return self.update_type

    def get_state_visibility(self) -> TtlVisibility:
        """Return whether an access may return an expired value."""
        return self.visibility

    def get_ttl_time_characteristic(self) -> TtlTime:
        """Return the kind of time by which values expire."""
        return TtlTime.ProcessingTime

    def is_enabled(self) -> bool:
        """Return whether values expire."""
        return self.update_type is not TtlUpdateType.Disabled

    def get_cleanup_strategies(self) -> TtlCleanup:
        """Return when expired values are removed, in addition to each access."""
        return self.cleanup

    class Builder:
        """Builds a `StateTtlConfig`. (Flink: `StateTtlConfig.Builder`.)

        Arguments:
            ttl: the time to live.
        """

        def __init__(self, ttl: DurationLike) -> None:
            self._config = StateTtlConfig(0)
            self.set_ttl(ttl)

        def _set(self, config: StateTtlConfig) -> StateTtlConfig.Builder:
            self._config = config
            return self

        def _clean(self, cleanup: TtlCleanup) -> StateTtlConfig.Builder:
            return self._set(replace(self._config, cleanup=cleanup))

        def set_ttl(self, ttl: DurationLike) -> StateTtlConfig.Builder:
            """Set the time to live."""
            return self._set(
                replace(self._config, ttl_ms=milliseconds_of("the time to live of a state", ttl, 1))
            )

        def set_update_type(self, update_type: TtlUpdateType) -> StateTtlConfig.Builder:
            """Set when the time to live of a value begins again."""
            return self._set(
                replace(
                    self._config, update_type=_member("set_update_type", TtlUpdateType, update_type)
                )
            )

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Begin the time to live again when a value is written."""
            return self.set_update_type(TtlUpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Begin the time to live again when a value is read or written."""
            return self.set_update_type(TtlUpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: TtlVisibility) -> StateTtlConfig.Builder:
            """Set whether an access may return an expired value."""
            visibility = _member("set_state_visibility", TtlVisibility, state_visibility)
            return self._set(replace(self._config, visibility=visibility))

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Let an access return an expired value that is not removed yet."""
            return self.set_state_visibility(TtlVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Hide expired values."""
            return self.set_state_visibility(TtlVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: TtlTime
        ) -> StateTtlConfig.Builder:
            """Set the kind of time by which values expire; there is only processing time."""
            _member("set_ttl_time_characteristic", TtlTime, ttl_time_characteristic)
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Let values expire by processing time."""
            return self

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leave out expired values of snapshots that contain the whole state."""
            return self._clean(replace(self._config.cleanup, full_snapshot=True))

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool
        ) -> StateTtlConfig.Builder:
            """Check some entries for each access, and remove those that have expired.

            Arguments:
                cleanup_size: the number of entries that are checked for each access, on average.
                run_cleanup_for_every_record: whether entries are also checked while the state is
                    not used.

            Raises:
                GraphError: if `cleanup_size` is not a number above zero.
            """
            size = whole_number("cleanup_size", cleanup_size, 1)
            every_record = bool(run_cleanup_for_every_record)
            return self._clean(
                replace(self._config.cleanup, incremental=IncrementalCleanup(size, every_record))
            )

        def cleanup_in_rocksdb_compact_filter(
            self,
            query_time_after_num_entries: int = 1000,
            periodic_compaction_time: DurationLike | None = None,
        ) -> StateTtlConfig.Builder:
            """Check the rows of RocksDB while the job runs, and remove those that have expired.

            Arguments:
                query_time_after_num_entries: an argument of PyFlink, which Penstock ignores.
                periodic_compaction_time: the time between two rounds through all rows. By default
                    it is a quarter of the time to live.
            """
            period = None
            if periodic_compaction_time is not None:
                period = milliseconds_of("periodic_compaction_time", periodic_compaction_time, 1)
            cleanup = CompactFilterCleanup(query_time_after_num_entries, period)
            return self._clean(replace(self._config.cleanup, compact_filter=cleanup))

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Remove expired values only when they are accessed, or by a strategy that is set."""
            return self._clean(replace(self._config.cleanup, background=False))

        def build(self) -> StateTtlConfig:
            """Return the configuration."""
            return self._config


def _member(method: str, kind: type[Member], value: Member) -> Member:
    if not isinstance(value, kind):
        choices = ", ".join(f"{member.name}" for member in kind)
        raise GraphError(f"{method} takes one of {choices}, and got {value!r}")
    return value
