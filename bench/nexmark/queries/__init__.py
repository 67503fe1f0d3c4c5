"""The queries of the benchmark, as programs of the DataStream API.

Each is a function from the stream of events to the stream of results, in a module with others of
its kind. Records between operators are tuples of the fields that are needed.
"""

from __future__ import annotations

from bench.nexmark.queries import (
    columns,
    files,
    joins,
    ranking,
    single_events,
    statistics,
    windowed,
    winning_bids,
)
from bench.nexmark.queries.query import Query

__all__ = ["QUERIES", "Query"]

_ALL = [
    query
    for module in (
        single_events,
        joins,
        winning_bids,
        windowed,
        files,
        statistics,
        ranking,
        columns,
    )
    for query in module.QUERIES
]
#: All queries by their names, in the order of their numbers.
QUERIES = {query.name: query for query in sorted(_ALL, key=lambda query: query.number)}
