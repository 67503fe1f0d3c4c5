"""Describe the HTTP API as an OpenAPI document."""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from typing import Any

from penstock.rest.endpoint import Endpoint
from penstock.rest.json_schema import STRING, Schema, array, record, ref
from penstock.rest.routes import ENDPOINTS
from penstock.rest.views import checkpoints, edges, figures, jobs, metrics, state, vertices
from penstock.version import VERSION

#: The path below which the API is.
PREFIX = "/v1"
#: The statuses with which any endpoint refuses requests.
_ALWAYS = (400, 401, 403)
_REFUSALS = {
    400: "The request is malformed.",
    401: "The request has no token, or a wrong one.",
    403: "The host or the origin is wrong, or the token is only for reading.",
    404: "There is nothing of this name.",
    409: "The state of the job does not allow it.",
    413: "The body is too large.",
    429: "Too many streams are open.",
}
_OF_PATH = {
    "edge": "the number of an edge in the plan, or `PRODUCER->CONSUMER` with uids or names",
    "jobid": "the id of a job",
    "vertexid": "the number of a vertex in the graph of the job",
    "checkpointid": "the number of a snapshot",
    "triggerid": "the id of a request for a snapshot",
    "operator": "the uid of an operator",
    "state": "the name of a state",
}
_ERRORS: Schema = {
    **record({"errors": array(STRING)}),
    "description": "why the request is refused, and what to do",
}


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document of the API."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        path = paths.setdefault(PREFIX + endpoint.path, {})
        path[endpoint.method.lower()] = _operation(endpoint)
    paths[f"{PREFIX}/jobs/{{jobid}}/events"] = {"get": _events()}
    paths[f"{PREFIX}/jobs/{{jobid}}/log"] = {
        "get": _text("getLog", "Show the end of a job's log.", "text/plain", "/jobs/{jobid}/log")
    }
    paths[f"{PREFIX}/programs"] = {"post": _programs()}
    paths[f"{PREFIX}/requests"] = {"get": _look(), "post": _request()}
    paths[f"{PREFIX}/openapi.json"] = {
        "get": {
            "operationId": "getOpenApi",
            "summary": "Return this document.",
            "responses": {"200": _json({"type": "object"}, "The document."), **_refusals(())},
        }
    }
    paths["/metrics"] = {
        "get": _text(
            "getPrometheusMetrics", "Return all metrics for Prometheus.", "text/plain", "/metrics"
        )
    }
    schemas = {
        **jobs.SCHEMAS,
        **edges.SCHEMAS,
        **figures.SCHEMAS,
        **vertices.SCHEMAS,
        **checkpoints.SCHEMAS,
        **metrics.SCHEMAS,
        **state.SCHEMAS,
        "Errors": _ERRORS,
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": VERSION,
            "description": "Watch and control stream jobs. Names are Flink's where Flink has them.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    success = HTTPStatus(endpoint.status).phrase
    described: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.summary,
        "responses": {
            str(endpoint.status): _json(endpoint.answer, f"{success}."),
            **_refusals((*endpoint.refusals, *((413,) if endpoint.body else ()))),
        },
    }
    parameters = _path_parameters(endpoint.path)
    parameters += [
        {
            "name": one.name,
            "in": "query",
            "required": one.required,
            "schema": one.schema,
            "description": one.description,
        }
        for one in endpoint.query
    ]
    if parameters:
        described["parameters"] = parameters
    if endpoint.body is not None:
        required = bool(endpoint.body["required"])
        content = {"application/json": {"schema": endpoint.body}}
        described["requestBody"] = {"required": required, "content": content}
    return described


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": STRING,
            "description": _OF_PATH[name],
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _events() -> dict[str, Any]:
    described = _text(
        "streamEvents",
        "Stream the events of a job as server-sent events, from the oldest that is kept.",
        "text/event-stream",
        "/jobs/{jobid}/events",
    )
    described["parameters"].append(
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "schema": STRING,
            "description": "the id of the last event that the client has; the stream goes on after "
            "it. An event `gap` says how many events are no longer kept.",
        }
    )
    described["responses"]["204"] = {
        "description": "The job has ended, and the client has all of its events."
    }
    described["responses"]["429"] = _json(ref("Errors"), _REFUSALS[429])
    return described


def _programs() -> dict[str, Any]:
    archive = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {
        "operationId": "sendProgram",
        "summary": "Keep the files of a program, sent as a zip archive, and return their folder.",
        "requestBody": {"required": True, "content": archive},
        "responses": {
            "201": _json(record({"folder": STRING}), "The folder, for `path` in an order."),
            **_refusals((409, 413)),
        },
    }


def _look() -> dict[str, Any]:
    described = _text(
        "look",
        "Carry out a request of the command line that changes nothing.",
        "application/x-ndjson",
        "/requests",
    )
    described["parameters"] = [
        {
            "name": "request",
            "in": "query",
            "required": True,
            "schema": STRING,
            "description": 'the request as JSON, such as `{"do": "show", "id": "3"}`',
        }
    ]
    described["responses"] |= _refusals((404, 409))
    return described


def _request() -> dict[str, Any]:
    described = _text(
        "request",
        "Carry out a request of the command line. The answers are lines of JSON.",
        "application/x-ndjson",
        "/requests",
    )
    schema = {"type": "object", "properties": {"do": STRING}, "required": ["do"]}
    content = {"application/json": {"schema": schema}}
    described["requestBody"] = {"required": True, "content": content}
    described["responses"] |= _refusals((404, 409, 413))
    return described


def _text(operation: str, summary: str, media_type: str, path: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation,
        "summary": summary,
        "responses": {
            "200": {"description": "OK.", "content": {media_type: {"schema": STRING}}},
            **_refusals((404,) if "{" in path else ()),
        },
    }
    if "{" in path:
        described["parameters"] = _path_parameters(path)
    return described


def _refusals(statuses: tuple[int, ...]) -> dict[str, Any]:
    return {
        str(status): _json(ref("Errors"), _REFUSALS[status])
        for status in sorted({*_ALWAYS, *statuses})
    }


def _json(schema: Schema, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
