"""Write rows in the text format of COPY.

Workers write the text, so the JobManager only passes it on to the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from penstock.dataflow.errors import JobError, Recoverability

_NULL = rb"\N"
_SPECIAL = re.compile(r"[\\\n\r\t\0]")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})

Text = Callable[[Any], bytes]


class CopyText:
    """Converts values to the text of COPY.

    Arguments:
        json_columns: for each column, whether lists become JSON, and not arrays. Dicts always do.
    """

    def __init__(self, json_columns: Sequence[bool]) -> None:
        from psycopg.adapt import PyFormat, Transformer

        self._as_json = [place for place, is_json in enumerate(json_columns) if is_json]
        transformer = Transformer()

        def any_text(value: Any) -> bytes:
            dumped = transformer.get_dumper(value, PyFormat.TEXT).dump(value)
            return _NULL if dumped is None else _text(bytes(dumped).decode())

        self._any_text = any_text
        self._texts: dict[type, Text] = dict(_TEXTS)

    def line(self, values: Sequence[Any]) -> bytes:
        """Return the line of a row.

        Raises:
            JobError: if a value has no form in PostgreSQL.
        """
        texts = self._texts
        if self._as_json:
            values = list(values)
            for place in self._as_json:
                if values[place] is not None:
                    values[place] = _Json(values[place])
        try:
            return b"\t".join([texts[value.__class__](value) for value in values])
        except KeyError:
            pass
        except ValueError as error:
            raise _refused(values, error) from error
        import psycopg

        try:
            # The first value of another type.
            for value in values:
                texts.setdefault(value.__class__, self._any_text)
            return b"\t".join([texts[value.__class__](value) for value in values])
        except (psycopg.Error, ValueError, TypeError) as error:
            raise _refused(values, error) from error


class _Json:
    """A value that becomes JSON."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _text(value: str) -> bytes:
    if _SPECIAL.search(value) is None:
        return value.encode()
    if "\0" in value:
        raise ValueError("a text of PostgreSQL cannot have the character NUL")
    return value.translate(_ESCAPES).encode()


def _json_text(value: Any) -> bytes:
    return _text(json.dumps(value, ensure_ascii=False))


_TEXTS: dict[type, Text] = {
    type(None): lambda _value: _NULL,
    bool: lambda value: b"t" if value else b"f",
    int: lambda value: b"%d" % value,
    float: lambda value: repr(value).encode(),
    str: _text,
    Decimal: lambda value: str(value).encode(),
    bytes: lambda value: rb"\\x" + value.hex().encode(),
    dict: _json_text,
    _Json: lambda value: _json_text(value.value),
}


def _refused(values: Sequence[Any], error: Exception) -> JobError:
    shown = ", ".join(repr(value)[:60] for value in values)
    return JobError(
        f"a row cannot be written to PostgreSQL: {error}; its values are {shown}",
        recoverability=Recoverability.NON_RECOVERABLE,
    )
