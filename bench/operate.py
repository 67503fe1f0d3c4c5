"""`operate`: how fast the service acts on jobs, and what it costs to look at them.

`submit_to_running_seconds`: from the start of the command `penstock submit` until it returns, when
the job processes records; the median. `rescale_seconds`: from the order until the job processes
records again, with the given state, between parallelism 2 and 4; the median. `metrics_overhead`:
the share of words per second that a word count with two workers loses while `/metrics` is read
once a second. Phases with and without alternate in one run, and the median of the ratios of
neighbours counts. `page_ms`: the slowest answer that the page needs, for a job of 200 operators
with 32 subtasks; the median. `metrics_ms` is the same for `/metrics`.

`query_key_ms_p99` is the 99th percentile of live queries of one key, of a job at half of its rate.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common.harness import (
    Figures,
    Say,
    WrongResultError,
    machine,
    percentile,
    scratch,
)
from bench.common.large_job import large_figures, large_graph
from bench.latency.query_key import query_key_ms
from penstock.cli.service_address import ServiceAddress
from penstock.runtime.control.requests import Cancel, ListJobs, Rescale, Show

__all__ = ["measure"]

#: How long a job may need for anything here, in seconds.
PATIENCE = 120.0
SMALL = """
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2).enable_checkpointing(1000)
env.from_generator(lambda i: i, None, 1000).key_by(lambda i: i % 9).count().add_sink(print)
env.execute("small")
"""
WORDS = """
from penstock import SinkFunction, StreamExecutionEnvironment


class Nowhere(SinkFunction):
    def invoke(self, value):
        pass


LINES = [" ".join(f"word{i * 7919 % 5000 + j * 31}" for j in range(10)) for i in range(1000)]
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2).enable_checkpointing(1000)
lines = env.from_generator(lambda i: LINES[i % 1000], None)
words = lines.flat_map(str.split).map(lambda word: (word, 1)).name("Words").uid("words")
words.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).add_sink(Nowhere())
env.execute("words")
"""
STATE = """
import random, sys, time
from penstock import SinkFunction, StreamExecutionEnvironment


class Nowhere(SinkFunction):
    def invoke(self, value):
        pass


keys, size = int(sys.argv[1]), int(sys.argv[2])


def slow(i):
    if i >= keys:
        time.sleep(0.001)
    return i % keys


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2).enable_checkpointing(500)
env.config.max_parallelism = 128
pairs = env.from_generator(lambda i: i, None).map(slow)
pairs = pairs.map(lambda i: (i, random.Random(i).randbytes(size)))  # not to be compressed
pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: b).add_sink(Nowhere())
env.execute("state")
"""


def measure(
    rounds: int = 5,
    pairs: int = 15,
    phase_seconds: float = 3.0,
    state_mb: int = 100,
    operators: int = 200,
    subtasks: int = 32,
    queries: int = 2_000,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Measure all of it.

    Arguments:
        rounds: submissions and changes of the parallelism.
        pairs: pairs of phases, without and with reading of metrics.
        phase_seconds: the length of a phase.
        state_mb: the state of the job whose parallelism is changed, in megabytes.
        operators: the operators of the job whose answers are timed.
        subtasks: the subtasks of each operator.
        queries: the queries of a key.
        folder: where the service and snapshots lie; the system's temporary folder if None.
        say: told what happens.
    """
    with scratch(folder) as place, _service(place) as service:
        say(f"submitting {rounds} jobs")
        submitted = [service.submit_and_cancel(number) for number in range(rounds)]
        say(f"counting words, {2 * pairs} phases of {phase_seconds:g} s")
        ratios = service.metrics_ratios(pairs, phase_seconds)
        say(f"filling a state of {state_mb} MB")
        state, rescaled = service.rescale(rounds, state_mb, say)
    say(f"asking about {operators} operators with {subtasks} subtasks")
    answers = _answers(operators, subtasks, max(5, rounds))
    say(f"{queries} queries of a key")
    durations = query_key_ms(True, queries)
    page = {name: round(one, 1) for name, one in answers.items() if name != "metrics"}
    return {
        "submit_to_running_seconds": round(statistics.median(submitted), 3),
        "rescale_seconds": round(statistics.median(rescaled), 3),
        "rescale_state_mb": round(state / 1e6, 1),
        "metrics_overhead": round(1 - statistics.median(ratios), 4),
        "page_ms": max(page.values()),
        "query_key_ms_p99": round(percentile(durations, 99), 3),
        "metrics_ms": round(answers["metrics"], 1),
        "all_page_ms": page,
        "all_submit_to_running_seconds": [round(one, 3) for one in submitted],
        "all_rescale_seconds": [round(one, 3) for one in rescaled],
        "all_metrics_ratios": [round(one, 3) for one in sorted(ratios)],
        **machine(),
    }


class _Service:
    """A job service of this benchmark, with an HTTP API.

    Arguments:
        place: the folder of everything.
        port: the port of the HTTP API.
    """

    def __init__(self, place: Path, port: int) -> None:
        self._place, self._port = place, port
        self._address = ServiceAddress(place / "home")
        self._token = (place / "home" / "http" / "read-token").read_text()

    def _ask(self, request: Any) -> dict[str, Any]:
        with self._address.connect() as connection:
            return connection.ask(request)

    def _submit(self, name: str, text: str, *arguments: str) -> str:
        """Submit a job, and return its id when it processes records."""
        (self._place / f"{name}.py").write_text(text)
        command = [sys.executable, "-m", "penstock", "submit", f"{name}.py", "--detach"]
        command += ["--checkpoint-dir", f"{name}-ck", "--dir", "home", "--", *arguments]
        done = subprocess.run(
            command, cwd=self._place, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        if done.returncode:
            raise WrongResultError(done.stderr)
        return done.stdout.strip()

    def submit_and_cancel(self, number: int) -> float:
        """Return how long it takes to submit a job, in seconds."""
        began = time.monotonic()
        id = self._submit(f"small-{number}", SMALL)
        seconds = time.monotonic() - began
        job = self._ask(Show(id))["job"]
        if job["state"] != "running":
            raise WrongResultError(f"the job is {job['state']}: {job['error']}")
        self._ask(Cancel(id))
        return seconds

    def metrics_ratios(self, pairs: int, seconds: float) -> list[float]:
        """Return the rates of words while metrics are read, divided by those before and after."""
        id = self._submit("words", WORDS)
        self._rate(id, 2 * seconds)  # the job reaches its speed
        rates = [self._rate(id, seconds)]
        read = []
        for _ in range(pairs):
            with self._reading() as count:
                read.append(self._rate(id, seconds))
            if not count:
                raise WrongResultError("metrics were not read")
            rates.append(self._rate(id, seconds))
        self._ask(Cancel(id, now=True))
        # The rate drifts, so each phase is compared with the mean of those beside it.
        beside = [(a + b) / 2 for a, b in itertools.pairwise(rates)]
        return [one / other for one, other in zip(read, beside, strict=True)]

    def _rate(self, id: str, seconds: float) -> float:
        """Return the words per second over a time, between two figures of the job."""
        time_0, words_0 = self._words(id)
        time.sleep(seconds)
        time_1, words_1 = self._words(id)
        return (words_1 - words_0) / (time_1 - time_0)

    def _words(self, id: str) -> tuple[float, int]:
        """Return the next figures: their time, and the number of words so far."""
        before = None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            jobs = self._ask(ListJobs(activity=True))["jobs"]
            activity = next(job for job in jobs if job["id"] == id)["activity"]
            if before is not None and activity["time"] > before:
                rows = activity["operators"]
                count = next(row["records_out"] for row in rows if row["uid"] == "words")
                return activity["time"], count
            before = activity["time"]
            time.sleep(0.02)
        raise WrongResultError("the job reports no figures")

    @contextmanager
    def _reading(self) -> Iterator[list[int]]:
        """Read the metrics once a second while the block runs."""
        ended, count = threading.Event(), list[int]()

        def read() -> None:
            while not ended.is_set():
                count.append(len(_get(self._port, "/metrics", self._token)))
                ended.wait(1.0)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield count
        finally:
            ended.set()
            thread.join()

    def rescale(self, rounds: int, megabytes: int, say: Say) -> tuple[int, list[float]]:
        """Return the size of the state in bytes, and the seconds of each change."""
        keys, size = megabytes * 5_000, 200
        id = self._submit("state", STATE, str(keys), str(size))
        deadline = time.monotonic() + 4 * PATIENCE
        state = 0
        while state < megabytes * 1_000_000:
            if time.monotonic() > deadline:
                raise WrongResultError(f"the state has only {state:,} bytes")
            time.sleep(0.5)
            snapshots = self._ask(Show(id))["snapshots"]
            state = snapshots[-1]["bytes_total"] if snapshots else 0
        seconds = []
        for number in range(rounds):
            parallelism = 2 if number % 2 else 4
            began = time.monotonic()
            job = self._ask(Rescale(id, parallelism))
            seconds.append(time.monotonic() - began)
            say(f"parallelism {parallelism}: {seconds[-1]:.2f} s")
            if job["parallelism"] != parallelism or job["state"] != "running":
                raise WrongResultError(f"the job is {job['state']}: {job['error']}")
        self._ask(Cancel(id, now=True))
        return state, seconds


@contextmanager
def _service(place: Path) -> Iterator[_Service]:
    command = [sys.executable, "-m", "penstock", "jobmanager", "--dir", "home", "--ui", "0"]
    said = place / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(command, cwd=place, stderr=file)
    try:
        deadline = time.monotonic() + PATIENCE
        while "job manager at" not in said.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise WrongResultError(f"the service does not start: {said.read_text()}")
            time.sleep(0.01)
        found = re.search(r"127\.0\.0\.1:(\d+)", said.read_text())
        assert found is not None
        yield _Service(place, int(found[1]))
    finally:
        process.send_signal(2)
        process.wait(PATIENCE)


def _get(port: int, path: str, token: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise WrongResultError(f"{path}: {response.status} {data[:200]!r}")
        return data
    finally:
        connection.close()


# ---- answers about a large job


def _answers(operators: int, subtasks: int, rounds: int) -> dict[str, float]:
    """Return the median of the milliseconds of each answer, by its name."""
    from penstock.rest.access import ApiAccess, Tokens
    from penstock.rest.program_jobs import ApiServer, ProgramServer, WatchedJob
    from penstock.rest.server import listen
    from penstock.runtime.control.job_state import JobState

    token = "benchmark-" + "x" * 30
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    state = JobState("large", "large")
    for event in _events(operators, subtasks):
        state.handle(event)
    api = ApiServer(listener, ApiAccess(Tokens(token, token + "-read")))
    with ProgramServer(api) as server:
        server.jobs._jobs["large"] = WatchedJob(None, state, lambda *_: None, ())  # type: ignore[arg-type]
        found = {}
        for name, path in (
            ("job", "/v1/jobs/large"),
            ("figures", "/v1/jobs/large/figures"),
            ("plan", "/v1/jobs/large/plan"),
            ("checkpoints", "/v1/jobs/large/checkpoints"),
            ("vertex", f"/v1/jobs/large/vertices/{operators - 1}"),
            ("metrics", "/metrics"),
        ):
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                data = _get(port, path, token)
                times.append((time.perf_counter() - began) * 1000)
            if len(data) < 100:
                raise WrongResultError(f"{path} answers {data!r}")
            found[name] = statistics.median(times)
        vertices = json.loads(_get(port, "/v1/jobs/large", token))["vertices"]
        if len(vertices) != operators:
            raise WrongResultError(f"the job has {len(vertices)} vertices")
        return found


def _events(operators: int, subtasks: int) -> Iterator[dict[str, Any]]:
    """Yield what a job of this size reports in its first seconds."""
    yield {"event": "started", "pid": 1, "graph": large_graph(operators, subtasks), "config": {}}
    yield {"event": "running", "attempt": 0}
    for step in range(1, 4):
        yield large_figures(step * 100, step * 0.2, operators, subtasks)
