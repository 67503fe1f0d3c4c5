"""Declare an endpoint of the HTTP API once: for its route, its checks and its description."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.rest.json_schema import Schema, fault
from penstock.rest.operations import JobOperations, RefusedRequest, find_job
from penstock.runtime.control.job_state import JobState

Method = Literal["GET", "POST", "PATCH", "PUT", "DELETE"]


@dataclass(frozen=True)
class Parameter:
    """A parameter in the query of a request.

    Arguments:
        name: the name.
        schema: its schema: a string, an integer, or a boolean.
        description: what it does.
        required: whether requests must have it.
    """

    name: str
    schema: Schema
    description: str
    required: bool = False


@dataclass(frozen=True)
class ApiCall:
    """A request whose parameters and body are checked.

    Arguments:
        operations: the owner of the jobs.
        path: the parameters in the path, by name.
        query: the parameters in the query that were given, by name.
        body: the JSON object in the body; empty if there is none.
        may_order: whether the token of the request allows orders.
    """

    operations: JobOperations
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Mapping[str, Any]
    may_order: bool

    @property
    def job(self) -> JobState:
        """The job that the path names. Raises `RefusedRequest` if there is none."""
        return find_job(self.operations, self.path["jobid"])

    def number(self, name: str, what: str) -> int:
        """Return a parameter in the path as a number.

        Raises `RefusedRequest` if it is none.
        """
        text = self.path[name]
        if not (text.isascii() and text.isdigit() and len(text) < 18):
            raise RefusedRequest(404, f"there is no {what} {text[:40]!r}: it has a number")
        return int(text)


Handler = Callable[[ApiCall], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """One operation of the HTTP API.

    Arguments:
        method, path: the method and the path below `/v1`. `{name}` is a parameter in the path.
        operation: the id of the operation in the OpenAPI document.
        summary: a sentence about it.
        handler: returns the answer as JSON, given a `ApiCall`.
        answer: the schema of the answer.
        query: the parameters in the query.
        body: the schema of the body; None if there is none.
        status: the status of a successful answer.
        refusals: the statuses of refused requests, beside those that all endpoints have.
        flink: whether Flink has the same endpoint.
    """

    method: Method
    path: str
    operation: str
    summary: str
    handler: Handler
    answer: Schema
    query: tuple[Parameter, ...] = ()
    body: Schema | None = None
    status: int = 200
    refusals: tuple[int, ...] = field(default=())
    flink: bool = True

    def checked_query(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters in a query, converted to the types of their schemas.

        Raises `RefusedRequest` if one is missing or malformed. Unknown parameters are ignored.
        """
        values = {}
        for parameter in self.query:
            name = parameter.name
            if name in given:
                values[name] = _converted(name, parameter.schema, given[name])
            elif parameter.required:
                raise RefusedRequest(400, f"the query has no parameter {name!r}")
        return values

    def checked_body(self, data: bytes) -> dict[str, Any]:
        """Return the JSON object in a body; an empty one if the endpoint takes none.

        Raises `RefusedRequest` if the body is malformed.
        """
        if self.body is None:
            return {}
        try:
            value = json.loads(data or b"{}")
        except (ValueError, RecursionError):
            raise RefusedRequest(400, "the body of the request is not JSON") from None
        found = fault(self.body, value, "the body")
        if found is not None:
            raise RefusedRequest(400, found)
        checked: dict[str, Any] = value
        return checked


def _converted(name: str, schema: Schema, text: str) -> Any:
    value: Any = text
    if schema["type"] == "integer":
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 18):
            raise RefusedRequest(400, f"the parameter {name!r} must be a whole number")
        value = int(text)
    elif schema["type"] == "boolean":
        if text not in ("true", "false"):
            raise RefusedRequest(400, f"the parameter {name!r} must be true or false")
        value = text == "true"
    found = fault(schema, value, f"the parameter {name!r}")
    if found is not None:
        raise RefusedRequest(400, found)
    return value
