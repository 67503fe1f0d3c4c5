"""The log of a `WebhookSource`: what is confirmed is there, whatever breaks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.connectors.http.webhook_log import (
    LogClosedError,
    LogFullError,
    LogInUseError,
    WebhookLog,
)
from penstock.dataflow.errors import JobError

MANY = 1 << 30


def test_records_are_read_from_each_place(tmp_path):
    log = WebhookLog(tmp_path, segment_bytes=100, max_bytes=MANY)
    records = [b"%d" % number * (number % 7) for number in range(100)]
    for record in records:
        log.append(record)
    assert len(list(tmp_path.glob("*.log"))) > 5
    for size in (1, 3, 1000):
        place, found = log.start, []
        while True:
            some, place = log.read(place, size)
            if not some:
                break
            found += some
            assert log.read(place, MANY)[0] == records[len(found) :]
        assert found == records and place == log.end
    log.close()
    with_more = WebhookLog(tmp_path, segment_bytes=100, max_bytes=MANY)
    with_more.append(b"more")
    assert list(with_more.read_all()) == [*records, b"more"]
    with_more.close()


def test_records_of_many_threads_share_syncs(tmp_path, monkeypatch):
    syncs, sync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (syncs.append(1), threading.Event().wait(0.01), sync(number))
    )
    log = WebhookLog(tmp_path, MANY, MANY)
    threads = [
        threading.Thread(target=lambda n=number: [log.append(b"%d/%d" % (n, i)) for i in range(10)])
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = list(log.read_all())
    assert len(found) == len(set(found)) == 200
    for number in range(20):
        own = [record for record in found if record.startswith(b"%d/" % number)]
        assert own == [b"%d/%d" % (number, i) for i in range(10)]
    assert len(syncs) < 150
    log.close()


@pytest.mark.parametrize("seed", range(30))
def test_an_incomplete_end_is_cut_off_and_kept(tmp_path, seed):
    rng = random.Random(seed)
    log = WebhookLog(tmp_path, 200, MANY)
    records = [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 40))]
    for record in records:
        log.append(record)
    log.close()
    last = sorted(tmp_path.glob("*.log"))[-1]
    whole = last.read_bytes()
    cut = rng.randrange(1, len(whole)) if rng.random() < 0.5 else None
    torn = whole[:cut] if cut is not None else whole + rng.randbytes(rng.randrange(1, 30))
    last.write_bytes(torn)
    again = WebhookLog(tmp_path, 200, MANY)
    again.append(b"after")
    found = list(again.read_all())
    assert found[-1] == b"after"
    assert found[:-1] == records[: len(found) - 1]
    if cut is None:
        assert found[:-1] == records
        assert [path.read_bytes() for path in tmp_path.glob("*.cut")] == [torn[len(whole) :]]
    again.close()


def test_a_process_that_is_killed_leaves_what_it_has_confirmed(tmp_path):
    code = """
import sys
from pathlib import Path
from penstock.connectors.http.webhook_log import WebhookLog
log = WebhookLog(Path(sys.argv[1]), 1000, 1 << 30)
number = len(list(log.read_all()))
while True:
    log.append(b"%d" % number)
    print(number, flush=True)
    number += 1
"""
    confirmed = -1
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                confirmed = int(line)
                if confirmed % 50 == 49:
                    process.kill()
    log = WebhookLog(tmp_path, 1000, MANY)
    found = list(log.read_all())
    assert found == [b"%d" % number for number in range(len(found))]
    assert len(found) > confirmed >= 249
    log.close()


def test_a_full_log_refuses_and_room_is_made_by_snapshots(tmp_path):
    log = WebhookLog(tmp_path, segment_bytes=100, max_bytes=500)
    with pytest.raises(LogFullError):
        while True:
            log.append(b"x" * 50)
    assert 400 < log.size <= 500 + 60
    place = log.end
    assert log.remove_before(place, older_than=0) == 0, "the records are too young"
    assert log.remove_before(place, older_than=time.time() + 1) == 3
    log.append(b"fits")
    assert log.read(place, 10)[0] == [b"fits"]
    with pytest.raises(JobError, match="does not have the place 0/0"):
        log.read((0, 0), 1)
    log.close()


def test_only_one_process_has_the_log_open(tmp_path):
    log = WebhookLog(tmp_path, MANY, MANY)
    with pytest.raises(LogInUseError):
        WebhookLog(tmp_path, MANY, MANY)
    log.close()
    WebhookLog(tmp_path, MANY, MANY).close()


def test_a_damaged_record_is_an_error_with_its_place(tmp_path):
    log = WebhookLog(tmp_path, 20, MANY)
    for record in (b"one" * 10, b"two" * 10, b"three" * 10):
        log.append(record)
    log.close()
    first = sorted(tmp_path.glob("*.log"))[0]
    first.write_bytes(first.read_bytes().replace(b"one", b"0ne", 1))
    again = WebhookLog(tmp_path, 20, MANY)
    with pytest.raises(JobError, match=f"{first.name} is damaged at byte 0"):
        list(again.read_all())
    again.close()


def test_a_log_that_cannot_be_written_is_closed(tmp_path, monkeypatch):
    log = WebhookLog(tmp_path, MANY, MANY)
    log.append(b"one")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        log.append(b"two")
    monkeypatch.undo()
    with pytest.raises(LogClosedError):
        log.append(b"three")
    log.close()
    again = WebhookLog(Path(tmp_path), MANY, MANY)
    assert next(again.read_all()) == b"one"
    again.close()
