"""The HTTP application: it routes requests to the endpoints, and refuses bad ones."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.rest import prometheus
from penstock.rest.access import ApiAccess
from penstock.rest.endpoint import ApiCall, Endpoint
from penstock.rest.event_stream import MAX_STREAMS, event_stream, resume_after
from penstock.rest.json_text import json_text
from penstock.rest.measurements import cluster_measurements, measurements
from penstock.rest.openapi import PREFIX, document
from penstock.rest.operations import JobOperations, RefusedRequest, find_job
from penstock.rest.page_files import PageFiles
from penstock.rest.routes import ENDPOINTS
from penstock.rest.service_requests import serve_request
from penstock.runtime.control.event_log import EventLog

#: The size of the largest body that is accepted, in bytes.
MAX_BODY = 1_000_000
#: The path to which the files of programs are sent, and the size of the largest archive, in bytes.
PROGRAMS, MAX_ARCHIVE = f"{PREFIX}/programs", 64_000_000
#: The size of the part of a log that is sent, in bytes.
LOG_BYTES = 1_000_000


class JsonResponse(Response):
    """An answer of the API."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return json_text(content).encode()


def make_application(operations: JobOperations, access: ApiAccess) -> ASGIApp:
    """Return the application.

    Arguments:
        operations: the owner of the jobs.
        access: decides which requests are allowed.
    """
    streams = _Streams(operations)
    routes = [
        Route(PREFIX + one.path, _route(one, operations), methods=[one.method]) for one in ENDPOINTS
    ]
    routes += [
        Route(f"{PREFIX}/jobs/{{jobid}}/events", streams.serve),
        Route(f"{PREFIX}/jobs/{{jobid}}/log", _log_route(operations)),
        Route(f"{PREFIX}/requests", _requests_route(operations), methods=["GET", "POST"]),
        Route(PROGRAMS, _programs_route(operations), methods=["POST"]),
        Route(f"{PREFIX}/openapi.json", _describe),
        Route("/metrics", _metrics_route(operations)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, access=access, page=PageFiles())],
        exception_handlers={RefusedRequest: _refused, HTTPException: _unknown},
    )


def _route(
    endpoint: Endpoint, operations: JobOperations
) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        call = ApiCall(
            operations,
            request.path_params,
            endpoint.checked_query(request.query_params),
            endpoint.checked_body(await request.body()),
            request.state.may_order,
        )
        return JsonResponse(await endpoint.handler(call), endpoint.status)

    return serve


def _requests_route(operations: JobOperations) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        return await serve_request(request, operations)

    return serve


def _programs_route(operations: JobOperations) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        folder = await operations.keep_files(await request.body())
        return JsonResponse({"folder": str(folder)}, 201)

    return serve


async def _describe(_: Request) -> Response:
    return JsonResponse(document())


def _metrics_route(operations: JobOperations) -> Callable[[Request], Awaitable[Response]]:
    async def serve(_: Request) -> Response:
        jobs = operations.jobs()
        found = chain(
            cluster_measurements(jobs, operations.slots(), operations.free_slots()),
            chain.from_iterable(measurements(job) for job in jobs),
        )
        return Response(prometheus.exposition(found), media_type=prometheus.MEDIA_TYPE)

    return serve


def _log_route(operations: JobOperations) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        job = find_job(operations, request.path_params["jobid"])
        path = operations.log_file(job)
        if path is None:
            raise RefusedRequest(
                404, f"job {job.id} has no log: its output is where its program was started"
            )
        try:
            text = await trio.to_thread.run_sync(_end_of, path)
        except OSError as error:
            raise RefusedRequest(
                404, f"the log of job {job.id} cannot be read: {error.strerror}"
            ) from error
        return PlainTextResponse(text)

    return serve


def _end_of(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        return file.read().decode(errors="replace")


class _Streams:
    """Serves streams of events, and bounds their number."""

    def __init__(self, operations: JobOperations) -> None:
        self._operations = operations
        #: The number of open streams.
        self.open = 0

    async def serve(self, request: Request) -> Response:
        job = find_job(self._operations, request.path_params["jobid"])
        after = resume_after(request.headers.get("last-event-id"))
        if job.log.closed and after >= job.log.last:
            return Response(status_code=204)  # it tells a browser not to connect again
        if self.open >= MAX_STREAMS:
            raise RefusedRequest(429, f"{MAX_STREAMS} streams are open; close some, or wait")
        return _EventStream(job.log, after, self)


class _EventStream(Response):
    """Sends the events of a job until the job ends, or until the client leaves."""

    def __init__(self, log: EventLog, after: int, streams: _Streams) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._log, self._after, self._streams = log, after, streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        self._streams.open += 1
        try:
            # Starlette's class leaves the generator to the garbage collector if a client leaves.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_client_leaves, receive, nursery.cancel_scope)
                if scope["method"] != "HEAD":
                    async with aclosing(event_stream(self._log, self._after)) as events:
                        async for chunk in events:
                            body = {"type": "http.response.body", "body": chunk, "more_body": True}
                            await send(body)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                nursery.cancel_scope.cancel()
        finally:
            self._streams.open -= 1


async def _until_client_leaves(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequest)
    return _refusal(error)


async def _unknown(request: Request, error: Exception) -> Response:
    """Return the answer for a path or a method that is unknown."""
    assert isinstance(error, HTTPException)
    text = f"{error.detail}: {request.method} {request.url.path[:200]}"
    refusal = RefusedRequest(error.status_code, f"{text}; {PREFIX}/openapi.json has all endpoints")
    return _refusal(refusal, dict(error.headers or {}))


def _refusal(error: RefusedRequest, headers: dict[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JsonResponse({"errors": [error.sentence]}, error.status, headers)


class _Guard:
    """Checks each request before the application sees it, and bounds the size of its body."""

    def __init__(self, app: ASGIApp, access: ApiAccess, page: PageFiles) -> None:
        self._app, self._access, self._page = app, access, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await _live(receive, send)
            elif scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        try:
            self._access.check_origin(scope["scheme"], headers)
            if scope["path"] in self._page and scope["method"] in ("GET", "HEAD"):
                # The page has no secret: a browser has the token from its user or its address.
                await self._page.response(scope["path"], headers)(scope, receive, send)
                return
            may_order = self._access.check_token(scope["method"], headers, scope["path"])
            largest = MAX_ARCHIVE if scope["path"] == PROGRAMS else MAX_BODY
            body = await _read_body(headers, receive, largest)
        except RefusedRequest as error:
            await _refusal(error)(scope, receive, send)
            return
        if body is not None:
            state = {**scope.get("state", {}), "may_order": may_order}
            await self._app({**scope, "state": state}, _replayed(body, receive), send)


async def _live(receive: Receive, send: Send) -> None:
    """Acknowledge the start and the end of the server, for which nothing needs to be done.

    Starlette would report a cancellation as a failure of the end, and the service would end with a
    traceback.
    """
    for kind in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{kind}.complete"})


async def _read_body(headers: dict[str, str], receive: Receive, largest: int) -> bytes | None:
    """Return the body of a request; None if its client is gone.

    Raises `RefusedRequest` if it is too large.
    """
    too_large = RefusedRequest(413, f"the body of the request has more than {largest:,} bytes")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > 18:
        raise RefusedRequest(400, "the header Content-Length is no number")
    if int(length) > largest:
        raise too_large
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > largest:
            raise too_large
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a function that first gives a body, and then what else the server reports."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
