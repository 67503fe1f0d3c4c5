"""Decode and encode batches of messages with a schema, for sources and sinks.

A source makes one `MessageDecoder` for each reader, and a sink one `MessageEncoder` for each
writer. They open a copy of the schema, because one process may have several subtasks.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.connectors.bad_messages import BadMessages, Misfit, shown_bytes
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    SchemaContext,
    SerializationSchema,
)
from penstock.dataflow.errors import JobError, PenstockError, Recoverability
from penstock.dataflow.metrics import MESSAGES_SKIPPED
from penstock.dataflow.output_tag import SideOutput


class Decoded(NamedTuple):
    """The records of a batch of messages.

    Arguments:
        records: the records, in the order of their messages.
        origins: for each record, the index of its message. It is None if each message is one
            record. A source that gives records event times uses it.
    """

    records: list[Any]
    origins: list[int] | None

    def pick(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return for each record the value of its message.

        Arguments:
            values: one value for each message, such as its timestamp or key.
        """
        return values if self.origins is None else [values[index] for index in self.origins]


class MessageDecoder:
    """Decodes the messages of a reader, and handles those that do not fit.

    Arguments:
        schema: the schema of the source.
        context: where it is used.

    Examples:
        >>> decoder = MessageDecoder(Json(on_error="skip"), SchemaContext("numbers"))
        >>> decoder.decode([b"1", b"none", b"2"], lambda index: f"numbers, message {index}")
        Decoded(records=[1, 2], origins=[0, 2])
    """

    def __init__(self, schema: DeserializationSchema[Any], context: SchemaContext) -> None:
        self._schema = copy.copy(schema)
        self._schema.open(context)
        self._deserialize = self._schema.deserialize
        self._name = type(schema).__name__
        skipped = context.metrics.counter(MESSAGES_SKIPPED)
        self._bad = BadMessages(self._name, schema.on_error, skipped)

    def decode(self, messages: Sequence[bytes | None], place: Callable[[int], str]) -> Decoded:
        """Return the records of messages.

        Afterwards, `take_side_output` returns the bad messages for the side output.

        Arguments:
            messages: the messages. None is a tombstone: a message with a key, and without a value.
            place: a function that returns the place of the message with an index, for errors. It
                should name everything that is needed to find the message again.

        Raises:
            JobError: if a message does not fit, and `on_error` of the schema is "fail".
        """
        if not messages:
            return Decoded([], None)
        if not self._schema.one_to_one:
            return self._decode_parts(messages, place)
        if None in messages:
            return self._decode_some(messages, place)
        try:
            records = self._deserialize(messages)
        except PenstockError:
            raise  # for example, the schema registry cannot be reached
        except ValueError:
            return self._decode_singly(messages, place)
        if len(records) != len(messages):
            raise JobError(
                f"{self._name}.deserialize returned {len(records)} records for {len(messages)} "
                f"messages: it must return one for each, or have one_to_one = False",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return Decoded(records if type(records) is list else list(records), None)

    def take_side_output(self) -> list[SideOutput]:
        """Remove and return the bad messages for the side output, with its tag.

        A reader passes them on as `Read.side_output`, or with `SplitPoller.take_side_output`.
        """
        return self._bad.take_side_output()

    def end_split(self, name: str) -> None:
        """Log how many messages were skipped in a split, if there was more than one."""
        self._bad.end_split(name)

    def _decode_some(
        self, messages: Sequence[bytes | None], place: Callable[[int], str]
    ) -> Decoded:
        """Decode messages among which there are tombstones."""
        indices = [index for index, message in enumerate(messages) if message is not None]
        with_value = [messages[index] for index in indices]
        decoded = self.decode(with_value, lambda index: place(indices[index]))
        records: dict[int, Any] = dict.fromkeys(
            index for index, message in enumerate(messages) if message is None
        )
        origins = decoded.pick(indices)
        records.update(zip(origins, decoded.records, strict=True))
        found = sorted(records)
        return Decoded([records[index] for index in found], found)

    def _decode_singly(
        self, messages: Sequence[bytes | None], place: Callable[[int], str]
    ) -> Decoded:
        """Decode messages among which there is a bad one."""
        records: list[Any] = []
        origins: list[int] = []
        for index, message in enumerate(messages):
            try:
                records += self._deserialize([message])
            except PenstockError:
                raise
            except ValueError as error:
                self._misfit(index, message, place, error)
            else:
                origins.append(index)
        if len(origins) == len(messages):
            raise JobError(
                f"{place(0)}: {self._name}.deserialize refuses these messages together, though it "
                f"accepts each of them: it must decode each message by itself",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return Decoded(records, origins)

    def _decode_parts(
        self, messages: Sequence[bytes | None], place: Callable[[int], str]
    ) -> Decoded:
        """Decode messages that have any number of records."""
        try:
            parts: Sequence[Any] = self._deserialize(messages)
        except PenstockError:
            raise
        except ValueError:
            parts = []
            for index, message in enumerate(messages):
                try:
                    parts += self._deserialize([message])
                except PenstockError:
                    raise
                except ValueError as error:
                    self._misfit(index, message, place, error)
                    parts.append(())
        records = [record for part in parts for record in part]
        origins = [index for index, part in enumerate(parts) for _ in part]
        return Decoded(records, origins)

    def _misfit(
        self,
        index: int,
        message: bytes | None,
        place: Callable[[int], str],
        error: ValueError,
    ) -> None:
        data = b"" if message is None else bytes(message)
        reason = f"a message is not valid {self._name}: {error}"
        self._bad.add(Misfit(place(index), reason, data, shown_bytes(data)))


class MessageEncoder:
    """Encodes the records of a writer.

    Arguments:
        schema: the schema of the sink.
        context: where it is used.

    Examples:
        >>> MessageEncoder(Json(), SchemaContext("users")).encode([{"name": "ann"}])
        [b'{"name":"ann"}']
    """

    def __init__(self, schema: SerializationSchema[Any], context: SchemaContext) -> None:
        self._schema = copy.copy(schema)
        self._schema.open(context)

    def encode(self, records: Sequence[Any]) -> list[bytes]:
        """Return the message of each record.

        Raises:
            JobError: if a record cannot be encoded; it shows the record.
        """
        schema = self._schema
        try:
            messages = schema.serialize(records)
        except PenstockError:
            raise
        except Exception as error:
            culprit, reason = self._culprit(records, error)
            raise JobError(
                f"{type(schema).__name__} cannot encode a record: {reason}", record=culprit
            ) from error
        return messages if type(messages) is list else list(messages)

    def _culprit(self, records: Sequence[Any], error: Exception) -> tuple[str | None, Exception]:
        """Return the first record that cannot be encoded, as text, and why."""
        for record in records:
            try:
                self._schema.serialize([record])
            except Exception as found:
                return reprlib.repr(record), found
        return None, error
