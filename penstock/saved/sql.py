"""Run SQL queries over the states of a snapshot, with DuckDB.

Each state is a table `"uid"."state"`. Only the tables that the query names are read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from penstock.dataflow.errors import GraphError
from penstock.saved.entries import InFlightElement, SavedState, SourcePosition
from penstock.saved.json_values import as_json
from penstock.saved.tables import require, table_of
from penstock.snapshot.metadata.manifest import OperatorEntry

if TYPE_CHECKING:
    import pyarrow as pa


_DESCRIPTIONS = ("operators", "states", "sources", "in_flight")


class Queried(Protocol):
    """A snapshot, as far as queries need it."""

    @property
    def states(self) -> list[SavedState]:
        """Return all states."""

    @property
    def operators(self) -> tuple[OperatorEntry, ...]:
        """Return all operators."""

    def sources(self) -> list[SourcePosition]:
        """Return the positions of sources."""

    def in_flight(self) -> Iterable[InFlightElement]:
        """Return the elements in logs."""

    def to_arrow(self, operator: str, state: str) -> pa.Table:
        """Return a state as a table."""


def run_query(snapshot: Queried, query: str) -> pa.Table:
    """Return the result of a query as a table; see `SavedSnapshot.sql`.

    Raises:
        GraphError: if DuckDB is missing, or refuses the query.
    """
    duckdb = require("duckdb", "sql")
    require("pyarrow", "sql")
    connection = duckdb.connect()
    try:
        for schema, table in _tables_of(connection, query):
            _add(snapshot, connection, schema, table)
        # An `ORDER BY` of the query orders the result.
        return connection.execute(query).to_arrow_table()
    except duckdb.Error as error:
        tables = "\n".join(f"  {name}" for name in table_names(snapshot))
        raise GraphError(
            f"DuckDB refused the query: {error}\nthe snapshot has the tables\n{tables}"
        ) from error
    finally:
        connection.close()


def table_names(snapshot: Queried) -> list[str]:
    """Return the names of all tables of a snapshot, quoted as SQL wants them."""
    states = [f"{_quoted(one.operator)}.{_quoted(one.name)}" for one in snapshot.states]
    return [*states, *_DESCRIPTIONS]


def _tables_of(connection: Any, query: str) -> list[tuple[str | None, str]]:
    """Return the schema, or None, and the name of each table that a query names."""
    # DuckDB has no function that lists the tables of a query without looking for them.
    (text,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    found: dict[tuple[str | None, str], None] = {}
    nodes = [json.loads(text)]
    if nodes[0].get("error"):
        return []  # DuckDB reports the error when it runs the query.
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                found[node["schema_name"] or None, node["table_name"]] = None
            node = list(node.values())
        if isinstance(node, list):
            nodes += node
    return list(found)


def _add(snapshot: Queried, connection: Any, schema: str | None, table: str) -> None:
    """Add a table of the snapshot to a connection, if the snapshot has one of this name."""
    states = [one for one in snapshot.states if one.name.lower() == table.lower()]
    if schema is not None:
        states = [one for one in states if one.operator.lower() == schema.lower()]
    exact = [one for one in states if one.name == table and schema in (None, one.operator)]
    states = exact or states
    if len(states) > 1:
        operators = Counter(one.operator for one in states)
        raise GraphError(
            f"several operators have a state {table!r}: name it as "
            + " or ".join(f"{_quoted(uid)}.{_quoted(table)}" for uid in sorted(operators))
        )
    if states:
        content = snapshot.to_arrow(states[0].operator, states[0].name)
    elif schema is None and table.lower() in _DESCRIPTIONS:
        content = _description(snapshot, table.lower())
    else:
        return
    where = _quoted(table)
    if schema is not None:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        where = f"{_quoted(schema)}.{where}"
    registered = f"penstock_{schema or ''}_{table}"
    connection.register(registered, content)
    connection.execute(f"CREATE VIEW {where} AS SELECT * FROM {_quoted(registered)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _description(snapshot: Queried, table: str) -> pa.Table:
    if table == "operators":
        names = ["uid", "name", "kind", "parallelism", "max_parallelism", "stateful"]
        rows: Any = (tuple(getattr(one, name) for name in names) for one in snapshot.operators)
    elif table == "states":
        names, rows = ["operator", "name", "kind", "expires"], iter(snapshot.states)
    elif table == "sources":
        names = ["operator", "subtask", "split", "payload", "position"]
        rows = (
            (one.operator, one.subtask, one.split, as_json(one.payload), as_json(one.position))
            for one in snapshot.sources()
        )
    else:
        names = ["operator", "subtask", "producer", "source", "input", "partitioning", "kind"]
        names += ["value", "timestamp"]
        rows = ((*one[:7], as_json(one.value), one.timestamp) for one in snapshot.in_flight())
    return table_of(names, rows)
