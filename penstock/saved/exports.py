"""Write the entries of a state to a file: Parquet, CSV, or one JSON object per line."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from penstock.dataflow.errors import GraphError
from penstock.saved.entries import SavedState
from penstock.saved.json_values import as_json, json_value
from penstock.saved.snapshot import SavedSnapshot
from penstock.saved.tables import require, state_columns

_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl"}
_SUFFIXES |= {".ndjson": "jsonl"}


def kind_of(file: Path) -> str:
    """Return the format that the suffix of a file stands for.

    Raises:
        GraphError: if it stands for none.
    """
    kind = _SUFFIXES.get(file.suffix.lower())
    if kind is None:
        raise GraphError(
            f"the suffix of {str(file)!r} names no format: give --format parquet, csv or jsonl"
        )
    return kind


def export_parquet(snapshot: SavedSnapshot, state: SavedState, file: Path) -> int:
    """Write a state to a Parquet file, and return the number of its entries.

    Raises:
        GraphError: if pyarrow is missing.
    """
    parquet = require("pyarrow.parquet", "columns")
    table = snapshot.to_arrow(state.operator, state.name)
    parquet.write_table(table, str(file))
    return int(table.num_rows)


def export_csv(snapshot: SavedSnapshot, state: SavedState, file: Path) -> int:
    """Write a state to a CSV file, and return the number of its entries."""
    columns = state_columns(state)
    with _writing(file) as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        count = 0
        for entry in snapshot.entries(state.operator, state.name):
            writer.writerow([_cell(getter(entry)) for getter in columns.values()])
            count += 1
    return count


def _cell(value: Any) -> Any:
    # The text of a text is itself; quotes of JSON would be quoted again.
    return value if value is None or isinstance(value, (str, int, float)) else as_json(value)


def export_jsonl(snapshot: SavedSnapshot, state: SavedState, file: Path) -> int:
    """Write a state as a JSON object per line, and return the number of its entries."""
    columns = state_columns(state)
    with _writing(file) as stream:
        count = 0
        for entry in snapshot.entries(state.operator, state.name):
            row = {name: json_value(getter(entry)) for name, getter in columns.items()}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


@contextmanager
def _writing(file: Path) -> Iterator[TextIO]:
    if str(file) == "-":
        yield sys.stdout
        return
    with file.open("w", encoding="utf-8", errors="surrogatepass", newline="") as stream:
        yield stream


#: The functions that write a state, by the name of the format.
EXPORTS: dict[str, Callable[[SavedSnapshot, SavedState, Path], int]] = {
    "parquet": export_parquet,
    "csv": export_csv,
    "jsonl": export_jsonl,
}
