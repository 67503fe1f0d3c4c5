"""The maps in which the events of a job are sent; clients, reports and logs read them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dataflow.errors import JobError
from penstock.runtime.jobmanager.job_settings import JobOutcome
from penstock.runtime.jobmanager.reporting.job_events import (
    AttemptRunning,
    Committed,
    GivingUp,
    JobEvent,
    JobFailed,
    JobFigures,
    JobFinished,
    JobSnapshotAborted,
    JobSnapshotBegan,
    JobSnapshotCompleted,
    JobSnapshotDelayed,
    JobStarted,
    JobWarning,
    Note,
    RecordClassesKnown,
    Restarted,
    Restarting,
    Resumed,
    WorkersStarted,
)

ERROR = {"family": "JobError", "message": "it broke"}
NOT_GIVEN = {"operator": None, "record": None, "user_traceback": None}
OUTCOME = JobOutcome(True, [], [], [], "4711", [5], [], {})


@pytest.mark.parametrize(
    ("event", "wire"),
    [
        (
            JobStarted(7, [["u", "n"]], {"edges": []}, {"name": "counts"}),
            {
                "event": "started",
                "pid": 7,
                "operators": [["u", "n"]],
                "graph": {"edges": []},
                "config": {"name": "counts"},
            },
        ),
        (Note("text"), {"event": "note", "text": "text"}),
        (JobWarning("text"), {"event": "warning", "text": "text"}),
        (RecordClassesKnown([1]), {"event": "types", "types": [1]}),
        (
            Resumed(4, "4711", 9, "815"),
            {
                "event": "resumed",
                "number": 4,
                "lineage": "4711",
                "log_records": 9,
                "continues": "815",
            },
        ),
        (WorkersStarted([8]), {"event": "workers", "pids": [8]}),
        (AttemptRunning(2), {"event": "running", "attempt": 2}),
        (
            JobSnapshotBegan(5, "checkpoint", 1_000),
            {"event": "began", "number": 5, "kind": "checkpoint", "created_ms": 1_000},
        ),
        (
            JobSnapshotCompleted({"number": 5}, [[0, 1]]),
            {"event": "snapshot", "number": 5, "tasks": [[0, 1]]},
        ),
        (Committed(), {"event": "committed"}),
        (JobSnapshotAborted(6, "why"), {"event": "aborted", "number": 6, "reason": "why"}),
        (
            JobSnapshotDelayed(6, 10.0, "what"),
            {"event": "delayed", "number": 6, "seconds": 10.0, "waiting": "what"},
        ),
        (
            Restarting(JobError("it broke"), 0.5),
            {
                "event": "restarting",
                "cause": "it broke",
                "delay_seconds": 0.5,
                **ERROR,
                **NOT_GIVEN,
            },
        ),
        (Restarted({"seconds": 0.7}), {"event": "restarted", "seconds": 0.7}),
        (GivingUp("why"), {"event": "giving_up", "reason": "why"}),
        (
            JobFigures([], [], [], [1]),
            {
                "event": "status",
                "operators": [],
                "loops": [],
                "metrics": [],
                "busy_workers": [1],
                "tasks": [],
                "subtasks": {},
            },
        ),
        (JobFinished(OUTCOME), {"event": "finished", "signal": None, **vars(OUTCOME)}),
        (JobFinished(OUTCOME, 15), {"event": "finished", "signal": 15, **vars(OUTCOME)}),
        (JobFailed(ERROR), {"event": "failed", **ERROR}),
        (
            JobFailed(ERROR, {"lineage": ""}),
            {"event": "failed", **ERROR, "report": {"lineage": ""}},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, JobEvent) else "",
)
def test_an_event_is_sent_as_a_map(event: JobEvent, wire: dict[str, Any]):
    assert event.to_wire() == wire
