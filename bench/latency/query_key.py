"""Measure how long a query of one key of a running job takes, over HTTP.

A service runs a job that counts keys at half of the rate that it reaches. A client asks for one
key after the other, live or in the newest snapshot.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

JOB = """
import sys
from penstock import FileSink, StreamExecutionEnvironment, TextLines

out, keys, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) or None
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1000)
numbers = env.from_generator(lambda i: f"key{i % keys}", None, rate)
counts = numbers.key_by(lambda key: key).count().uid("count")
counts.filter(lambda pair: False).sink_to(FileSink(out, TextLines()))
env.execute("query-key")
"""
#: The time over which the highest rate is measured, in seconds.
_RATE_SECONDS = 4.0


class _Api:
    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> Any:
        try:
            answer = self._ask(path)
        except (http.client.RemoteDisconnected, ConnectionError):
            # The server closes a connection that is idle for some seconds.
            self._connection.close()
            answer = self._ask(path)
        body = answer.read()
        return json.loads(body) if answer.status == 200 else None

    def _ask(self, path: str) -> http.client.HTTPResponse:
        self._connection.request("GET", f"/v1{path}", headers=self._headers)
        return self._connection.getresponse()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def counted(self, id: str) -> int:
        """Return how many records the first vertex of a job has emitted."""
        job = self.get(f"/jobs/{id}")
        vertices = job["vertices"] if job else []
        return int(vertices[0]["metrics"]["write-records"]) if vertices else 0


@contextlib.contextmanager
def _service(folder: Path) -> Iterator[_Api]:
    environment = {**os.environ, "PENSTOCK_HOME": str(folder / "home")}
    said = folder / "service.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "jobmanager", "--ui", "0"],
            stderr=log,
            env=environment,
        )
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", said.read_text())):
            if process.poll() is not None:
                raise RuntimeError(said.read_text())
            time.sleep(0.02)
        with contextlib.closing(
            _Api(int(found[1]), (folder / "home" / "http" / "token").read_text())
        ) as api:
            yield api
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _submit(folder: Path, name: str, keys: int, rate: float) -> str:
    job = folder / "job.py"
    job.write_text(JOB)
    words = ["submit", str(job), "--detach", "--checkpoint-dir", str(folder / name)]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words, "--", str(folder / "out"), str(keys), str(rate)],
        env={**os.environ, "PENSTOCK_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()[0]


def query_key_ms(
    live: bool, asks: int = 2000, keys: int = 100_000, pause_seconds: float = 0.002
) -> list[float]:
    """Return the durations of queries of one key, in milliseconds, sorted.

    Arguments:
        live: whether the running tasks answer, instead of the newest snapshot.
        asks: the number of queries.
        keys: the number of keys of the job.
        pause_seconds: the time between two queries.
    """
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as name, _service(Path(name)) as api:
        folder = Path(name)
        full = _submit(folder, "full", keys, 0)
        while api.counted(full) == 0:
            time.sleep(0.1)
        began, before = time.perf_counter(), api.counted(full)
        time.sleep(_RATE_SECONDS)
        rate = (api.counted(full) - before) / (time.perf_counter() - began)
        subprocess.run(
            [sys.executable, "-m", "penstock", "cancel", full, "--now"],
            env={**os.environ, "PENSTOCK_HOME": str(folder / "home")},
            capture_output=True,
            check=True,
        )
        half = _submit(folder, "half", keys, rate / 2)
        path = f"/jobs/{half}/state/count/value?live={str(live).lower()}&key="
        asked = [quote(json.dumps(f"key{rng.randrange(keys)}")) for _ in range(asks)]
        for key in set(asked):
            while not (answer := api.get(path + key)) or not answer["entries"]:
                time.sleep(0.1)  # until the job has counted the key, and a snapshot has it
        durations = []
        for key in asked:
            began = time.perf_counter()
            answer = api.get(path + key)
            durations.append((time.perf_counter() - began) * 1000)
            if answer is None or len(answer["entries"]) != 1:
                raise RuntimeError(f"the query of {key} answered {answer}")
            time.sleep(pause_seconds)
    return sorted(durations)


def query_key_ms_p99(live: bool = True) -> float:
    """Return the 99th percentile of the durations of queries of one key, in milliseconds."""
    durations = query_key_ms(live)
    return durations[len(durations) * 99 // 100]


if __name__ == "__main__":
    for is_live in (True, False):
        found = query_key_ms(is_live)
        text = {
            name: round(found[len(found) * n // 100], 2) for name, n in (("p50", 50), ("p99", 99))
        }
        print("live" if is_live else "snapshot", text, "max", round(found[-1], 2))
