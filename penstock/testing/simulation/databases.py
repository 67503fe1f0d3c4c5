"""Close the files that killed processes of a simulation leave open.

A real process that is killed has no open files any more. A simulated one leaves objects, and
Python warns about a file that is still open when its object is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.dataflow.errors import StoreError
from penstock.snapshot.state.sqlite.database import SqliteDatabase


@contextmanager
def closing_databases() -> Iterator[None]:
    """Close the SQLite databases that are opened in this context, at its end."""
    made: list[SqliteDatabase] = []
    create = SqliteDatabase.__init__

    def register(database: SqliteDatabase, *arguments: Any, **named: Any) -> None:
        create(database, *arguments, **named)
        made.append(database)

    SqliteDatabase.__init__ = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SqliteDatabase.__init__ = create  # type: ignore[method-assign]
        for database in made:
            with suppress(StoreError):
                database.close()
