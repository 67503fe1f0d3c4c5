"""The questions that the tasks of a running job answer, and their answers.

They are for entries of keyed state, and for records on an edge.

A client sends a `StateQuery` to the JobManager, which asks the workers that own the keys. The
answer is an event, which only those clients look at that have asked:

    {"event": "state", "id": ..., "problem": "", "reason": "", "kind": ..., "expires": ...,
     "entries": [[subtask, key, value], ...], "sample": key, "types": [...], "more": ...}

Keys and values are encoded as in a snapshot, and `types` are the schemas of the record classes that
they refer to. `problem` is one of `PROBLEMS` if there is no answer.

The answer to a `RecordQuery` has other fields instead of `kind` and so on:

    {..., "edge": number, "producer": ..., "consumer": ..., "seconds": ..., "seen": ...,
     "records": [[subtask, time_ms, text], ...]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The name of the event with an answer.
ANSWER = "state"
#: Why there is no answer: nothing has this name; the question cannot be answered; or the job is in
#: a state in which it answers no questions.
UNKNOWN, REFUSED, CONFLICT = "unknown", "refused", "conflict"
PROBLEMS = (UNKNOWN, REFUSED, CONFLICT)
#: The time within which workers answer, in seconds.
ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class StateQuery:
    """Requests entries of a keyed state of a running job.

    Arguments:
        id: the id of the query, which the answer repeats.
        operator: the uid of the operator.
        state: the name of the state.
        keys: the keys whose entries are wanted, encoded; empty for the entries of all keys.
        prefix: the beginning of the keys, which are texts; None for all keys.
        top: the number of largest entries; 0 for any entries.
        by: with `top`, the path of the value that is compared, such as "value.amount".
        limit: the largest number of entries.
    """

    id: str
    operator: str
    state: str
    keys: list[bytes]
    prefix: str | None = None
    top: int = 0
    by: str = "value"
    limit: int = 100


@dataclass(frozen=True)
class RecordQuery:
    """Requests records that travel on an edge of a running job from now on.

    Arguments:
        id: the id of the query, which the answer repeats.
        edge: the number of the edge among those of the graph, or "PRODUCER->CONSUMER" with the uids
            or the names of its operators. Empty if the job has only one.
        limit: the largest number of records of each subtask.
        seconds: how long the tasks look, at most `MAX_LOOK_SECONDS`.
    """

    id: str
    edge: str = ""
    limit: int = 20
    seconds: float = 1.0


#: The longest time for which tasks look at an edge, in seconds, and the most records of a subtask.
MAX_LOOK_SECONDS, MAX_RECORDS = 5.0, 1_000
#: A question that running tasks answer.
LiveQuery = StateQuery | RecordQuery


def refusal(id: str, problem: str, reason: str) -> dict[str, Any]:
    """Return the answer to a query that is not answered.

    Arguments:
        id: the id of the query.
        problem: one of `PROBLEMS`.
        reason: a sentence for the user.
    """
    return {"event": ANSWER, "id": id, "problem": problem, "reason": reason}
