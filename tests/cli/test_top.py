"""What `penstock top` shows of jobs, and the command against a real service."""

import json

import pytest
from rich.console import Console

from penstock.cli.top import job_row, top_table
from penstock.dataflow.time.watermark import MAX_WATERMARK
from tests.processes.harness import wait_until
from tests.runtime.dispatcher.service import Service


def operator(uid, received, emitted, busy=0.0, blocked=0.0, watermark=None, parallelism=1):
    return {
        "uid": uid,
        "name": uid.title(),
        "source": received == 0,
        "parallelism": parallelism,
        "records_in": received,
        "records_out": emitted,
        "busy_seconds": busy,
        "blocked_seconds": blocked,
        "watermark": watermark,
    }


def entry(time=0.0, operators=(), snapshot=None, **more):
    activity = {"time": time, "operators": list(operators), "snapshot": snapshot}
    return {
        "id": "1",
        "name": "clicks",
        "state": "running",
        "parallelism": 2,
        "restarts": 0,
        "waiting": "",
        "error": None,
        "last_snapshot": None,
        "activity": activity,
        **more,
    }


def drawn(*rows, note=""):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(top_table(list(rows), note))
    return console.export_text()


def test_rates_and_shares_are_those_between_two_looks():
    before = entry(100.0, [operator("read", 0, 1_000), operator("count", 900, 0, 10.0, 0.0)])
    now = entry(
        102.0,
        [operator("read", 0, 3_000, 0.2, 1.0), operator("count", 2_000, 0, 13.0, parallelism=2)],
    )
    row = job_row(before, now, 0.0)
    assert (row.records_per_second, row.busiest, row.busy, row.blocked) == (
        1000,
        "Count",
        0.75,
        0.5,
    )


def test_after_a_restart_counters_begin_again_and_no_rate_is_negative():
    before = entry(100.0, [operator("read", 0, 1_000, 50.0, 9.0)])
    row = job_row(before, entry(102.0, [operator("read", 0, 100, 1.0, 0.5)]), 0.0)
    assert (row.records_per_second, row.busy, row.blocked) == (50, 0.5, 0.25)


@pytest.mark.parametrize("before", [None, entry(102.0, [operator("read", 0, 1)])])
def test_without_two_figures_there_is_no_rate(before):
    row = job_row(before, entry(102.0, [operator("read", 0, 100)]), 0.0)
    assert (row.records_per_second, row.busy, row.busiest, row.blocked) == (None,) * 4
    queued = job_row(None, entry(state="queued", waiting="2 slots are missing"), 0.0)
    assert "2 slots are missing" in drawn(queued)
    ended = job_row(None, entry(state="failed", error="a\nKeyError: 1", activity=None), 0.0)
    assert (ended.note, ended.snapshot) == ("KeyError: 1", None)


def test_the_lag_is_that_of_the_lowest_watermark_which_has_not_ended():
    operators = [
        operator("a", 0, 1, watermark=50_000),
        operator("b", 1, 1, watermark=40_000),
        operator("c", 1, 1, watermark=MAX_WATERMARK),
    ]
    assert job_row(None, entry(1.0, operators), 100.0).watermark_lag == 60
    assert job_row(None, entry(1.0, operators[2:]), 100.0).watermark_lag is None


def test_the_newest_snapshot_is_shown_with_its_age_and_its_number_if_nothing_else_is_known():
    snapshot = {
        "number": 7,
        "kind": "checkpoint",
        "duration_ms": 12.3,
        "bytes_total": 2_000,
        "time": 90.0,
    }
    assert "7: 10 s ago, 12 ms, 2.0 KB" in drawn(job_row(None, entry(1.0, [], snapshot), 100.0))
    assert job_row(None, entry(last_snapshot=5), 0.0).snapshot == {"number": 5}


def test_texts_are_no_markup_and_an_empty_list_says_so():
    assert "[red]x" in drawn(job_row(None, entry(name="[red]x"), 0.0))
    assert "no jobs run" in drawn()
    assert drawn(note="the job manager is gone").strip() == "the job manager is gone"


def test_the_command_shows_running_jobs_once_and_as_json(tmp_path):
    service = Service(tmp_path)
    try:
        service.start()
        assert "no jobs run" in service.here("top", "--once", "--interval", "1ms")
        id = service.submit()

        def row():
            out = service.here("top", "--once", "--interval", "600ms", "--json")
            (found,) = json.loads(out)
            return found if found["records_per_second"] and found["snapshot"] else None

        found = wait_until(row, "figures of two looks")
        assert (found["id"], found["name"], found["state"]) == (id, "numbers", "running")
        assert 0 <= found["busy"] <= 1 and "age_seconds" in found["snapshot"]
        service.here("cancel", id)
        assert json.loads(service.here("top", "--once", "--interval", "1ms", "--json")) == []
        assert "stopped" in service.here("top", "--once", "--all", "--interval", "1ms")
    finally:
        service.end()
    assert "no job manager runs" in service.here("top", code=1)
