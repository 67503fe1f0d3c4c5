"""A schema registry for tests, in a thread of this process.

It answers the requests of Confluent's REST interface that clients need to register, find and read
schemas, and checks the compatibility of Avro schemas. The registry itself needs a JVM and a broker.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from penstock.connectors.formats.avro_compatibility import why_unreadable

_LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FULL")
#: The error codes of Confluent's registry.
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA, _INVALID = 40401, 40402, 40403, 42201


class _Refused(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class FakeSchemaRegistry:
    """A schema registry that keeps its schemas in memory.

    Workers in other processes reach it by its URL. Only Avro schemas are checked for compatibility.

    Arguments:
        compatibility: the level for all subjects: "NONE", "BACKWARD", "BACKWARD_TRANSITIVE",
            "FORWARD" or "FULL".
        user, password: the credentials that it wants; None if it wants none.

    Examples:
        >>> with FakeSchemaRegistry() as registry:
        ...     users = Registered(Json(dict[str, str]), SchemaRegistry(registry.url), subject="u")
        ...     message = users.serialize([{"name": "ann"}])
        >>> message
        [b'\\x00\\x00\\x00\\x00\\x01{"name":"ann"}']
    """

    def __init__(
        self,
        compatibility: str = "BACKWARD",
        *,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        if compatibility not in _LEVELS:
            raise ValueError(f"compatibility is one of {', '.join(_LEVELS)}, not {compatibility}")
        self.compatibility = compatibility
        #: The schemas, as clients have sent them; the id of the first is 1.
        self.schemas: list[dict[str, Any]] = []
        #: The ids of the versions of each subject.
        self.subjects: dict[str, list[int]] = {}
        #: The method and the path of each request.
        self.requests: list[tuple[str, str]] = []
        self._authorization = None
        if user is not None:
            pair = f"{user}:{password}".encode()
            self._authorization = f"Basic {base64.b64encode(pair).decode()}"
        self._out = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The URL of the registry."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Answer no request inside of the `with` block: each gets a server error."""
        self._out += 1
        try:
            yield
        finally:
            self._out -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def log_message(self, format: str, *arguments: Any) -> None:
                del format, arguments

            def _answer(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with registry._lock:
                    status, answer = registry._respond(
                        method, self.path, body, self.headers.get("Authorization")
                    )
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler

    def _respond(
        self, method: str, path: str, body: bytes, authorization: str | None
    ) -> tuple[int, Any]:
        """Return the status and the value of the answer to a request."""
        self.requests.append((method, path))
        if self._out:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error_code": 50003, "message": "outage"}
        if self._authorization is not None and authorization != self._authorization:
            return HTTPStatus.UNAUTHORIZED, {"error_code": 401, "message": "Unauthorized"}
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        try:
            return HTTPStatus.OK, self._result(method, parts, json.loads(body or b"null"))
        except _Refused as refused:
            return refused.status, {"error_code": refused.code, "message": str(refused)}

    def _result(self, method: str, parts: list[str], body: Any) -> Any:
        match (method, *parts):
            case ("GET", "schemas", "ids", id):
                return self._schema(int(id))
            case ("GET", "subjects"):
                return list(self.subjects)
            case ("GET", "subjects", subject, "versions"):
                return list(range(1, len(self._versions(subject)) + 1))
            case ("GET", "subjects", subject, "versions", version):
                return self._version(subject, version)
            case ("POST", "subjects", subject, "versions"):
                return {"id": self._register(subject, body)}
            case ("POST", "subjects", subject):
                return self._look_up(subject, body)
        raise _Refused(HTTPStatus.NOT_FOUND, 404, f"HTTP 404 Not Found: {method} {parts}")

    def _schema(self, id: int) -> dict[str, Any]:
        if not 0 < id <= len(self.schemas):
            raise _Refused(HTTPStatus.NOT_FOUND, _NO_SCHEMA, f"Schema {id} not found")
        return self.schemas[id - 1]

    def _versions(self, subject: str) -> list[int]:
        if subject not in self.subjects:
            raise _Refused(HTTPStatus.NOT_FOUND, _NO_SUBJECT, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def _version(self, subject: str, version: str) -> dict[str, Any]:
        ids = self._versions(subject)
        number = len(ids) if version in ("latest", "-1") else int(version)
        if not 0 < number <= len(ids):
            raise _Refused(HTTPStatus.NOT_FOUND, _NO_VERSION, f"Version {version} not found.")
        id = ids[number - 1]
        return {"subject": subject, "version": number, "id": id, **self._schema(id)}

    def _look_up(self, subject: str, body: Any) -> dict[str, Any]:
        schema = _normal(body)
        for number, id in enumerate(self._versions(subject), 1):
            if self.schemas[id - 1] == schema:
                return {"subject": subject, "version": number, "id": id, **schema}
        raise _Refused(HTTPStatus.NOT_FOUND, _NO_SCHEMA, "Schema not found")

    def _register(self, subject: str, body: Any) -> int:
        schema = _normal(body)
        ids = self.subjects.get(subject, [])
        for id in ids:
            if self.schemas[id - 1] == schema:
                return id
        if _type(schema) == "AVRO":
            self._check(schema, [self.schemas[id - 1] for id in ids])
        if schema not in self.schemas:
            self.schemas.append(schema)
        id = self.schemas.index(schema) + 1
        self.subjects[subject] = [*ids, id]
        return id

    def _check(self, schema: dict[str, Any], earlier: list[dict[str, Any]]) -> None:
        """Refuse an Avro schema that is not compatible with the earlier versions."""
        level = self.compatibility
        if level == "NONE":
            return
        new = json.loads(schema["schema"])
        for one in earlier if level.endswith("TRANSITIVE") else earlier[-1:]:
            old = json.loads(one["schema"])
            reasons = []
            if level != "FORWARD":
                reasons.append(why_unreadable(old, new))
            if level in ("FORWARD", "FULL"):
                reasons.append(why_unreadable(new, old))
            for reason in filter(None, reasons):
                raise _Refused(
                    HTTPStatus.CONFLICT,
                    HTTPStatus.CONFLICT,
                    f"Schema being registered is incompatible with an earlier schema: {reason}",
                )


def _normal(body: Any) -> dict[str, Any]:
    """Return a schema as the registry keeps it, with the text in one form."""
    schema = {key: body[key] for key in ("schemaType", "schema", "references") if body.get(key)}
    if _type(schema) == "AVRO":
        schema.pop("schemaType", None)
    if _type(schema) != "PROTOBUF":
        try:
            schema["schema"] = json.dumps(json.loads(schema["schema"]))
        except ValueError:
            raise _Refused(HTTPStatus.UNPROCESSABLE_ENTITY, _INVALID, "Invalid schema") from None
    return schema


def _type(schema: dict[str, Any]) -> str:
    kind: str = schema.get("schemaType", "AVRO")
    return kind
