"""The state of a job, as its events tell it."""

from __future__ import annotations

from typing import Any

from penstock.runtime.control.job_state import JobState


def _graph(parallelism: int) -> dict[str, Any]:
    return {"max_parallelism": 8, "vertices": [{"parallelism": parallelism}], "edges": []}


def test_the_graph_is_that_of_the_slots_that_are_left():
    state = JobState("id", "job")
    state.handle({"event": "started", "pid": 1, "graph": _graph(3), "config": {}})
    change = {"event": "slots", "slots": 1, "wanted": 3, "reason": "worker 2 exited"}
    state.handle({**change, "graph": _graph(1)})
    assert state.graph == _graph(1)
