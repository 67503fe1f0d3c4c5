"""Carry out requests of the command line over HTTP: `/v1/requests`.

The requests and their answers are those of the service's own protocol, so `penstock --service URL`
prints the same as on the machine of the service. Answers are lines of JSON. A request that takes
long is answered with empty lines meanwhile, so that neither side takes the other for dead.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import trio
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.rest.json_text import json_text
from penstock.rest.operations import JobOperations, RefusedRequest
from penstock.runtime.control.requests import (
    Events,
    ListJobs,
    Logs,
    QueryState,
    Refused,
    Request,
    Show,
    Submit,
    Upgrade,
    request_of,
)

#: The media type of the answers.
MEDIA_TYPE = "application/x-ndjson"
#: The time after which an empty line is sent, in seconds.
WAITING_SECONDS = 15.0
#: The time in which a refusal still has a status of its own, in seconds.
REFUSAL_SECONDS = 5.0
#: The number of answers that wait for a slow client.
BEHIND = 100
#: The requests that change nothing.
_READING = (ListJobs, Show, Logs, Events)
#: Requests with code that was packed by a program, which must have the versions of the service.
_PACKED = (Submit, Upgrade)


async def serve_request(request: HttpRequest, operations: JobOperations) -> Response:
    """Return the response to a request of the command line."""
    data = await request.body() if request.method == "POST" else request.query_params.get("request")
    wanted = _read(data or "")
    if request.method != "POST" and not isinstance(wanted, _READING):
        raise RefusedRequest(403, "with GET, jobs are only looked at: send the request by POST")
    if isinstance(wanted, _PACKED):
        raise RefusedRequest(
            400, "packed programs are not taken over HTTP: send the files to /v1/programs"
        )
    if isinstance(wanted, QueryState):
        raise RefusedRequest(400, "state is queried with GET /v1/jobs/{jobid}/state/…")
    return _Answers(operations.answers(wanted))


def _read(data: bytes | str) -> Request:
    try:
        wire = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedRequest(400, "the request is not JSON") from None
    if not isinstance(wire, dict):
        raise RefusedRequest(400, "the request is no JSON object")
    try:
        return request_of(wire)
    except Refused as error:
        raise RefusedRequest(400, str(error)) from error


def line(answer: dict[str, Any]) -> bytes:
    """Return an answer as a line of JSON. Bytes of a log become text that can be turned back."""
    part = answer.get("part")
    if isinstance(part, bytes):
        answer = {**answer, "part": part.decode(errors="surrogateescape")}
    return json_text(answer).encode() + b"\n"


class _Answers(Response):
    """Sends the answers to a request as they come."""

    def __init__(self, answers: AsyncGenerator[dict[str, Any], None]) -> None:
        super().__init__(media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._answers = answers
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await self._begin(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        into, found = trio.open_memory_channel[dict[str, Any]](BEHIND)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_client_leaves, receive, nursery.cancel_scope)
            nursery.start_soon(self._collect, into)
            await self._send_all(found, send)
            nursery.cancel_scope.cancel()

    async def _collect(self, into: trio.MemorySendChannel[dict[str, Any]]) -> None:
        async with into, aclosing(self._answers) as answers:
            try:
                async for answer in answers:
                    await into.send(answer)
            except RefusedRequest as error:
                refusal = {"event": "refused", "status": error.status, "reason": error.sentence}
                await into.send(refusal)

    async def _send_all(self, found: trio.MemoryReceiveChannel[dict[str, Any]], send: Send) -> None:
        while True:
            pause = WAITING_SECONDS if self._begun else REFUSAL_SECONDS
            answer = None
            with trio.move_on_after(pause):
                try:
                    answer = await found.receive()
                except trio.EndOfChannel:
                    break
            if answer is not None and answer["event"] == "refused" and not self._begun:
                await self._refuse(answer, send)
                return
            await self._begin(send)
            data = b"\n" if answer is None else line(answer)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await self._begin(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        if not self._begun:
            self._begun = True
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)

    async def _refuse(self, answer: dict[str, Any], send: Send) -> None:
        body = json_text({"errors": [answer["reason"]]}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        start = {"type": "http.response.start", "status": answer["status"], "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _until_client_leaves(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
