"""A format of files with one message of a schema per line."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, overload

from penstock.connectors.file_formats import LineFormat
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    SchemaContext,
    SerializationSchema,
)
from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import T


@dataclass(frozen=True)
class MessageLines(LineFormat[T], Generic[T]):
    r"""Stores one message of a schema per line, such as JSON of a type.

    Blank lines are skipped. A schema whose messages may contain line ends, such as `Avro`, cannot
    be written. The schema gets UTF-8 from a file in any encoding.

    Arguments:
        schema: the schema, such as `Json(Order)`. Its `on_error` decides how a source handles a bad
            line.
        encoding: the name of the text encoding; see `FileFormat`.
        errors: the way to handle text that cannot be decoded or encoded; see `FileFormat`.

    Raises:
        GraphError: if `schema` is not a schema.

    Examples:
        >>> _ = Path("ages.jsonl").write_text('{"ann": 31}\n{"bob": "old"}\n')
        >>> ages = FileSource("ages.jsonl", MessageLines(Json(dict[str, int], on_error="skip")))
        >>> list(env.from_source(ages).execute_and_collect())
        [{'ann': 31}]
    """

    schema: DeserializationSchema[T] | SerializationSchema[Any] = field(kw_only=False)
    _opened: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    if TYPE_CHECKING:
        # Type checkers take the type of the records from the schema that decodes.

        @overload
        def __init__(
            self: MessageLines[T],
            schema: DeserializationSchema[T],
            *,
            encoding: str = ...,
            errors: str = ...,
        ) -> None: ...

        @overload
        def __init__(
            self: MessageLines[Any],
            schema: SerializationSchema[Any],
            *,
            encoding: str = ...,
            errors: str = ...,
        ) -> None: ...

        def __init__(self, schema: Any, **options: str) -> None: ...

    def __post_init__(self) -> None:
        schema = self.schema
        if not isinstance(schema, DeserializationSchema | SerializationSchema):
            raise GraphError(f"MessageLines takes a schema such as Json(Order), not {schema!r}")
        if isinstance(schema, DeserializationSchema):
            object.__setattr__(self, "on_error", schema.on_error)
        super().__post_init__()

    @property
    def name(self) -> str:
        """The name of the schema."""
        return type(self.schema).__name__

    @property
    def extension(self) -> str:  # type: ignore[override]
        """The end of the names of written files."""
        return ".jsonl" if self.name.startswith("Json") else ".txt"

    def parse(self, lines: list[str]) -> list[Any]:
        """Return the record of each line that is not blank."""
        schema = self._copy()
        if not isinstance(schema, DeserializationSchema):
            raise GraphError(f"{self.name} cannot read: it is no DeserializationSchema")
        records = schema.deserialize([line.encode() for line in lines if line.strip()])
        if schema.one_to_one:
            return list(records)
        return [record for part in records for record in part]

    def render(self, batch: list[Any]) -> list[str]:
        """Return the message of each record."""
        schema = self._copy()
        if not isinstance(schema, SerializationSchema):
            raise GraphError(f"{self.name} cannot write: it is no SerializationSchema")
        return [str(message, "utf-8") for message in schema.serialize(batch)]

    def _copy(self) -> Any:
        """Return the copy of the schema that this process has opened."""
        if not self._opened:
            schema = copy.copy(self.schema)
            schema.open(SchemaContext())
            self._opened.append(schema)
        return self._opened[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": []}
