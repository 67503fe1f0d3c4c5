"""Remove secrets from texts and settings that are shown to others."""

from __future__ import annotations

import re
from typing import Any

#: What stands in the place of a secret.
REMOVED = "***"
#: Words in the name of a setting whose value is a secret.
_NAMES = (
    "passw(?:or)?d|passphrase|secret|token|credential|api[-_]?key|access[-_]?key|private[-_]?key"
)
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
#: The password of an address such as `postgresql://user:password@host`.
_IN_ADDRESS = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+(?=@)")
#: A name and its value: `password=...`, `"secret_key": "..."`, `--token ...`.
_NAMED = re.compile(
    rf"""([\w.-]*(?:{_NAMES})[\w.-]*["']?\s*[=:]\s*|--[\w-]*(?:{_NAMES})[\w-]*\s+)"""
    r"""("[^"\n]*"|'[^'\n]*'|[^\s,;&)}\]"']+)""",
    re.IGNORECASE,
)
#: The header of a request: `Authorization: Bearer ...`.
_HEADER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return a text without what looks like a secret.

    Passwords in addresses, values of names such as `password` and `api_key`, and tokens of
    requests are replaced. A secret that nothing marks as one stays in the text.

    Examples:
        >>> redacted("postgresql://ada:s3cret@db/jobs failed")
        'postgresql://ada:***@db/jobs failed'
        >>> redacted("connect(host='db', password='s3cret')")
        "connect(host='db', password=***)"
    """
    text = _IN_ADDRESS.sub(rf"\1:{REMOVED}", text)
    text = _HEADER.sub(rf"\1 {REMOVED}", text)
    return _NAMED.sub(rf"\1{REMOVED}", text)


def redacted_value(value: Any) -> Any:
    """Return a value of maps, lists and texts without what looks like a secret.

    Examples:
        >>> redacted_value({"api_token": "x", "hosts": ["http://a:b@c"]})
        {'api_token': '***', 'hosts': ['http://a:***@c']}
    """
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {
            key: REMOVED
            if value[key] not in (None, "") and _SECRET_NAME.search(str(key))
            else redacted_value(value[key])
            for key in value
        }
    if isinstance(value, list | tuple):
        return [redacted_value(item) for item in value]
    return value
