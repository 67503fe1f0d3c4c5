"""Messages that fit or not: what sources get from a decoder, and sinks from an encoder."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import cloudpickle
import pytest

from penstock import GraphError, JobError
from penstock.connectors.bad_messages import BadMessage, bad_messages_tag
from penstock.connectors.formats import (
    DeserializationSchema,
    Json,
    MessageDecoder,
    MessageEncoder,
    SchemaContext,
    SerializationSchema,
    SimpleStringSchema,
    check_deserialization_schema,
    check_serialization_schema,
)
from penstock.dataflow.errors import Recoverability
from penstock.dataflow.metrics import MESSAGES_SKIPPED

MESSAGES = [b"1", b"\xff", b"2", None, b"[3", b"4"]


def place(index: int) -> str:
    return f"numbers/0@{index}"


def decoder(schema: Any) -> tuple[MessageDecoder, SchemaContext]:
    context = SchemaContext("numbers")
    return MessageDecoder(schema, context), context


def test_a_batch_that_fits_is_one_record_for_each_message() -> None:
    found = decoder(Json())[0].decode([b"1", b'"a"', b"null"], place)
    assert found == ([1, "a", None], None)
    assert found.pick("xyz") == "xyz"
    assert decoder(Json())[0].decode([], place) == ([], None)


def test_bad_messages_are_skipped_counted_and_said(caplog: Any) -> None:
    one, context = decoder(Json(on_error="skip"))
    with caplog.at_level(logging.WARNING, "penstock.connectors"):
        found = one.decode(MESSAGES, place)
        one.end_split("numbers/0")
    assert found == ([1, 2, None, 4], [0, 2, 3, 5])
    assert found.pick("abcdef") == ["a", "c", "d", "f"]
    assert context.metrics.counter(MESSAGES_SKIPPED).count == 2
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("a message is skipped, as later bad messages are: numbers/0@1: ")
    assert first.endswith(r"b'\xff'")
    assert last == "2 bad messages were skipped in numbers/0"
    assert one.take_side_output() == []


def test_bad_messages_go_to_the_side_output_with_bytes_reason_and_place() -> None:
    one, context = decoder(Json(on_error="side_output"))
    assert one.decode(MESSAGES, place).records == [1, 2, None, 4]
    (tag, bad), (_, other) = one.take_side_output()
    assert tag == bad_messages_tag()
    assert isinstance(bad, BadMessage)
    assert (bad.message, bad.place) == (b"\xff", "numbers/0@1")
    assert bad.reason.startswith("a message is not valid Json: ")
    assert other.message == b"[3"
    assert one.take_side_output() == []
    assert context.metrics.counter(MESSAGES_SKIPPED).count == 0


def test_a_bad_message_fails_the_job_with_its_place_and_bytes() -> None:
    with pytest.raises(JobError) as caught:
        decoder(Json())[0].decode([b"1", b"x" * 300], place)
    text = str(caught.value)
    assert text.startswith("numbers/0@1: a message is not valid Json: ")
    assert "Json(on_error='skip') skips and counts such messages" in text
    assert "… (300 bytes)" in text
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_schema_that_refuses_messages_only_together_is_said() -> None:
    class Odd(DeserializationSchema[Any]):
        on_error = "skip"

        def deserialize(self, messages: Any) -> Any:
            if len(messages) > 1:
                raise ValueError("too many")
            return messages

    with pytest.raises(JobError, match=r"Odd\.deserialize refuses these messages together"):
        decoder(Odd())[0].decode([b"1", b"2"], place)


def test_a_schema_that_returns_another_number_of_records_is_said() -> None:
    class Few(DeserializationSchema[Any]):
        def deserialize(self, messages: Any) -> Any:
            return messages[1:]

    with pytest.raises(JobError, match=r"Few.deserialize returned 1 records for 2 messages"):
        decoder(Few())[0].decode([b"1", b"2"], place)


class Words(DeserializationSchema[str]):
    one_to_one = False

    def __init__(self, on_error: str) -> None:
        self.on_error = on_error

    def deserialize(self, messages: Any) -> Any:
        return [() if one is None else one.decode("ascii").split() for one in messages]


def test_a_message_may_have_any_number_of_records() -> None:
    one, _ = decoder(Words("side_output"))
    found = one.decode([b"to be", None, b"", b"\xff", b"or"], place)
    assert found == (["to", "be", "or"], [0, 0, 4])
    assert [bad.place for _, bad in one.take_side_output()] == ["numbers/0@3"]
    with pytest.raises(JobError, match="numbers/0@0: a message is not valid Words"):
        decoder(Words("fail"))[0].decode([b"\xff"], place)


def test_an_error_of_the_code_of_a_schema_is_no_bad_message() -> None:
    class Broken(DeserializationSchema[Any]):
        on_error = "skip"

        def deserialize(self, messages: Any) -> Any:
            raise AttributeError("typo")

    with pytest.raises(AttributeError, match="typo"):
        decoder(Broken())[0].decode([b"1"], place)


def test_each_reader_opens_a_copy_of_the_schema() -> None:
    class Opened(DeserializationSchema[Any]):
        topic = ""

        def open(self, context: SchemaContext) -> None:
            assert not self.topic
            self.topic = context.topic

        def deserialize(self, messages: Any) -> Any:
            return [self.topic] * len(messages)

    schema = Opened()
    for _ in range(2):
        assert decoder(schema)[0].decode([b"1"], place).records == ["numbers"]


def test_an_encoder_shows_the_record_that_cannot_be_encoded() -> None:
    one = MessageEncoder(Json(), SchemaContext())
    assert one.encode([1, "a"]) == [b"1", b'"a"']
    with pytest.raises(JobError, match="Json cannot encode a record: ") as caught:
        one.encode([1, object(), 2])
    assert caught.value.record is not None
    assert caught.value.record.startswith("<object obj")


def test_wrong_schemas_are_refused() -> None:
    with pytest.raises(GraphError, match=r"the class Json: write Json\(...\)"):
        check_deserialization_schema("value_schema of a source", Json)
    with pytest.raises(GraphError, match="is a SerializationSchema such as"):
        check_serialization_schema("value_schema of a sink", "json")
    with pytest.raises(GraphError, match='on_error of Json is "fail", "skip" or "side_output"'):
        Json(on_error="ignore")
    with pytest.raises(GraphError, match="on_error of Words"):
        check_deserialization_schema("it", Words("drop"))
    assert check_serialization_schema("it", schema := Json()) is schema


@pytest.mark.parametrize("schema", [Json(dict[str, int]), SimpleStringSchema("latin-1")])
def test_an_opened_schema_can_be_sent_to_a_worker(schema: Any) -> None:
    schema.open(SchemaContext())
    for module in (pickle, cloudpickle):
        copy = module.loads(module.dumps(schema))
        (message,) = copy.serialize([{"a": 1}])
        assert copy.deserialize([message])


def test_text_has_the_encoding_of_the_schema() -> None:
    schema = SimpleStringSchema("latin-1")
    assert schema.deserialize(schema.serialize(["Bär", 7])) == ["Bär", "7"]
    assert SimpleStringSchema(errors="replace").deserialize([b"\xff"]) == ["\ufffd"]
    with pytest.raises(ValueError, match="utf-8"):
        SimpleStringSchema().deserialize([b"\xff"])
    with pytest.raises(GraphError, match="unknown encoding: klingon"):
        SimpleStringSchema("klingon")


def test_serialization_schemas_need_only_one_method() -> None:
    class Numbers(SerializationSchema[int]):
        def serialize(self, records: Any) -> Any:
            return tuple(b"%d" % number for number in records)

    assert MessageEncoder(Numbers(), SchemaContext()).encode([1, 2]) == [b"1", b"2"]
