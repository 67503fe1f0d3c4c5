"""Define `RequestCache`, which keeps the results of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of, whole_number
from penstock.dataflow.type_variables import UserValue


@dataclass(frozen=True)
class RequestCache:
    """Keeps results, so that records with equal keys share one request.

    `AsyncDataStream.batched` takes it. The result must depend on the key only. Each subtask has its
    own results, in memory. They are not part of snapshots, so a restored job asks again.

    A record whose key is in flight waits for that request. Errors are not kept.

    Arguments:
        ttl: the time for which a result is valid, in milliseconds or as a `Time` or `timedelta`;
            None for no limit.
        max_entries: the largest number of results in a subtask. The one that was used least
            recently is removed. With 0, only records in flight share a request.
        key: returns the key of a record, which must be hashable. Equal keys share a result. None
            for the record itself.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> def look_up(orders):  # is called with one order of each customer
        ...     return [f"name of {order['customer']}" for order in orders]
        >>> orders = env.set_parallelism(1).from_collection([{"customer": 1}, {"customer": 1}])
        >>> cache = RequestCache(ttl=60_000, key=lambda order: order["customer"])
        >>> named = AsyncDataStream.batched(orders, look_up, 5_000, cache=cache)
        >>> list(named.execute_and_collect())
        ['name of 1', 'name of 1']
    """

    ttl: DurationLike | None = None
    max_entries: int = 10_000
    key: Callable[[UserValue], object] | None = None
    #: The time for which a result is valid, in milliseconds; None for no limit.
    ttl_ms: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole_number("max_entries", self.max_entries)
        if self.key is not None:
            check_argument_count("key", self.key, 1, "(value)")
        ttl_ms = None if self.ttl is None else milliseconds_of("ttl", self.ttl, 1)
        object.__setattr__(self, "ttl_ms", ttl_ms)
