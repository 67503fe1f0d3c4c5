"""Describe the answers to queries of state, and read the queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.rest.endpoint import Parameter
from penstock.rest.json_schema import (
    ANYTHING,
    BOOLEAN,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    array,
    described,
    nullable,
    record,
)
from penstock.rest.operations import RefusedRequest
from penstock.saved.state_requests import MAX_ENTRIES, StateRequest

_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES}

#: The parameters of a query.
PARAMETERS = (
    Parameter("key", STRING, 'only the entries of this key, as JSON: `"ada"`, `7` or `["a", 1]`'),
    Parameter("prefix", STRING, "only the entries of keys that begin with this text"),
    Parameter("top", _COUNT, "only this number of entries, those with the largest values"),
    Parameter("by", STRING, "with `top`: the value that is compared, such as `value.amount`"),
    Parameter("limit", _COUNT, "the largest number of entries; 100 if it is not given"),
    Parameter("live", BOOLEAN, "whether the running tasks answer, instead of a snapshot"),
)

_SNAPSHOT = {
    "snapshot": described(nullable(INTEGER), "the number of the snapshot; null for a live answer"),
    "age_seconds": described(nullable(NUMBER), "the time since the snapshot was taken"),
}

SCHEMAS: dict[str, Schema] = {
    "StateEntries": record(
        {
            **_SNAPSHOT,
            "live": described(BOOLEAN, "whether running tasks answered, each at another time"),
            "more": described(BOOLEAN, "whether there are more entries than the limit"),
            "entries": array(
                record(
                    {
                        "key": ANYTHING,
                        "part": described(
                            ANYTHING, "what identifies the entry among those of the key"
                        ),
                        "value": ANYTHING,
                        "last_used_ms": nullable(INTEGER),
                        "key_group": nullable(INTEGER),
                        "subtask": INTEGER,
                    }
                )
            ),
        }
    ),
    "StateNames": record(
        {
            **_SNAPSHOT,
            "states": array(
                record({"operator": STRING, "name": STRING, "kind": STRING, "expires": BOOLEAN})
            ),
        }
    ),
}


def state_request(path: Mapping[str, str], query: Mapping[str, Any]) -> StateRequest:
    """Return the request for entries that a call describes.

    Raises:
        RefusedRequest: if it is malformed.
    """
    given = {name: value for name, value in query.items() if name != "live"}
    try:
        return StateRequest(path["operator"], path["state"], **given)
    except GraphError as error:
        raise RefusedRequest(400, str(error)) from error
