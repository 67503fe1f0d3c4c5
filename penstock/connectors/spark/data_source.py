"""Read the snapshots and the committed output of a job as Spark DataFrames.

    spark.dataSource.register(PenstockDataSource)
    spark.read.format("penstock").option("path", "job").load()

`PenstockDataSource` runs in Spark's Python workers, on the driver and on the executors. All these
machines need Penstock and access to the folders. `penstock.saved` reads the files of snapshots,
and `published.py` reads the files of sinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from penstock.connectors.lake.record_encoding import RowEncoder
from penstock.connectors.spark.published import (
    Reading,
    SinkFile,
    last_whole_snapshot,
    list_output,
    read_lines,
)
from penstock.connectors.spark.spark_types import arrow_schema
from penstock.dataflow.errors import GraphError
from penstock.saved.entries import StateEntry
from penstock.saved.json_values import as_json
from penstock.saved.state_parts import StatePart, find_state, read_part
from penstock.snapshot.storage.job_paths import JobPaths

_STATE = StructType(
    [
        StructField("operator", StringType(), nullable=False),
        StructField("state", StringType(), nullable=False),
        StructField("kind", StringType(), nullable=False),
        StructField("key_group", IntegerType()),
        StructField("key", StringType()),
        StructField("part", StringType()),
        StructField("value", StringType()),
        StructField("last_used_ms", LongType()),
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
    """Reads the state of a snapshot, or the committed output of a `FileSink`.

    The kind of the folder decides which of the two is read. A job's checkpoint folder and the
    folder of one snapshot contain state. Any other folder is read as the folder of a sink. The
    option `read` (`state` or `output`) overrides this choice.

    *State* has the columns `operator` (uid), `state` (name), `kind`, `key_group`, `key`, `part`,
    `value`, `last_used_ms`, `subtask` and `snapshot`. There is a row for each entry of a map and
    each element of a list, with the key or index in `part`; elsewhere `part` is null.
    `last_used_ms` is null for values that do not expire. Keys, parts and values are JSON text,
    which `from_json` parses. To read them as Spark values, pass the types of `key`, `part` and
    `value` in `.schema(...)`; the stored values must
    fit these types. Records of the job's own classes become arrays or structs of their fields. An
    enum member becomes an array or struct whose only item is its name. The options are `snapshot`
    (the number of the snapshot; the newest by default), `operator` (read only the operator with
    this uid) and `state` (read only the state with this name).

    *Output* has the columns `snapshot`, `subtask` and `value`. A value is a line of a text or JSON
    file, or a row of a CSV file as JSON. A row is a JSON object if the file has a header, and else
    an array. The options are `snapshot` (read the output up to this snapshot) and `encoding`. For
    CSV files there are also `header`, `delimiter` and `quote`, as in `CsvRows`.

    `readStream` follows the output of a sink. Its offset is the number of a snapshot. The stream
    reads a snapshot when the output of that snapshot is complete. Set the option `checkpoint` to
    the job's checkpoint folder, which shows which snapshots are complete. Without this option, a
    snapshot counts as complete when a later snapshot has output. The last snapshot is then never
    read.
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
        # Spark calls `schema` only if the user passed no schema. Keys and values are then JSON.
        self._json_text = False

    @classmethod
    def name(cls) -> str:
        """Return the name of this data source, which users pass to `format(...)`."""
        return "penstock"

    def schema(self) -> StructType:
        """Return the default columns, in which keys and values are JSON text."""
        self._json_text = True
        return _STATE if self._kind == "state" else _OUTPUT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader of the state or output that exists at this moment."""
        if self._kind == "state":
            _check_columns(schema, _STATE, free=("key", "part", "value"))
            parts = find_state(
                self._path, self._number, self._given.get("operator"), self._given.get("state")
            )
            return _StateReader(schema, parts, self._json_text)
        self._require_output_schema(schema)
        return _OutputReader(schema, self._reading(), list_output(self._path, upto=self._number))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream reader that follows the output of a sink."""
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
    """The input of one Spark task: the state of one subtask, or one file of a sink."""

    def __init__(self, value: StatePart | SinkFile) -> None:
        super().__init__(value)


class _StateReader(DataSourceReader):
    def __init__(self, schema: StructType, parts: list[StatePart], as_json: bool) -> None:
        self._schema = schema
        self._parts = parts
        self._json_text = as_json

    def partitions(self) -> Sequence[InputPartition]:
        return [_Part(part) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition is None:
            return  # Spark passes None if `partitions` returned an empty list.
        import numpy  # noqa: F401  (NumPy values can be decoded only after NumPy is imported)

        part: StatePart = partition.value
        shown = as_json if self._json_text else lambda value: value
        columns: dict[str, Any] = {
            "operator": lambda _: part.operator,
            "state": lambda entry: entry.state,
            "kind": lambda entry: entry.kind,
            "key_group": lambda entry: entry.group,
            "key": lambda entry: shown(entry.key),
            "part": lambda entry: None if entry.part is None else shown(entry.part),
            "last_used_ms": lambda entry: entry.last_used_ms,
            "value": lambda entry: shown(entry.value),
            "subtask": lambda _: part.subtask,
            "snapshot": lambda _: part.number,
        }
        taken = [columns[name] for name in self._schema.names]

        def rows(entries: list[StateEntry]) -> list[Any]:
            return [tuple([take(entry) for take in taken]) for entry in entries]

        yield from _batches(read_part(part), rows, self._schema, "the schema of the DataFrame")


def _batches(items: Iterator[Any], rows: Any, schema: StructType, subject: str) -> Iterator[Any]:
    """Yield items as Arrow record batches of at most `_BATCH_RECORDS` rows."""
    encoder = RowEncoder(arrow_schema(schema), subject)
    while chunk := list(islice(items, _BATCH_RECORDS)):
        yield from encoder.encode(rows(chunk)).to_batches()


class _Files:
    """Reads the files of a sink; the common base of the batch reader and the stream reader."""

    def __init__(self, schema: StructType, reading: Reading) -> None:
        self._schema = schema
        self._reading = reading

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition is None:
            return  # Spark passes None if `partitions` returned an empty list.
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
    """Follows the output of a sink as a stream.

    The offset `{"snapshot": n}` means that the output up to and including snapshot n was read.
    """

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
