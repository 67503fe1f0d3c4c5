"""PostgreSQL as source, sink, stream of changes and lookup.

This package needs the extra `penstock[postgres]` (psycopg 3). Each public name is imported at its
first use. `connection.py` opens connections and classifies errors; `records.py` makes records from
rows. The user guide is `docs/guides/connectors/postgres.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.connectors.postgres.cdc_source import PostgresCdcSource
    from penstock.connectors.postgres.change import Change
    from penstock.connectors.postgres.lookup import PostgresLookup
    from penstock.connectors.postgres.postgres_sink import PostgresSink
    from penstock.connectors.postgres.query_source import PostgresSource

_WHERE = {
    "Change": "change",
    "PostgresCdcSource": "cdc_source",
    "PostgresLookup": "lookup",
    "PostgresSink": "postgres_sink",
    "PostgresSource": "query_source",
}

__all__ = [
    "Change",
    "PostgresCdcSource",
    "PostgresLookup",
    "PostgresSink",
    "PostgresSource",
]

__getattr__ = lazy_names(__name__, _WHERE)
