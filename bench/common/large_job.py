"""The events of a made-up job that is as large as the page must bear: 200 vertices, 32 subtasks."""

from __future__ import annotations

from typing import Any

__all__ = ["SUBTASKS", "VERTICES", "large_figures", "large_graph"]

VERTICES, SUBTASKS = 200, 32


def large_graph(count: int = VERTICES, subtasks: int = SUBTASKS) -> dict[str, Any]:
    """Return a graph with one back-edge.

    Arguments:
        count: the number of vertices.
        subtasks: the number of subtasks of each vertex.
    """
    vertices = [
        {
            "id": number,
            "name": f"Operator {number}",
            "parallelism": subtasks,
            "source": number == 0,
            "sink": number == count - 1,
            "loop": None,
            "operators": [{"uid": f"u{number}", "name": f"Operator {number}", "stateful": True}],
        }
        for number in range(count)
    ]
    ends = {"partitioning": "hash", "producer": "a", "consumer": "b"}
    edges = [
        {"source": max(0, number - 1 - number % 3), "target": number, "back_edge": False, **ends}
        for number in range(1, count)
    ]
    edges.append({"source": count * 3 // 4, "target": count // 2, "back_edge": True, **ends})
    return {"max_parallelism": 128, "vertices": vertices, "edges": edges}


def large_figures(
    records: int, seconds: float, count: int = VERTICES, subtasks: int = SUBTASKS
) -> dict[str, Any]:
    """Return the event `status` of such a job.

    Arguments:
        records: the records that the first subtask of each vertex has processed.
        seconds: the time that the busiest tasks were busy.
        count: the number of vertices.
        subtasks: the number of subtasks of each vertex.
    """
    return {
        "event": "status",
        "operators": [],
        "loops": [],
        "metrics": [],
        "busy_workers": [],
        "tasks": [
            [vertex, subtask, seconds * ((vertex + subtask) % 7) / 7, seconds / 10, 3]
            for vertex in range(count)
            for subtask in range(subtasks)
        ],
        "subtasks": {
            f"u{vertex}": [
                [subtask, records + subtask, records, 1_700_000_000_000 + records]
                for subtask in range(subtasks)
            ]
            for vertex in range(count)
        },
    }
