"""A server of the HTTP API with a job whose events the test makes up, and a client of it."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock import StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.program import Program
from penstock.rest.access import ApiAccess, Tokens
from penstock.rest.program_jobs import ApiServer, ProgramServer, WatchedJob
from penstock.rest.server import ServerCertificate, listen
from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.control.state_queries import CONFLICT, StateQuery, refusal
from penstock.runtime.jobmanager.reporting.job_description import describe_config, describe_graph
from tests.processes.harness import PATIENCE, wait_until

TOKENS = Tokens("full-" + "x" * 30, "read-" + "y" * 30)


class FakeJob(JobConnection):
    """A job that does nothing but keep the orders that it gets."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.answer: Callable[[dict[str, Any]], None] = lambda _: None
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def events(self) -> Iterator[dict[str, Any]]:
        while (event := self._events.get()) is not None:
            yield event

    def put(self, event: dict[str, Any] | None) -> None:
        self._events.put(event)

    def stop(self) -> None:
        self.orders.append("stop")

    def savepoint(self) -> None:
        self.orders.append("savepoint")

    def query(self, query: StateQuery) -> None:
        """Answer at once, as a job that restarts."""
        self.orders.append("query")
        self.answer(refusal(query.id, CONFLICT, "the job restarts"))

    def profile(self) -> None:
        self.orders.append("profile")

    def drain(self) -> None:
        pass

    running = True

    def kill(self) -> None:
        self.orders.append("kill")

    def wait(self) -> str:
        return "was killed by SIGKILL"


def program(checkpoint_dir: str | None = "/jobs/state", parallelism: int = 2) -> Program:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.enable_checkpointing(500)
    words = env.from_collection(["a", "b"]).name("Words").uid("words")
    words.key_by(lambda word: word).map(str.upper).name("Upper").uid("upper").print()
    config = env.config
    config.name, config.checkpoint_dir = "words", checkpoint_dir
    return Program(env._graph, config)


def started(of: Program) -> dict[str, Any]:
    graph = describe_graph(compile_graph(of.graph, of.config))
    config = describe_config(of.config, "/")
    return {"event": "started", "pid": 7, "operators": [], "graph": graph, "config": config}


def status(records: int, busy: float = 0.5) -> dict[str, Any]:
    metric = {
        "uid": "upper",
        "operator": "Upper",
        "name": "topic.t1.seen",
        "variables": {"topic": "t1"},
        "kind": "counter",
        "value": records,
        "subtasks": [records, None],
    }
    meter = {**metric, "name": "rate", "variables": {}, "kind": "meter"}
    meter["subtasks"] = [{"count": records, "rate": 1.5}, None]
    gauge = {**metric, "name": "level", "variables": {}, "kind": "gauge"}
    gauge["subtasks"] = ["high", float("nan")]
    return {
        "event": "status",
        "operators": [],
        "loops": [],
        "metrics": [metric, meter, gauge],
        "busy_workers": [],
        "tasks": [[chain, subtask, busy, 0.25, 3] for chain in (0, 1) for subtask in (0, 1)],
        "subtasks": {
            "words": [[0, 0, records, 1_000], [1, 0, records, None]],
            "upper": [[0, records, records, 1_000], [1, 2 * records, 2 * records, 2_000]],
        },
    }


def snapshot(number: int, kind: str = "checkpoint") -> dict[str, Any]:
    return {
        "event": "snapshot",
        "number": number,
        "kind": kind,
        "created_ms": 1_000,
        "duration_ms": 20.5,
        "aligned_ms": 3.0,
        "channel_aligned_ms": 1.0,
        "write_ms": 2.0,
        "bytes_new": 100,
        "bytes_linked": 50,
        "bytes_total": 150,
        "log_records": 4,
        "log_bytes": 40,
        "attempt": 0,
        "tasks": [
            [1, 1, 20.0, 3.0, 2.0, 60, 90, 4, 0.5],
            [1, 0, 10.0, 1.0, 1.0, 40, 60, 0],
        ],
    }


def began(number: int, kind: str = "checkpoint") -> dict[str, Any]:
    return {"event": "began", "number": number, "kind": kind, "created_ms": 1_000}


def restarting(message: str = "it broke") -> dict[str, Any]:
    return {
        "event": "restarting",
        "cause": message,
        "delay_seconds": 0.1,
        "family": "JobError",
        "message": message,
        "operator": "Upper",
        "record": "'a'",
        "user_traceback": "Traceback: it broke",
    }


RUNNING = {"event": "running", "attempt": 0}
WORKERS = {"event": "workers", "pids": [8, 9]}


@dataclass
class Answer:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A client of a server on this machine."""

    def __init__(self, port: int, token: str = TOKENS.full) -> None:
        self.port, self._token = port, token

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        token: str | None = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request below `/v1`, or a path that begins with two slashes.

        The token is that of the client, unless another or none is given.
        """
        target = path[1:] if path.startswith("//") else f"/v1{path}"
        token = self._token if token == "" else token
        sent = {} if token is None else {"Authorization": f"Bearer {token}"}
        sent |= headers or {}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, target, data, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()


class Served(Client):
    """A server with one job, and a client of it."""

    def __init__(self, server: ProgramServer, port: int, of: Program) -> None:
        super().__init__(port)
        self.job = FakeJob()
        watched = server.jobs.watch(of, self.job)
        assert isinstance(watched, WatchedJob)
        self.job.answer = lambda event: watched._post(watched.queries.answered, event)
        self._watched, self.reading = watched, watched.events()
        self.state = watched.state
        self.id = watched.state.id

    def report(self, *events: dict[str, Any]) -> None:
        """Let the job report events, and wait until the server has them."""
        seen = self.state.log.last + len(events)
        for event in events:
            self.job.put(event)
            next(self.reading)
        wait_until(lambda: self.state.log.last >= seen, "the server has the events")

    def end(self) -> None:
        """Let the job end."""
        self.job.put(None)
        assert next(self.reading, None) is None
        self._watched.wait()
        wait_until(lambda: self.state.log.closed, "the server has the end")

    def of_job(self, path: str, **more: Any) -> Answer:
        """Send a request about the job."""
        return self.ask(f"/jobs/{self.id}{path}", **more)

    def connect(self) -> socket.socket:
        """Return a connection to the server."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    def stream(self, last: str | None = None) -> EventReader:
        """Open a stream of the job's events."""
        connection = self.connect()
        resumed = "" if last is None else f"Last-Event-ID: {last}\r\n"
        connection.sendall(
            f"GET /v1/jobs/{self.id}/events HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKENS.read_only}\r\n{resumed}\r\n".encode()
        )
        return EventReader(connection)


class EventReader:
    """Reads a stream of server-sent events."""

    def __init__(self, connection: socket.socket) -> None:
        self._answer = http.client.HTTPResponse(connection)
        self._connection = connection
        self._answer.begin()
        self.status = self._answer.status
        self.media_type = self._answer.getheader("content-type")

    def read(self, number: int) -> list[tuple[str | None, str, Any]]:
        """Return the id, the kind and the data of the next events."""
        return [next(self._events()) for _ in range(number)]

    def rest(self) -> list[tuple[str | None, str, Any]]:
        """Return all events until the end of the stream."""
        return list(self._events())

    def _events(self) -> Iterator[tuple[str | None, str, Any]]:
        fields: dict[str, str] = {}
        until = time.monotonic() + PATIENCE
        while line := self._answer.readline().decode():
            # Comments come all the time.
            assert time.monotonic() < until, "no event has come"
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                yield fields.get("id"), fields["event"], json.loads(fields["data"])
                fields = {}

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@contextmanager
def served(of: Program | None = None, tls: ServerCertificate | None = None) -> Iterator[Served]:
    """Serve a job in this process while the block runs."""
    of = of or program()
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with ProgramServer(ApiServer(listener, ApiAccess(TOKENS, ["known.example"]), tls)) as server:
        one = Served(server, port, of)
        wait_until(server.jobs.jobs, "the server has the job")
        yield one


def lived(one: Served, checkpoint_dir: str = "/jobs/state") -> None:
    """Let the job of a server report what a job reports in some minutes.

    Arguments:
        checkpoint_dir: the checkpoint folder of the job.
    """
    one.report(
        started(program(checkpoint_dir)),
        {"event": "resumed", "number": 1, "lineage": "", "log_records": 0, "continues": ""},
        WORKERS,
        RUNNING,
        status(10),
        began(2),
        snapshot(2),
        {"event": "committed"},
        began(3),
        {"event": "aborted", "number": 3, "reason": "a task declined"},
        restarting(),
        {"event": "restarted", "seconds": 0.5},
        status(20, 0.75),
        status(30, 1.0),
        began(4, "savepoint"),
        snapshot(4, "savepoint"),
        began(5),
    )
