"""What follows the death of a JobManager: facts in, decision out."""

from __future__ import annotations

import pytest

from penstock.runtime.control.requests import JobRequest, Order, decode_job, encode_job
from penstock.runtime.control.supervision import (
    HEALTHY_SECONDS,
    MAX_DEATHS,
    LastJobManager,
    NextJobManager,
    Supervision,
)

KILLED = "(pid 7) was killed by signal 9"
CHECKPOINT = {"event": "snapshot", "kind": "checkpoint"}


def supervision() -> Supervision:
    options = {"resume": 5, "lineage": "begun"}
    request = encode_job(JobRequest(b"code", ["/path"], None, options))
    return Supervision(request, 0.0, "unix:/here", b"secret")


def delays(supervised: Supervision, times: list[float]) -> list[float | None]:
    """The delays after deaths at these times; None for the end."""
    decisions = []
    for now in times:
        decision = supervised.died(KILLED, now)
        decisions.append(decision.delay_seconds if isinstance(decision, NextJobManager) else None)
        supervised.started(now)
    return decisions


def test_a_jobmanager_that_dies_is_replaced_at_once_and_the_note_says_why() -> None:
    supervised = supervision()
    assert not decode_job(supervised.request).options.get("successor")
    decision = supervised.died(KILLED, 1.0)
    assert isinstance(decision, NextJobManager)
    assert decision.delay_seconds == 0
    assert decision.note == f"the JobManager {KILLED}: another one goes on with the job"
    job = decode_job(decision.request)
    assert job.code == b"code"
    options = {"rejoin_address": "unix:/here", "rejoin_token": b"secret", "successor": True}
    assert job.options == {"resume": 5, "lineage": "begun", **options}


def test_deaths_without_a_snapshot_between_them_are_followed_later_and_later() -> None:
    times = [float(now) for now in range(MAX_DEATHS)]
    assert delays(supervision(), times) == [0, 0.5, 1, 2, 4, None]


def test_a_snapshot_or_a_long_life_makes_the_next_start_come_at_once() -> None:
    supervised = supervision()
    assert delays(supervised, [0, 1]) == [0, 0.5]
    supervised.handle(CHECKPOINT)
    assert delays(supervised, [2, 3]) == [0, 0.5]
    assert delays(supervised, [3 + HEALTHY_SECONDS]) == [0]


def test_a_job_that_has_ended_or_was_killed_is_not_started_again() -> None:
    for event in ("finished", "failed"):
        supervised = supervision()
        supervised.handle({"event": event})
        assert supervised.died("exited with code 1", 1.0) == LastJobManager()
    supervised = supervision()
    supervised.kill()
    assert supervised.over
    assert supervised.died(KILLED, 1.0) == LastJobManager()


def test_a_job_that_is_stopped_is_started_once_for_its_last_snapshot() -> None:
    supervised = supervision()
    assert delays(supervised, [0]) == [0]
    supervised.ordered(Order.STOP)
    assert delays(supervised, [1]) == [0]
    assert supervised.started(1.0) == [Order.STOP]
    decision = supervised.died(KILLED, 2.0)
    assert isinstance(decision, LastJobManager)
    assert decision.note == f"the JobManager {KILLED} again while the job was stopped"


def test_a_savepoint_that_was_not_taken_is_requested_again() -> None:
    supervised = supervision()
    supervised.ordered(Order.SAVEPOINT)
    supervised.handle(CHECKPOINT)
    assert supervised.started(1.0) == [Order.SAVEPOINT]
    supervised.handle({"event": "snapshot", "kind": "savepoint"})
    assert supervised.started(2.0) == []


def test_the_next_jobmanager_knows_the_lineage_that_the_first_one_has_continued() -> None:
    supervised = supervision()
    supervised.handle({"event": "resumed", "number": 5, "continues": "old"})
    decision = supervised.died(KILLED, 1.0)
    assert isinstance(decision, NextJobManager)
    options = decode_job(decision.request).options
    assert (options["resume"], options["lineage"]) == (5, "old")


@pytest.mark.parametrize("orphans", [False, True])
def test_a_job_goes_on_from_a_lineage_that_an_earlier_service_knew(orphans: bool) -> None:
    supervised = supervision()
    supervised.handle({"event": "finished"})
    supervised.continue_from("ada", 4, orphans)
    options = decode_job(supervised.request).options
    assert (options["lineage"], options["parallelism"]) == ("ada", 4)
    assert options["successor"] is orphans
    supervised.continue_from("", 2, orphans)
    options = decode_job(supervised.request).options
    assert (options["lineage"], options["parallelism"]) == ("ada", 2)
    assert isinstance(supervised.died("ended", 1.0), NextJobManager)
