"""Jobs with objects in real processes that are killed, and a store that stands still."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import GraphError
from penstock.connectors.object_store import ObjectStore, ObjectStoreSink, ObjectStoreSource
from penstock.testing.servers.s3 import S3Server
from tests.processes.harness import Killer, lost_and_doubled, run_to_the_end
from tests.processes.parts import let_all_go

pytest.importorskip("obstore")

from tests.connectors.object_store.objects_job import ObjectSettings, objects_job


def settings_of(server: S3Server, folder: Path, **options: Any) -> ObjectSettings:
    bucket = f"jobs-{folder.name[-40:].strip('-').replace('_', '-').lower()}"
    server.create_bucket(bucket)
    options = {"count": 4000, "interval_ms": 200, "parts": 4, **options}
    url = f"s3://{bucket}/{random.getrandbits(40):x}"
    return ObjectSettings(folder, url=url, options=server.options, **options)


@pytest.mark.connectors
@pytest.mark.parametrize("compact_bytes", [0, 3000])
def test_each_record_is_read_and_written_once_whoever_is_killed(
    s3_server: S3Server, tmp_path: Path, compact_bytes: int
):
    seed = 5 + compact_bytes
    settings = settings_of(s3_server, tmp_path, compact_bytes=compact_bytes)
    words = settings.put_input()
    targets = ("worker", "jobmanager", "both")
    killer = Killer(random.Random(seed), kills=4, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=objects_job)  # type: ignore[arg-type]
    assert len(killer.killed) >= 4, f"seed {seed}"
    assert lost_and_doubled(settings.read_output(), words) == (0, 0)
    staged = [path for path in settings.job.rglob("*") if path.is_file() and "staging" in str(path)]
    assert staged == [], "staged files were not removed"


@pytest.mark.connectors
def test_a_job_rescaled_with_staged_output_publishes_it(s3_server: S3Server, tmp_path: Path):
    settings = settings_of(s3_server, tmp_path, parallelism=3)
    words = settings.put_input()
    killer = Killer(random.Random(3), kills=2, targets=("jobmanager",), gate=settings.gate)
    parallelisms = iter((3, 1, 2, 2, 2))

    def job(one: ObjectSettings) -> Any:
        env = objects_job(one)
        return env.set_parallelism(next(parallelisms))

    run_to_the_end(settings, killer, job=job)
    assert len(killer.killed) >= 2
    assert lost_and_doubled(settings.read_output(), words) == (0, 0)


@pytest.mark.connectors
def test_a_store_that_stands_still_delays_the_job_and_loses_nothing(tmp_path: Path):
    with S3Server(tmp_path / "server") as server:
        settings = settings_of(server, tmp_path)
        words = settings.put_input()
        snapshots = 0

        def progress(event: dict[str, Any]) -> None:
            nonlocal snapshots
            if event["event"] == "snapshot":
                snapshots += 1
                if snapshots == 2:
                    server.pause()
                    threading.Timer(7, server.resume).start()
                    let_all_go(settings.gate)

        from tests.processes.harness import run

        run(objects_job(settings), progress=progress)
        assert snapshots >= 2
        assert lost_and_doubled(settings.read_output(), words) == (0, 0)


class _Refusing(BaseHTTPRequestHandler):
    """Answers as S3 does to a wrong key."""

    def do_GET(self) -> None:
        body = b"<?xml version='1.0'?><Error><Code>InvalidAccessKeyId</Code></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_HEAD = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        pass


def test_wrong_credentials_are_said_before_the_job_starts():
    with HTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            store = ObjectStore(
                "s3://bucket/in",
                endpoint=f"http://127.0.0.1:{server.server_port}",
                access_key_id="a",
                secret_access_key="b",
                region="us-east-1",
            )
            for connector in (ObjectStoreSource(store), ObjectStoreSink(store)):
                with pytest.raises(GraphError, match="the store refuses the credentials"):
                    connector.validate()
        finally:
            server.shutdown()
            thread.join()


def test_the_example_counts_words():
    pytest.importorskip("pyarrow")
    example = Path(__file__).parents[3] / "examples/connectors/object_store.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["be 1", "be 2", "not 1"]
