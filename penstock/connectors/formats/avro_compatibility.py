"""Decide whether data that was written with one Avro schema can be read with another.

The rules are those of "Schema Resolution" in Avro's specification, as schema registries check them.
fastavro applies them to each value that it reads, so it finds a mismatch only in the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


def why_unreadable(writer: Any, reader: Any) -> str | None:
    """Return why data of the writer's schema cannot be read with the reader's schema.

    Arguments:
        writer: the parsed JSON of the schema with which data was written.
        reader: the parsed JSON of the schema with which it is read.

    Returns:
        A text that names the place in the reader's schema, or None if all such data can be read.
    """
    return _Comparison(writer, reader).compare(writer, reader, "")


def record_name(schema: Any) -> str:
    """Return the full name of a named schema; the name of the type for others."""
    if isinstance(schema, Mapping) and "name" in schema:
        name, space = schema["name"], schema.get("namespace")
        return name if "." in name or not space else f"{space}.{name}"
    return schema if isinstance(schema, str) else str(_kind(schema))


class _Comparison:
    """Compares two schemas, with the named types that each defines."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self._writer_names: dict[str, Any] = {}
        self._reader_names: dict[str, Any] = {}
        _collect(writer, "", self._writer_names)
        _collect(reader, "", self._reader_names)
        #: The pairs of named types that are compared already, so that recursive types end.
        self._seen: set[tuple[str, str]] = set()

    def compare(self, writer: Any, reader: Any, place: str) -> str | None:
        writer = _resolved(writer, self._writer_names)
        reader = _resolved(reader, self._reader_names)
        if isinstance(writer, list):
            return _first(self.compare(branch, reader, place) for branch in writer)
        if isinstance(reader, list):
            reasons = [self.compare(writer, branch, place) for branch in reader]
            if None in reasons:
                return None
            return f"{place or 'the schema'}: the union of the reader has no {_kind(writer)}"
        was, now = _kind(writer), _kind(reader)
        if was != now:
            if now in _PROMOTIONS.get(was, ()):
                return None
            return f"{place or 'the schema'}: {was} cannot be read as {now}"
        if was == "record":
            return self._compare_records(writer, reader, place)
        if was == "enum":
            return _compare_enums(writer, reader, place)
        if was == "fixed" and writer["size"] != reader["size"]:
            return f"{place}: fixed({writer['size']}) cannot be read as fixed({reader['size']})"
        if was == "array":
            return self.compare(writer["items"], reader["items"], f"{place}[]")
        if was == "map":
            return self.compare(writer["values"], reader["values"], f"{place}{{}}")
        return None

    def _compare_records(self, writer: Any, reader: Any, place: str) -> str | None:
        pair = (record_name(writer), record_name(reader))
        if pair in self._seen:
            return None
        self._seen.add(pair)
        if place and not _same_name(writer, reader):
            return f"{place}: record {pair[0]} cannot be read as {pair[1]}"
        fields = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            found = next((fields[name] for name in names if name in fields), None)
            path = f"{place}.{field['name']}" if place else field["name"]
            if found is None:
                if "default" not in field:
                    return f"{path}: the writer has no such field, and the reader has no default"
                continue
            reason = self.compare(found["type"], field["type"], path)
            if reason is not None:
                return reason
        return None


def _compare_enums(writer: Any, reader: Any, place: str) -> str | None:
    gone = [one for one in writer["symbols"] if one not in reader["symbols"]]
    if gone and "default" not in reader:
        return f"{place}: the enum of the reader has no {gone[0]!r} and no default"
    return None


def _same_name(writer: Any, reader: Any) -> bool:
    """Return whether two named types have one name, without their namespaces, or an alias."""
    was = record_name(writer).rpartition(".")[2]
    names = [record_name(reader), *reader.get("aliases", ())]
    return was in [name.rpartition(".")[2] for name in names]


def _first(reasons: Any) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    return kind if isinstance(kind, str) else _kind(kind)


def _resolved(schema: Any, names: dict[str, Any]) -> Any:
    """Return the definition of a schema that is a name, or is wrapped in `{"type": ...}`."""
    while True:
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            found = names.get(schema) or names.get(schema.rpartition(".")[2])
            if found is None:
                return schema
            schema = found
        elif isinstance(schema, Mapping) and isinstance(schema["type"], Mapping | list):
            schema = schema["type"]
        else:
            return schema


def _collect(schema: Any, space: str, names: dict[str, Any]) -> None:
    """Add the named types of a schema, under their full names and their plain names."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, space, names)
    if not isinstance(schema, Mapping):
        return
    space = schema.get("namespace", space)
    if "name" in schema and schema.get("type") in ("record", "enum", "fixed", "error"):
        name = schema["name"]
        names[name if "." in name or not space else f"{space}.{name}"] = schema
        names.setdefault(name.rpartition(".")[2], schema)
    for field in schema.get("fields", ()):
        _collect(field["type"], space, names)
    for part in ("items", "values", "type"):
        if isinstance(schema.get(part), Mapping | list):
            _collect(schema[part], space, names)
