"""The log of a job is read from its beginning or its end, also while it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.runtime.dispatcher.job_details import read_part, span_of


@pytest.mark.parametrize(
    ("offset", "read"),
    [(0, b"a\nbb\nccc"), (2, b"bb\nccc"), (100, b""), (-1, b"ccc"), (-2, b"bb\nccc"), (-9, None)],
)
def test_a_log_is_read_up_to_where_it_ended(tmp_path: Path, offset: int, read: bytes | None):
    log = tmp_path / "1.log"
    log.write_bytes(b"a\nbb\nccc")
    begin, end = span_of(log, offset)
    with log.open("ab") as file:
        file.write(b"later")
    found = read_part(log, begin, max(begin, end))
    assert found == (b"a\nbb\nccc" if read is None else read)
    assert read_part(log, begin + len(found), None) == (b"" if offset == 100 else b"later")


def test_a_log_that_does_not_exist_is_empty(tmp_path: Path):
    assert span_of(tmp_path / "1.log", -5) == (0, 0)
    assert read_part(tmp_path / "1.log", 0, None) == b""
