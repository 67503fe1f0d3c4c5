"""Debezium's envelopes: changes of the rows of a database, as messages.

An envelope has the row before and after the change, and an operation. Flink's SQL has it as the
formats `debezium-json` and `debezium-avro-confluent`.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from penstock.connectors.formats.json_format import Json, json_encoder
from penstock.connectors.formats.libraries import library
from penstock.connectors.formats.record_types import RecordType
from penstock.connectors.formats.rows import row_reader, row_type, row_writer
from penstock.connectors.formats.schemas import MessageFormat, SchemaContext
from penstock.dataflow.errors import GraphError
from penstock.dataflow.types import Row, RowKind, TypeInformation

_FORMS = ("rows", "changes")
#: The operations of rows, and the kind of the row after the change.
_KINDS = {"c": RowKind.INSERT, "r": RowKind.INSERT, "u": RowKind.UPDATE_AFTER, "d": RowKind.DELETE}
_NO_BEFORE = (
    "the row before the change is missing, so the change cannot be a row: let the database log "
    "whole rows (for PostgreSQL, ALTER TABLE … REPLICA IDENTITY FULL), or read with form='changes'"
)


class DebeziumChange(NamedTuple):
    """A change of a row, as Debezium describes it.

    Arguments:
        op: the operation: "c" (create), "u" (update), "d" (delete), "r" (read in a first snapshot),
            "t" (truncate), or "m" (a message that a program has put into the log).
        before: the row before the change; None if there was none, or the database does not log it.
        after: the row after the change; None if there is none.
        source: what Debezium says about the origin: the connector, table, place in the log, and so
            on.
        ts_ms: the time at which Debezium handled the change, in milliseconds since the epoch.

    Examples:
        >>> change = DebeziumChange("u", {"id": 1, "n": 1}, {"id": 1, "n": 2})
        >>> change.to_rows()
        [Row.of_kind(-U, id=1, n=1), Row.of_kind(+U, id=1, n=2)]
    """

    op: str
    before: Any = None
    after: Any = None
    source: dict[str, Any] | None = None
    ts_ms: int | None = None

    def to_rows(self, make: Callable[[Any], Row] | None = None) -> list[Row]:
        """Return the change as rows with kinds: none, one, or two for an update.

        Arguments:
            make: makes a row of `before` and `after`; None if these are dicts.

        Raises:
            ValueError: if a row is missing, or the operation is not one of rows.
        """
        make = make or _named_row
        kind = _KINDS.get(self.op)
        if kind is None:
            if self.op == "m":
                return []
            raise ValueError(f"op is {self.op!r}, which no row can say: read with form='changes'")
        rows = []
        if kind in (RowKind.UPDATE_AFTER, RowKind.DELETE):
            if self.before is None:
                raise ValueError(_NO_BEFORE)
            rows.append(make(self.before))
            rows[0].set_row_kind(
                RowKind.DELETE if kind is RowKind.DELETE else RowKind.UPDATE_BEFORE
            )
        if kind is not RowKind.DELETE:
            if self.after is None:
                raise ValueError(f"op is {self.op!r}, and there is no row after the change")
            rows.append(make(self.after))
            rows[-1].set_row_kind(kind)
        return rows


class Debezium(MessageFormat[Any]):
    """Each message is an envelope of Debezium. (Flink: the format `debezium-json`.)

    A source gives rows with kinds: a new row is +I, a removed one -D, and a changed one -U and +U.
    With `form="changes"` it gives a `DebeziumChange` for each message. A tombstone, which follows a
    removed row in a compacted topic, gives nothing.

    If an envelope has its schema, dates, times and decimal numbers become values of `datetime` and
    `decimal`. Without it they are as Debezium writes them, for example days since 1970.

    A sink writes rows and `DebeziumChange`s. As in Flink, rows of kind +I and +U become "c", and
    those of kind -U and -D become "d".

    Arguments:
        envelope: the format of an envelope: `Json()`, or `Registered(Avro(), registry)` for Avro
            (Flink: `debezium-avro-confluent`). None is `Json()`.
        form: "rows" or "changes", for the records of a source.
        type_info: the type of the rows; None if their fields are those of the message.
        type: the class of `before` and `after` of changes, such as a dataclass; None for dicts.
        on_error: how a source handles a message that does not fit; see `DeserializationSchema`.

    Raises:
        GraphError: if an argument is unknown, or does not belong to the form.

    Examples:
        >>> message = b'{"before": null, "after": {"id": 1, "name": "ann"}, "op": "c"}'
        >>> Debezium().deserialize([message])
        [[Row(id=1, name='ann')]]
        >>> Debezium(form="changes").deserialize([message])[0][0].after
        {'id': 1, 'name': 'ann'}
        >>> Debezium().serialize([Row.of_kind(RowKind.DELETE, id=1)])
        [b'{"before":{"id":1},"after":null,"op":"d"}']
    """

    one_to_one = False

    def __init__(
        self,
        envelope: MessageFormat[Any] | None = None,
        *,
        form: str = "rows",
        type_info: TypeInformation[Any] | None = None,
        type: Any = None,
        on_error: str = "fail",
    ) -> None:
        super().__init__(on_error=on_error)
        if envelope is None:
            envelope = Json()
        if not isinstance(envelope, MessageFormat) or not envelope.one_to_one:
            raise GraphError(
                f"the envelope of Debezium is Json() or Registered(Avro(), registry), "
                f"not {envelope!r}"
            )
        if form not in _FORMS:
            raise GraphError(f'form of Debezium is "rows" or "changes", not {form!r}')
        if type is not None and form == "rows":
            raise GraphError('type of Debezium belongs to form="changes"; rows have a type_info')
        if type_info is not None and form == "changes":
            raise GraphError('type_info of Debezium belongs to form="rows"; changes have a type')
        self.envelope, self.form, self._type = envelope, form, RecordType(type)
        self.type_info = None if type_info is None else row_type("Debezium", type_info)
        self._converters: dict[bytes, Callable[[Any], Any]] = {}
        self._make: Callable[[Any], Row] | None = None
        self._is_open = False

    @property
    def type(self) -> Any:
        """The class of `before` and `after` of changes; None for dicts."""
        return self._type.type

    def open(self, context: SchemaContext) -> None:
        """Open the format of the envelopes."""
        self.envelope = copy.copy(self.envelope)
        self.envelope.open(context)
        self._converters, self._is_open = {}, True
        if self.type_info is not None:
            self._make = row_reader(self.type_info, "json")

    def deserialize(self, messages: Sequence[bytes | None]) -> list[list[Any]]:
        """Return the rows or the change of each message, in a list for each.

        Raises:
            ValueError: if a message is no envelope.
        """
        if not self._is_open:
            self.open(SchemaContext())
        present = [message for message in messages if message is not None]
        envelopes = iter(self.envelope.deserialize(present) if present else ())
        return [[] if one is None else self._records(next(envelopes)) for one in messages]

    def _records(self, envelope: Any) -> list[Any]:
        change = self._change(envelope)
        if self.form == "changes":
            return [change if self.type is None else self._typed(change)]
        return change.to_rows(self._make)

    def _change(self, envelope: Any) -> DebeziumChange:
        schema = None
        if isinstance(envelope, dict) and "payload" in envelope and "schema" in envelope:
            schema, envelope = envelope["schema"], envelope["payload"]
        if not isinstance(envelope, dict) or not isinstance(envelope.get("op"), str):
            raise ValueError(
                "it is no envelope of Debezium, because it has no operation (op). A connector with "
                "the transform ExtractNewRecordState writes plain rows: read them with Json()"
            )
        before, after = envelope.get("before"), envelope.get("after")
        for name, row in (("before", before), ("after", after)):
            if row is not None and not isinstance(row, dict):
                raise ValueError(f"{name} is {row!r}, and not a row")
        if schema is not None:
            convert = self._converter(schema)
            before, after = convert(before), convert(after)
        source, time = envelope.get("source"), envelope.get("ts_ms")
        return DebeziumChange(envelope["op"], before, after, source, time)

    def _typed(self, change: DebeziumChange) -> DebeziumChange:
        msgspec = library("msgspec", "json", "Debezium with a type")
        builtin = (bytes, date, datetime, Decimal)
        try:
            before, after = (
                None if row is None else msgspec.convert(row, self.type, builtin_types=builtin)
                for row in (change.before, change.after)
            )
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        return change._replace(before=before, after=after)

    def _converter(self, schema: Any) -> Callable[[Any], Any]:
        """Return the function that converts rows of a schema, which most messages share."""
        key = json_encoder().encode(schema)
        found = self._converters.get(key)
        if found is None:
            try:
                fields = {field["field"]: field for field in schema["fields"]}
                found = _row_converter(fields.get("after") or fields["before"])
            except (KeyError, TypeError) as error:
                raise ValueError(f"its schema is not one of Debezium: {error!r}") from None
            self._converters[key] = found
        return found

    def serialize(self, records: Sequence[Any]) -> list[bytes]:
        """Return the envelope of each row or change.

        Raises:
            TypeError: if a record is neither.
        """
        if not self._is_open:
            self.open(SchemaContext())
        return list(self.envelope.serialize(list(map(self._envelope, records))))

    def _envelope(self, record: Any) -> dict[str, Any]:
        if isinstance(record, DebeziumChange):
            return {key: value for key, value in record._asdict().items() if _is_said(key, value)}
        if not isinstance(record, Row):
            raise TypeError(f"it is {type(record).__name__}, and not a Row or DebeziumChange")
        kind = record.get_row_kind()
        row = self._plain(record)
        if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
            return {"before": None, "after": row, "op": "c"}
        return {"before": row, "after": None, "op": "d"}

    def _plain(self, row: Row) -> dict[str, Any]:
        if self.type_info is not None:
            form = "json" if isinstance(self.envelope, Json) else "avro"
            plain: dict[str, Any] = row_writer(self.type_info, form)(row)
            return plain
        return row.as_dict(recursive=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_converters": {}, "_make": None, "_is_open": False}


def _is_said(key: str, value: Any) -> bool:
    return value is not None or key in ("before", "after")


def _named_row(values: Mapping[str, Any]) -> Row:
    return Row.of_parts(RowKind.INSERT, tuple(values), list(values.values()))


def _row_converter(schema: Any) -> Callable[[Any], Any]:
    """Return a function that converts the values of a row whose schema has logical types."""
    converters = {}
    for field in schema["fields"]:
        convert = _field_converter(field)
        if convert is not None:
            converters[field["field"]] = convert

    def convert_row(row: Any) -> Any:
        if row is None or not converters:
            return row
        made = dict(row)
        for name, convert in converters.items():
            value = made.get(name)
            if value is not None:
                try:
                    made[name] = convert(value)
                except (ValueError, TypeError, OverflowError) as error:
                    raise ValueError(f"field {name!r}: {value!r}: {error}") from None
        return made

    return convert_row


def _field_converter(field: Any) -> Callable[[Any], Any] | None:
    """Return a function that converts the values of a field; None if they stay as they are."""
    name, kind = field.get("name"), field.get("type")
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int(field["parameters"]["scale"])
        return lambda value: _decimal(value, scale)
    if name == "io.debezium.data.VariableScaleDecimal":
        return lambda value: _decimal(value["value"], value["scale"])
    if name in _LOGICAL:
        return _LOGICAL[name]
    if kind == "bytes":
        return base64.b64decode
    if kind == "struct" and name is not None and name.startswith("io.debezium"):
        return None  # such as a point, which has no class
    return _row_converter(field) if kind == "struct" else None


def _decimal(text: str, scale: int) -> Decimal:
    """Return a decimal number, of which a message has the digits as a number in bytes."""
    return Decimal(int.from_bytes(base64.b64decode(text), signed=True)).scaleb(-scale)


_EPOCH = datetime(1970, 1, 1)


def _time(number: int, unit: str) -> Any:
    return (_EPOCH + timedelta(**{unit: number})).time()


#: How values of logical types become values of Python. Times of day and timestamps have no zone, as
#: in the database, unless their type has one.
_LOGICAL: dict[str, Callable[[Any], Any]] = {
    "io.debezium.time.Date": lambda days: date(1970, 1, 1) + timedelta(days),
    "org.apache.kafka.connect.data.Date": lambda days: date(1970, 1, 1) + timedelta(days),
    "io.debezium.time.Time": lambda number: _time(number, "milliseconds"),
    "org.apache.kafka.connect.data.Time": lambda number: _time(number, "milliseconds"),
    "io.debezium.time.MicroTime": lambda number: _time(number, "microseconds"),
    "io.debezium.time.NanoTime": lambda number: _time(number // 1000, "microseconds"),
    "io.debezium.time.Timestamp": lambda number: _EPOCH + timedelta(milliseconds=number),
    "org.apache.kafka.connect.data.Timestamp": lambda n: _EPOCH + timedelta(milliseconds=n),
    "io.debezium.time.MicroTimestamp": lambda number: _EPOCH + timedelta(microseconds=number),
    "io.debezium.time.NanoTimestamp": lambda n: _EPOCH + timedelta(microseconds=n // 1000),
    "io.debezium.time.ZonedTimestamp": lambda text: datetime.fromisoformat(text).astimezone(UTC),
}
