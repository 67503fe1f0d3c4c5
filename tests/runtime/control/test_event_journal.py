"""Events of a job are kept with numbers, across writers and damaged files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.runtime.control.event_journal import EventJournal, is_kept


def note(text: str) -> dict[str, str]:
    return {"event": "note", "text": text}


def test_events_have_numbers_that_go_on_with_another_writer(tmp_path: Path):
    path = tmp_path / "1.events"
    first = EventJournal(path, lambda: 12.3456)
    assert first.append(note("a")) == {"event": "note", "text": "a", "seq": 1, "time": 12.346}
    first.append(note("b"))
    second = EventJournal(path)
    assert second.append(note("c"))["seq"] == 3
    assert [event["text"] for event in first.read(after=1)] == ["b", "c"]
    assert second.last() == 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_part_of_a_line_and_other_damage_are_skipped(tmp_path: Path):
    path = tmp_path / "1.events"
    EventJournal(path).append(note("a"))
    with path.open("ab") as file:
        file.write(b'\xff\n[1]\n{"seq": "x"}\n{"event": "no')
    journal = EventJournal(path)
    journal.append(note("b"))
    assert [event["text"] for event in journal.read()] == ["a", "b"]


def test_a_long_journal_keeps_its_newer_part(tmp_path: Path):
    journal = EventJournal(tmp_path / "1.events", lambda: 12.3456, max_bytes=200)
    for number in range(50):
        journal.append(note(str(number)))
    numbers = [event["seq"] for event in journal.read()]
    assert numbers == list(range(numbers[0], 51))
    assert 4 < len(numbers) < 12
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1000
    journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_events_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    journal = EventJournal(tmp_path / "1.events")
    journal.append(note("a"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        journal.append(note("b"))
        journal.append(note("c"))
    assert caplog.text.count("No space left") == 1
    journal.append(note("d"))
    assert [event["seq"] for event in journal.read()] == [1, 4]


def test_figures_are_not_kept():
    assert [is_kept({"event": kind}) for kind in ("status", "snapshot", "failed")] == [
        False,
        True,
        True,
    ]
