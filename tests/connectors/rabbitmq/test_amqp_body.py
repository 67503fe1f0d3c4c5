"""Bodies are encoded as AMQP 1.0, and others are read as they are."""

import pytest
from rstream import AMQPMessage, Properties, amqp_decoder

from penstock.connectors.rabbitmq.amqp_body import decode_message, encode_body


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_bodies_go_there_and_back_and_the_client_of_rabbitmq_reads_them(size: int):
    body = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    encoded = encode_body(body)
    assert decode_message(encoded) == (body, {})
    found = amqp_decoder(encoded).body
    assert (found if isinstance(found, bytes) else b"".join(found)) == body


def test_messages_of_other_clients_have_properties():
    message = AMQPMessage(
        body=b"hello", application_properties={"kind": "greeting"}, properties=Properties()
    )
    body, properties = decode_message(bytes(message))
    assert body == b"hello" and properties == {"kind": "greeting"}


@pytest.mark.parametrize("data", [b"", b"plain", b"\x00", b"\x00Su", b"{}"])
def test_what_is_no_amqp_is_a_body(data: bytes):
    assert decode_message(data) == (data, {})
