"""Records on an edge of a running job are looked at, which changes nothing in the job."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from click.testing import CliRunner

from penstock.cli import main
from tests.processes.harness import wait_until
from tests.rest.served import Client
from tests.runtime.dispatcher.service import Service

PROGRAM = """
import sys
from penstock import FileSink, JsonLines, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
env.config.max_parallelism = 8
numbers = env.from_generator(lambda i: i, None, 500).uid("numbers")
named = numbers.map(lambda i: (f"key {i % 5}", i)).name("Named").uid("named")
counts = named.key_by(lambda pair: pair[0]).count().name("Counts").uid("counts")
counts.rebalance().map(lambda pair: pair[1]).set_parallelism(1).sink_to(
    FileSink(sys.argv[1], JsonLines())
)
env.execute("edges")
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.end()


def submitted(service: Service, *options: str) -> str:
    (service.root / "edges.py").write_text(PROGRAM)
    args = ("submit", "edges.py", "--checkpoint-dir", "ck", "-p", "2", "--detach", "--", "out")
    said = service.said(service.start(*options))
    assert service.call(*args).stdout.split()[0] == "1"
    service.begun("1")
    return said


def looked(service: Service, edge: str, *options: str) -> CompletedProcess[str]:
    """Look at an edge for a second, again if no record came because the machine stood still."""

    def one() -> CompletedProcess[str] | None:
        done: CompletedProcess[str] = service.call("tail", "1", "--edge", edge, "--once", *options)
        return done if done.stdout else None

    found = wait_until(one, "records were seen")
    assert isinstance(found, CompletedProcess)
    return found


def test_the_command_shows_records_of_an_edge(service: Service) -> None:
    submitted(service)
    done = looked(service, "named->counts", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["subtask"] for row in rows} <= {0, 1}
    assert all(re.fullmatch(r"\('key [0-4]', \d+\)", row["record"]) for row in rows)
    assert re.search(rf"named->counts: {len(rows)} of [\d,]+ records in 1 s", done.stderr)
    done = looked(service, "Named->Counts", "--limit", "1")
    assert len(done.stdout.splitlines()) <= 2 and "('key " in done.stdout
    done = service.call("tail", "1", "--edge", "named->nothing", "--once", code=1)
    assert "has no edge 'named->nothing'; it has these edges between tasks: 0 " in done.stderr
    assert "has not one edge" in service.call("tail", "1", "--once", code=1).stderr
    assert "there is no job 7" in service.call("tail", "7", "--once", code=1).stderr
    # It looks until it is ended.
    process = service.background("tail", "1", "--edge", "0")
    wait_until(lambda: service.job("1")["last_snapshot"], "a snapshot")
    assert process.poll() is None
    process.kill()
    job = service.job("1")
    assert job["state"] == "running" and job["restarts"] == 0
    service.call("cancel", "1")
    done = service.call("tail", "1", "--edge", "0", "--once", code=1)
    assert "job 1 does not run" in done.stderr


def test_a_worker_is_killed_while_its_records_are_looked_at(service: Service) -> None:
    service.start()
    id = service.count("looked", "endless", "-p", "2")
    before = service.begun(id)
    process = service.background("tail", id, "--edge", "0")
    os.kill(before["worker_pids"][0], signal.SIGKILL)
    wait_until(lambda: service.job(id)["restarts"], "a restart", every=0.05)
    service.begun(id)
    wait_until(lambda: tails(service, id), "the new tasks are looked at")
    process.kill()
    service.call("cancel", id)
    assert service.lost_and_doubled("looked") == (0, 0)


def tails(service: Service, id: str) -> bool:
    """Return whether records of a job can be looked at."""
    done = CliRunner().invoke(
        main, ["tail", "--dir", str(service.home), id, "--edge", "0", "--once"]
    )
    return done.exit_code == 0


def test_the_api_shows_records_to_those_who_may_order(service: Service) -> None:
    said = submitted(service, "--ui", "0")
    found = re.search(r"HTTP API at http://127\.0\.0\.1:(\d+)/v1", said)
    assert found is not None
    tokens = [(service.home / "http" / name).read_text() for name in ("token", "read-token")]
    full, read_only = (Client(int(found[1]), token) for token in tokens)

    def ask(edge: str, body: object = None, client: Client = full):
        return client.ask(f"/jobs/1/edges/{edge}/records", method="POST", body=body or {})

    edges = [
        one
        for node in full.ask("/jobs/1").json["plan"]["nodes"]
        for one in node["inputs"]
        if one["producer"] == "named"
    ]
    (edge,) = (one["edge"] for one in edges)
    answer = ask(str(edge), {"limit": 3, "seconds": 0.5})
    assert answer.status == 200
    assert (answer.json["producer"], answer.json["consumer"]) == ("named", "counts")
    assert answer.json["seen"] >= len(answer.json["records"]) <= 6
    assert ask(str(edge), client=read_only).status == 403
    assert ask(str(edge), client=Client(int(found[1]), "wrong")).status == 401
    assert ask("99").status == 404 and "it has these edges" in ask("99").json["errors"][0]
    assert full.ask("/jobs/7/edges/0/records", method="POST", body={}).status == 404
    for body in ({"seconds": 60}, {"limit": 0}, {"limit": "all"}):
        assert ask("0", body).status == 400
    # Not over the requests of the command line either.
    wanted = {"do": "sample edge", "id": "1", "edge": "0"}
    assert read_only.ask("/requests", method="POST", body=wanted).status == 403
    service.call("cancel", "1")
    wait_until(lambda: ask("0").status == 409, "the job has ended", every=0.05)
