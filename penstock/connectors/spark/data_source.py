"""Read snapshots and committed output as DataFrames: `PenstockDataSource`.

    spark.dataSource.register(PenstockDataSource)
    spark.read.format("penstock").option("path", "job").load()

It runs in Spark's Python workers, on the driver and on executors. These must have Penstock
installed and must see the folders. `saved_state.py` and `published.py` read the files.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from penstock.connectors.folders import local_path
from penstock.connectors.spark.published import (
    Reading,
    SinkFile,
    last_whole_snapshot,
    list_output,
    read_lines,
)
from penstock.connectors.spark.record_encoding import RowEncoder
from penstock.connectors.spark.saved_state import StateEntry, StatePart, find_state, read_part
from penstock.connectors.spark.spark_types import arrow_schema
from penstock.dataflow.errors import GraphError
from penstock.snapshot.storage.job_paths import JobPaths

__all__ = ["PenstockDataSource"]

_STATE = StructType(
    [
        StructField("operator", StringType(), nullable=False),
        StructField("state", StringType(), nullable=False),
        StructField("key_group", IntegerType(), nullable=False),
        StructField("key", StringType()),
        StructField("value", StringType()),
        StructField("subtask", IntegerType(), nullable=False),
        StructField("snapshot", LongType(), nullable=False),
    ]
)
_OUTPUT = StructType(
    [
        StructField("snapshot", LongType(), nullable=False),
        StructField("subtask", IntegerType(), nullable=False),
        StructField("value", StringType(), nullable=False),
    ]
)
_OPTIONS = {
    "state": ("snapshot", "operator", "state"),
    "output": ("snapshot", "checkpoint", "encoding", "header", "delimiter", "quote"),
}
_BATCH_RECORDS = 4096


class PenstockDataSource(DataSource):
    """Reads the keyed state of a snapshot, or the committed output of a `FileSink`.

    The folder decides which of the two: a job's checkpoint folder, or the folder of one of its
    snapshots, has state, and any other folder is a sink's. The option `read` (`state` or `output`)
    overrides this.

    *State* has the columns `operator` (uid), `state` (name), `key_group`, `key`, `value`,
    `subtask` and `snapshot`. Keys and values are JSON text (`from_json` parses it), unless
    `.schema(...)` gives `key` and `value` types. Values must then have the Python types of
    these. Records of the job's own classes come as arrays or structs of their fields, enums as
    one of their name. Options: `snapshot` (its number; the newest by default), `operator` and
    `state` (read only this one).

    *Output* has the columns `snapshot`, `subtask` and `value`: a line of a text or JSON file, or
    a row of a CSV file as JSON (an object if the file has a header). Options: `snapshot` (only
    output up to this one), `encoding`, and for CSV `header`, `delimiter`, `quote`, as those of
    `CsvRows`.

    `readStream` follows output. Its offset is the number of a snapshot, and a snapshot is read when
    its output is complete. The option `checkpoint`, the job's checkpoint folder, shows which
    snapshots are. Without it a snapshot is read when a later one has output, so the last one stays
    unread.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        given = {key.lower(): value for key, value in options.items()}
        if "path" not in given:
            raise GraphError(
                "penstock reads from a folder: .option('path', <checkpoint folder or folder of a "
                "FileSink>), or load(<folder>)"
            )
        self._path = local_path(given.pop("path"))
        kind = given.pop("read", None) or _kind_of(self._path)
        if kind not in _OPTIONS:
            raise GraphError(f"the option read is 'state' or 'output', not {kind!r}")
        unknown = sorted(given.keys() - set(_OPTIONS[kind]))
        if unknown:
            raise GraphError(
                f"penstock has no option {unknown[0]!r} for reading {kind}; it has "
                f"{', '.join(_OPTIONS[kind])}"
            )
        self._kind = kind
        self._given = given
        self._number = _whole_number("snapshot", given.get("snapshot"))
        # Set by `schema`, which Spark calls only if the user has given none.
        self._as_json = False

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "penstock"

    def schema(self) -> StructType:
        """Return the columns, with keys and values as JSON."""
        self._as_json = True
        return _STATE if self._kind == "state" else _OUTPUT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of state or output as it is now."""
        if self._kind == "state":
            _check_columns(schema, _STATE, free=("key", "value"))
            parts = find_state(
                self._path, self._number, self._given.get("operator"), self._given.get("state")
            )
            return _StateReader(schema, parts, self._as_json)
        self._require_output_schema(schema)
        return _OutputReader(schema, self._reading(), list_output(self._path, upto=self._number))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader that follows output."""
        if self._kind == "state":
            raise GraphError(
                "state is read with spark.read, one snapshot at a time; readStream follows the "
                "output of a FileSink: give its folder, and the job's as the option checkpoint"
            )
        self._require_output_schema(schema)
        checkpoint = self._given.get("checkpoint")
        return _OutputFollower(
            schema,
            self._reading(),
            self._path,
            None if checkpoint is None else local_path(checkpoint),
        )

    def _require_output_schema(self, schema: StructType) -> None:
        _check_columns(schema, _OUTPUT, free=())

    def _reading(self) -> Reading:
        given = self._given
        return Reading(
            given.get("encoding", "utf-8"),
            given.get("header", "true").lower() == "true",
            given.get("delimiter", ","),
            given.get("quote", '"'),
        )


def _kind_of(path: Path) -> str:
    root, _ = JobPaths.locate(path)
    return "state" if root.job.exists() else "output"


def _whole_number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise GraphError(f"the option {name} is the number of a snapshot, not {text!r}")
    return int(text)


def _check_columns(schema: StructType, known: StructType, free: tuple[str, ...]) -> None:
    types = {field.name: field.dataType for field in known.fields}
    for field in schema.fields:
        if field.name not in types:
            raise GraphError(
                f"there is no column {field.name!r}; there are {', '.join(types)}. Parts of a "
                f"value are taken out with from_json"
            )
        if field.name not in free and field.dataType != types[field.name]:
            raise GraphError(
                f"the column {field.name!r} is of type {types[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}"
            )


class _Part(InputPartition):
    """The input of one Spark task: a part of a state, or a file."""

    def __init__(self, value: StatePart | SinkFile) -> None:
        super().__init__(value)


class _StateReader(DataSourceReader):
    def __init__(self, schema: StructType, parts: list[StatePart], as_json: bool) -> None:
        self._schema = schema
        self._parts = parts
        self._as_json = as_json

    def partitions(self) -> Sequence[InputPartition]:
        return [_Part(part) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition is None:
            return  # Spark passes no partition if there are none
        import numpy  # noqa: F401  (values of its types are decoded only if it is loaded)

        part: StatePart = partition.value
        shown = _json if self._as_json else lambda value: value
        columns: dict[str, Any] = {
            "operator": lambda _: part.operator,
            "state": lambda entry: entry.state,
            "key_group": lambda entry: entry.group,
            "key": lambda entry: shown(entry.key),
            "value": lambda entry: shown(entry.value),
            "subtask": lambda _: part.subtask,
            "snapshot": lambda _: part.number,
        }
        taken = [columns[name] for name in self._schema.names]

        def rows(entries: list[StateEntry]) -> list[Any]:
            return [tuple([take(entry) for take in taken]) for entry in entries]

        yield from _batches(read_part(part), rows, self._schema, "the schema of the DataFrame")


def _batches(items: Iterator[Any], rows: Any, schema: StructType, subject: str) -> Iterator[Any]:
    """Yield items as Arrow record batches, some thousand rows at a time."""
    encoder = RowEncoder(arrow_schema(schema), subject)
    while chunk := list(islice(items, _BATCH_RECORDS)):
        yield from encoder.encode(rows(chunk)).to_batches()


class _Files:
    """Reads files of a sink; the base for batches and streams."""

    def __init__(self, schema: StructType, reading: Reading) -> None:
        self._schema = schema
        self._reading = reading

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition is None:
            return  # Spark passes no partition if there are none
        file: SinkFile = partition.value
        columns: dict[str, Any] = {
            "snapshot": lambda _: file.snapshot,
            "subtask": lambda _: file.subtask,
            "value": lambda line: line,
        }
        taken = [columns[name] for name in self._schema.names]

        def rows(lines: list[str]) -> list[Any]:
            return [tuple([take(line) for take in taken]) for line in lines]

        lines = read_lines(file, self._reading)
        yield from _batches(lines, rows, self._schema, "the schema of the DataFrame")


class _OutputReader(_Files, DataSourceReader):
    def __init__(self, schema: StructType, reading: Reading, files: list[SinkFile]) -> None:
        super().__init__(schema, reading)
        self._files = files

    def partitions(self) -> Sequence[InputPartition]:
        return [_Part(file) for file in self._files]


class _OutputFollower(_Files, DataSourceStreamReader):
    """Follows output; the offset `{"snapshot": n}` is the end of snapshot n."""

    def __init__(
        self, schema: StructType, reading: Reading, folder: Path, checkpoint: Path | None
    ) -> None:
        super().__init__(schema, reading)
        self._folder = folder
        self._checkpoint = checkpoint

    def initialOffset(self) -> dict[str, int]:
        return {"snapshot": 0}

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        del limit
        before = 0 if start is None else start["snapshot"]
        whole = last_whole_snapshot(self._folder, self._checkpoint)
        return {"snapshot": max(before, whole)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        files = list_output(self._folder, start["snapshot"], end["snapshot"])
        return [_Part(file) for file in files]


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value in JSON's types, by the table in docs/spark.md."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        # Keys of JSON are text, so the keys 1 and "1" would become one.
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, set | frozenset):
        # Any order will do that is the same each time.
        return sorted(map(_plain, value), key=repr)
    if hasattr(value, "item"):
        return _plain(value.item())  # a NumPy scalar
    if isinstance(value, range) or not hasattr(value, "__iter__"):
        return str(value)  # Decimal, Fraction, complex, UUID, zones
    return [_plain(item) for item in value]
