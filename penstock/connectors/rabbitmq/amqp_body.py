"""Encode and decode the bodies of messages as AMQP 1.0 does, which clients of streams expect.

Almost all messages have one section with the body, which is copied. Others are decoded by rstream.
"""

from __future__ import annotations

from typing import Any

_DATA = b"\x00\x53\x75"
_SHORT, _LONG = 0xA0, 0xB0


def encode_body(body: bytes) -> bytes:
    """Return a message that has this body, and nothing else."""
    if len(body) < 256:
        return _DATA + bytes((_SHORT, len(body))) + body
    return _DATA + bytes((_LONG,)) + len(body).to_bytes(4, "big") + body


def decode_message(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the body and the application properties of a message.

    A message that is not encoded as AMQP 1.0 is a body.
    """
    if data.startswith(_DATA) and len(data) > 4:
        kind, begin = data[3], 5 if data[3] == _SHORT else 8
        length = data[4] if kind == _SHORT else int.from_bytes(data[4:8], "big")
        if kind in (_SHORT, _LONG) and begin + length == len(data):
            return bytes(data[begin:]), {}
    if not data.startswith(b"\x00"):
        return bytes(data), {}
    return _decode_sections(bytes(data))


def _decode_sections(data: bytes) -> tuple[bytes, dict[str, Any]]:
    from rstream import amqp_decoder

    try:
        message: Any = amqp_decoder(data)
        body = message.body
        parts = [body] if isinstance(body, bytes | str) else list(body or ())
        content = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
        found = message.application_properties or {}
    except Exception:  # it only begins like AMQP
        return data, {}
    return content, {_text(name): _text(value) for name, value in found.items()}


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
