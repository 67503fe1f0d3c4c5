"""Show records as a table, in a terminal or in a notebook (`DataStream.show`)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module

from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.types import Row

#: The largest number of characters of a value that a table shows.
_MAX_WIDTH = 200


class RecordTable:
    """A table with one row for each record.

    The columns are the fields of the records: the names of dicts, rows, named tuples and
    dataclasses, or the positions of tuples. If records differ in their fields, a missing value
    is an empty cell. Other records have one column.

    Arguments:
        records: the records.
        more: whether the stream has more records.
    """

    def __init__(self, records: Sequence[UserValue], more: bool = False) -> None:
        self.records, self.more = records, more
        self._rows = [_fields(record) for record in records]
        #: The names of the columns.
        self.columns = list(dict.fromkeys(name for row in self._rows for name in row))

    @property
    def footer(self) -> str:
        """The line below the table."""
        count = len(self.records)
        records = "1 record" if count == 1 else f"{count:,} records"
        return f"the first {records}" if self.more else records

    def cells(self) -> list[list[str]]:
        """Return the text of each cell, row by row."""
        return [
            [_text(row[name]) if name in row else "" for name in self.columns] for row in self._rows
        ]

    def display(self) -> None:
        """Show the table in the notebook that the program runs in, or print it."""
        # IPython is not a dependency. If a notebook runs, it has already imported this module.
        ipython = sys.modules.get("IPython")
        shell = None if ipython is None else ipython.get_ipython()
        if shell is not None and getattr(shell, "kernel", None) is not None:
            import_module("IPython.display").display(self)
            return
        from rich.console import Console

        console = Console()
        console.print(self)
        console.print(self.footer, highlight=False)

    def __repr__(self) -> str:
        """Return the table as text, which a notebook shows if it shows no HTML."""
        from rich.console import Console

        console = Console(width=120, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get() + self.footer

    def __rich__(self) -> object:
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for name in self.columns:
            table.add_column(Text(name), overflow="fold")
        for row in self.cells():
            table.add_row(*map(Text, row))
        return table

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in self.cells()
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f"{table}<p>{self.footer}</p>"


def _fields(record: UserValue) -> dict[str, UserValue]:
    """Return the fields of a record by the names of their columns."""
    if isinstance(record, Mapping):
        return {str(name): value for name, value in record.items()}
    if dataclasses.is_dataclass(record):
        return {one.name: getattr(record, one.name) for one in dataclasses.fields(record)}
    if isinstance(record, Row) and record.get_field_names() is not None:
        return record.as_dict()
    if isinstance(record, tuple | Row):
        names = getattr(record, "_fields", None) or range(len(record))
        return {str(name): value for name, value in zip(names, record, strict=True)}
    return {"value": record}


def _text(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_WIDTH else f"{text[:_MAX_WIDTH]}…"
