"""Describe the records that were sampled on an edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.rest.json_schema import INTEGER, NUMBER, STRING, Schema, array, described, record
from penstock.runtime.control.state_queries import MAX_LOOK_SECONDS, MAX_RECORDS

#: The body of a request.
BODY = record(
    {},
    {
        "limit": described(
            {"type": "integer", "minimum": 1, "maximum": MAX_RECORDS},
            "the largest number of records of each task; 20 if it is not given",
        ),
        "seconds": described(
            {"type": "number", "minimum": 0.01, "maximum": MAX_LOOK_SECONDS},
            "how long the tasks look, at most 5; 1 if it is not given",
        ),
    },
)

SCHEMAS: dict[str, Schema] = {
    "EdgeRecords": record(
        {
            "edge": described(INTEGER, "the number of the edge in the plan of the job"),
            "producer": described(STRING, "the uid of the operator that sends the records"),
            "consumer": described(STRING, "the uid of the operator that receives them"),
            "seconds": described(NUMBER, "how long the tasks have looked"),
            "seen": described(INTEGER, "how many records they have sent meanwhile"),
            "records": array(
                record(
                    {
                        "subtask": described(INTEGER, "the task that has sent the record"),
                        "time": described(INTEGER, "when, in milliseconds since the epoch"),
                        "record": described(STRING, "its `repr`, at most 1,000 characters"),
                    }
                )
            ),
        }
    ),
}


def edge_records(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a `RecordQuery` as JSON."""
    rows = [
        {"subtask": subtask, "time": time, "record": text}
        for subtask, time, text in answer["records"]
    ]
    names = ("edge", "producer", "consumer", "seconds", "seen")
    return {**{name: answer[name] for name in names}, "records": rows}
