"""Queries of the state of a running job: by its program, on the command line and over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from penstock import (
    FileSink,
    GraphError,
    JobClient,
    JobError,
    JobStatus,
    JsonLines,
    StateAnswer,
    StoreError,
    StreamExecutionEnvironment,
)
from penstock.cli import main
from tests.processes.harness import PATIENCE, gone, wait_until
from tests.rest.served import Client
from tests.runtime.dispatcher.service import Service

JOB = """
from typing import NamedTuple
from penstock import KeyedProcessFunction, MapStateDescriptor, StreamExecutionEnvironment
from penstock import ValueStateDescriptor


class Order(NamedTuple):
    user: str
    amount: int


class Last(KeyedProcessFunction):
    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last"))
        self.seen = context.get_map_state(MapStateDescriptor("seen"))

    def process_element(self, order, context):
        self.last.update(order)
        self.seen.put(order.amount % 3, order.amount)
        yield order


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(50)
orders = env.from_generator(lambda i: Order(f"u{i % 10}", i), None, 2000)
orders.key_by(lambda order: order.user).process(Last()).uid("orders").print()
env.execute("orders")
"""


def counting(folder: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(50)
    env.set_parallelism(2)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    numbers = env.from_generator(lambda i: f"k{i % 10}", None, 2000)
    counts = numbers.key_by(lambda word: word).count().uid("count")
    counts.sink_to(FileSink(folder / "out", JsonLines()))
    return env


def running(client: JobClient) -> None:
    """Wait until a job has a snapshot with the counts of all keys."""

    def counted() -> bool:
        try:
            return len(client.query_state("count", "value").result().entries) == 10
        except (StoreError, GraphError):
            return False

    wait_until(counted, "a snapshot has all keys")


def value(answer: StateAnswer) -> int:
    (entry,) = answer.entries
    return int(entry.value)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[JobClient]:
    one = counting(tmp_path).execute_async("counting")
    try:
        running(one)
        yield one
    finally:
        one.cancel().result()


def test_a_program_queries_its_job_live_and_in_the_newest_snapshot(client: JobClient):
    saved = client.query_state("count", "value", "k3").result()
    assert saved.snapshot is not None and saved.age_seconds is not None and not saved.live
    live = client.query_state("count", "value", "k3", live=True).result()
    assert live.live and live.snapshot is None and live.age_seconds is None
    assert value(live) >= value(saved) > 0
    wait_until(
        lambda: value(client.query_state("count", "value", "k3", live=True).result()) > value(live),
        "the job goes on",
    )
    for is_live in (False, True):
        ask = client.query_state
        best = ask("count", "value", top=3, live=is_live).result().entries
        assert len(best) == 3 and best[0].value >= best[1].value >= best[2].value
        some = ask("count", "value", prefix="k", limit=4, live=is_live).result()
        assert len(some.entries) == 4 and some.more
        assert ask("count", "value", "k77", live=is_live).result().entries == []


@pytest.mark.parametrize("live", [False, True])
def test_questions_without_an_answer_are_refused_with_a_sentence(client: JobClient, live: bool):
    for arguments, text in [
        (("cuont", "value", "k1"), "cuont"),
        (("count", "values", "k1"), "'values'"),
        (("count", "value", 5), "another type than 5"),
        (("count", "value", ["k1", {}]), "cannot be a key"),
    ]:
        with pytest.raises(GraphError, match=text):
            client.query_state(*arguments, live=live).result()
    with pytest.raises(GraphError, match="only one of"):
        client.query_state("count", "value", "k1", top=3, live=live)
    with pytest.raises(GraphError, match="between 1 and"):
        client.query_state("count", "value", limit=0, live=live)


@pytest.mark.slow
def test_a_live_query_of_a_job_whose_worker_dies_has_an_answer(tmp_path: Path):
    env = counting(tmp_path)
    client = env.execute_async("counting")
    try:
        running(client)
        workers = _workers_of(_jobmanager())
        assert len(workers) == 2
        # Workers that are stopped cannot answer before they are killed.
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        asked = client.query_state("count", "value", "k1", live=True)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        with pytest.raises(GraphError, match=r"restart|stopped"):
            asked.result(PATIENCE)
        wait_until(lambda: _answers(client), "the job answers again")
        assert client.get_job_status().result() is JobStatus.RUNNING
    finally:
        client.cancel().result()
    with pytest.raises(JobError, match="has ended"):
        client.query_state("count", "value", "k1", live=True).result()


def _answers(client: JobClient) -> bool:
    try:
        return bool(client.query_state("count", "value", "k1", live=True).result(PATIENCE).entries)
    except GraphError:
        return False


def _jobmanager() -> int:
    """The JobManager of this program's only job, which is its child, or a fork of a child."""
    for path in Path("/proc").iterdir():
        # That of an earlier job may be a zombie.
        if path.name.isdecimal() and not gone(int(path.name)):
            pid = int(path.name)
            parent = _parent_of(pid)
            if parent == os.getpid() and b"jobmanager.process" in _command(pid):
                return pid
            if _parent_of(parent) == os.getpid() and b"jobmanager.forks" in _command(parent):
                return pid
    raise AssertionError("this program has no JobManager")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _workers_of(jobmanager: int) -> list[int]:
    """Return the workers of a JobManager: the processes whose task loop runs in its session."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            pid = int(path.name)
            parent = _parent_of(pid)
            # The fork server is a child of the JobManager, and the workers are its children.
            if parent != jobmanager and _parent_of(parent) == jobmanager:
                found.append(pid)
    return found


def test_a_job_without_a_folder_has_no_snapshot_to_query(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_generator(lambda i: i, None, 500).key_by(lambda i: i % 3).count().uid("count").print()
    client = env.execute_async("no folder")
    try:
        with pytest.raises(StoreError, match="live=True"):
            client.query_state("count", "value", 1).result()
        wait_until(lambda: _answers_number(client), "the job answers")
    finally:
        client.cancel().result()


def _answers_number(client: JobClient) -> bool:
    try:
        return bool(client.query_state("count", "value", 1, live=True).result(PATIENCE).entries)
    except GraphError:
        return False


# ---- the service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    one = Service(tmp_path)
    (tmp_path / "orders.py").write_text(JOB)
    yield one
    one.end()


def submitted(service: Service, *args: str) -> tuple[str, Client, Client]:
    """Start a service and a job, and return its id, a client, and one that may only read."""
    process = service.start("--ui", "0", *args)
    found = re.search(r"HTTP API at http://127\.0\.0\.1:(\d+)/v1", service.said(process))
    assert found is not None
    done = service.call("submit", "orders.py", "--checkpoint-dir", "ck", "--detach")
    id = done.stdout.split()[0]
    service.begun(id)
    tokens = [(service.home / "http" / name).read_text() for name in ("token", "read-token")]
    api, reader = (Client(int(found[1]), token) for token in tokens)
    wait_until(lambda: api.ask(f"/jobs/{id}/status").json["status"] == "RUNNING", "it runs")
    path = f"/jobs/{id}/state/orders/last"
    wait_until(lambda: len(entries(api, path)) == 10, "a snapshot has all keys")
    return id, api, reader


def entries(api: Client, path: str) -> list[dict[str, Any]]:
    answer = api.ask(path)
    found: list[dict[str, Any]] = answer.json["entries"] if answer.status == 200 else []
    return found


@pytest.mark.slow
def test_the_state_of_a_job_is_queried_over_http_and_on_the_command_line(service: Service):
    id, api, reader = submitted(service)
    path = f"/jobs/{id}/state"
    names = reader.ask(path).json
    assert {(one["operator"], one["name"], one["kind"]) for one in names["states"]} == {
        ("orders", "last", "value"),
        ("orders", "seen", "map"),
    }
    for live in ("false", "true"):
        asked = reader.ask(f"{path}/orders/last?key={quote(json.dumps('u4'))}&live={live}")
        assert asked.status == 200, asked.body
        (entry,) = asked.json["entries"]
        assert entry["key"] == "u4" and entry["value"]["user"] == "u4"
        assert asked.json["live"] is (live == "true")
        assert (asked.json["snapshot"] is None) is (asked.json["age_seconds"] is None)
        assert (asked.json["snapshot"] is None) is asked.json["live"]
        best = reader.ask(f"{path}/orders/last?top=2&by=value.amount&live={live}").json["entries"]
        assert best[0]["value"]["amount"] > best[1]["value"]["amount"]
        parts = reader.ask(f"{path}/orders/seen?key=%22u4%22&live={live}").json["entries"]
        assert sorted(one["part"] for one in parts) == [0, 1, 2]
        some = reader.ask(f"{path}/orders/last?limit=3&live={live}").json
        assert len(some["entries"]) == 3 and some["more"]
        for wrong, status, text in [
            ("/nothing/last", 404, "nothing"),
            ("/orders/nothing", 404, "nothing"),
            ("/orders/last?key=u4", 400, "no JSON"),
            ("/orders/last?key=5", 400, "another type"),
            ("/orders/last?key=%7B%7D", 400, "cannot be a key"),
            ("/orders/last?key=5&top=1", 400, "only one of"),
            ("/orders/last?top=0", 400, "at least 1"),
            ("/orders/last?top=3&by=valu", 400, "no field"),
        ]:
            mark = "&" if "?" in wrong else "?"
            answer = reader.ask(f"{path}{wrong}{mark}live={live}")
            assert answer.status == status, answer.body
            assert text in answer.json["errors"][0]
    assert reader.ask("/jobs/77/state/orders/last").status == 404

    options = ("orders", "last", "--key", '"u4"')
    saved = json.loads(service.call("query", id, *options, "--json").stdout)
    assert saved["snapshot"] > 0 and saved["entries"][0]["key"] == "u4"
    live_answer = json.loads(service.call("query", id, *options, "--live", "--json").stdout)
    assert live_answer["live"] and live_answer["entries"][0]["value"]["user"] == "u4"
    assert "live: each task" in service.call("query", id, *options, "--live").stderr
    token = ("--token-file", str(service.home / "http" / "read-token"))
    for is_live in ((), ("--live",)):
        words = ("query", id, *options, *is_live, "--json", *token)
        words += ("--service", f"http://127.0.0.1:{api.port}")
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["entries"][0]["value"]["user"] == "u4"
    best = service.call("query", id, "orders", "last", "--top", "2", "--by", "value.amount")
    assert "amount" in best.stdout and "snapshot" in best.stderr
    service.call("query", id, "orders", "last", "--key", '"u99"', "--live", code=1)
    unknown = service.call("query", id, "orders", "lats", "--live", code=1)
    assert "has no state 'lats'" in unknown.stderr

    service.call("stop", id)
    ended = api.ask(f"{path}/orders/last?live=true")
    assert ended.status == 409 and "does not run" in ended.json["errors"][0]
    # The last snapshot can still be queried.
    assert len(entries(api, f"{path}/orders/last")) == 10


@pytest.mark.slow
def test_a_setting_keeps_the_state_from_the_token_that_is_only_for_reading(service: Service):
    id, api, reader = submitted(service, "--ui-private-state")
    path = f"/jobs/{id}/state"
    for one in (path, f"{path}/orders/last", f"{path}/orders/last?live=true"):
        assert api.ask(one).status == 200
        answer = reader.ask(one)
        assert answer.status == 403 and "--ui-private-state" in answer.json["errors"][0]
    assert reader.ask(f"/jobs/{id}").status == 200
