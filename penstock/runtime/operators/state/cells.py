"""Reads and writes single values in a table: plain values, or values that expire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.dataflow.state import StateTtlConfig
from penstock.runtime.operators.state.expiry_cleanup import ACCESSES_PER_STEP, ExpiryCleanup
from penstock.snapshot.state import MISSING, KeyedTable


class Cells(Protocol):
    """Reads and writes the values of a table."""

    @property
    def get(self) -> Callable[[Any], Any]:
        """A function that returns the value of a key, or `MISSING`."""

    @property
    def peek(self) -> Callable[[Any], Any]:
        """A function like `get`, for a value that is combined with another one and written.

        It leaves an expired value where it is, and does not count as a use of the value.
        """

    @property
    def put(self) -> Callable[[Any, Any], None]:
        """A function that sets the value of a key."""

    @property
    def delete(self) -> Callable[[Any], None]:
        """A function that deletes the value of a key."""

    def visible(self, key: Any, stored: Any) -> Any:
        """Return the value of a stored entry that was just read, or `MISSING`, as `get` does."""


class PlainCells:
    """The cells of a table whose values do not expire.

    Arguments:
        table: the table.
    """

    def __init__(self, table: KeyedTable) -> None:
        self.get: Callable[[Any], Any] = table.get
        self.peek: Callable[[Any], Any] = table.get
        self.put = table.put
        self.delete = table.delete

    def visible(self, key: Any, stored: Any) -> Any:
        """Return the stored value."""
        del key
        return stored


class ExpiringCells:
    """The cells of a table whose values expire.

    The table stores pairs (value, time of the last use). The times are in milliseconds since the
    epoch. Whether reading is a use depends on the update type. (Flink: `TtlValue`.)

    Arguments:
        table: the table.
        config: when values expire, and whether an access still returns them.
        now_ms: returns the time of the clock, in milliseconds since the epoch.
        cleanup: removes expired values that are no longer accessed.
        hides_expired: whether no access returns an expired value, even if `config` allows that.
    """

    def __init__(
        self,
        table: KeyedTable,
        config: StateTtlConfig,
        now_ms: Callable[[], int],
        cleanup: ExpiryCleanup,
        *,
        hides_expired: bool = False,
    ) -> None:
        self._table = table
        self._cleanup = cleanup
        # The number of accesses until the next step of the cleanup; below 0 if there is none.
        self._until_step = ACCESSES_PER_STEP if cleanup.is_enabled else -1
        self._ttl = config.ttl_ms
        self._now = now_ms
        self._reading_is_use = config.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
        self._returns_expired = (
            config.visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
            and not hides_expired
        )

    def get(self, key: Any) -> Any:
        """Return the value of a key, or `MISSING`. A value that has expired is removed."""
        stored = self._table.get(key)
        return MISSING if stored is MISSING else self.visible(key, stored)

    def visible(self, key: Any, stored: Any) -> Any:
        """Return the value of a stored pair, or `MISSING`. If it has expired, remove it."""
        self._count_access()
        value, used = stored
        now = self._now()
        if used + self._ttl <= now:
            self._table.delete(key)
            return value if self._returns_expired else MISSING
        if self._reading_is_use and used != now:
            self._table.dirty[key] = (value, now)
        return value

    def peek(self, key: Any) -> Any:
        """Return the value of a key to combine it with another value, or `MISSING`."""
        stored: Any = self._table.get(key)
        if stored is MISSING:
            return MISSING
        value, used = stored
        if used + self._ttl <= self._now() and not self._returns_expired:
            return MISSING
        return value

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key, which is used now."""
        self._table.dirty[key] = (value, self._now())
        self._count_access()

    def _count_access(self) -> None:
        self._until_step -= 1
        if not self._until_step:
            self._until_step = ACCESSES_PER_STEP
            self._cleanup.step()

    def delete(self, key: Any) -> None:
        """Delete the value of a key."""
        self._table.delete(key)
