"""Jobs with snapshots in an object store: killed, moved, and with faults of the store."""

from __future__ import annotations

import itertools
import json
import random
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock import JobError, RestartStrategies, StoreError, StreamExecutionEnvironment
from penstock import open_snapshot as penstock_snapshot
from penstock.cli import main
from penstock.dataflow.errors import PenstockError
from penstock.snapshot.storage.objects.obstore_objects import ObstoreObjects
from penstock.snapshot.storage.objects.snapshot_log import SnapshotLog
from penstock.testing.servers.s3 import S3Server
from tests.processes.faulty_s3 import FaultyS3, is_entry, is_file, is_listing
from tests.processes.harness import (
    WORDS,
    Killer,
    Settings,
    committed,
    counting_job,
    expected_words,
    lost_and_doubled,
    run,
    run_to_the_end,
)
from tests.processes.parts import let_all_go
from tests.sizes import sized


class Cloud:
    """A bucket, and machines that have nothing but its URL."""

    def __init__(self, folder: Path, server: S3Server, environment: pytest.MonkeyPatch) -> None:
        name = f"snapshots-{secrets.token_hex(6)}"
        server.create_bucket(name)
        self.url = f"s3://{name}/jobs/counting"
        self.folder, self.environment = folder, environment
        self._machines = itertools.count()
        for variable, value in (
            ("AWS_ENDPOINT_URL", server.endpoint),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
        ):
            environment.setenv(variable, value)
        self.new_machine()

    def new_machine(self) -> None:
        """Let the jobs to come run without the local folders of those before."""
        self.cache = self.folder / f"machine{next(self._machines)}"
        self.environment.setenv("XDG_CACHE_HOME", str(self.cache))

    def job(self, settings: Settings) -> StreamExecutionEnvironment:
        """Return the counting job, with its snapshots in the bucket."""
        env = counting_job(settings)
        env.get_checkpoint_config().set_checkpoint_storage_dir(self.url)
        return env

    def job_elsewhere(self, settings: Settings) -> StreamExecutionEnvironment:
        """Return the counting job on a new machine."""
        self.new_machine()
        return self.job(settings)

    def log(self) -> SnapshotLog:
        """Return the log of the snapshots in the bucket."""
        log = SnapshotLog(ObstoreObjects(self.url), "")
        log.read()
        return log


@pytest.fixture
def cloud(tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    return Cloud(tmp_path, s3_server, monkeypatch)


@pytest.fixture
def faulty(cloud: Cloud, s3_server: S3Server) -> Iterator[FaultyS3]:
    with FaultyS3(s3_server.address).running() as server:
        cloud.environment.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield server


def _check(settings: Settings) -> None:
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


@pytest.mark.parametrize(
    ("target", "inline_threshold"), [("worker", 0), ("jobmanager", 0), ("both", 64 * 1024)]
)
def test_killed_processes_lose_and_double_nothing(
    tmp_path: Path, cloud: Cloud, target: str, inline_threshold: int
) -> None:
    # Each JobManager that dies is followed by one on another machine.
    settings = Settings(tmp_path, count=30_000, inline_threshold=inline_threshold, parts=4)
    killer = Killer(random.Random(17), kills=3, targets=(target,), gate=settings.gate)
    run_to_the_end(settings, killer, job=cloud.job_elsewhere)
    assert len(killer.killed) >= 3
    if target == "jobmanager":
        assert len([event for event in killer.events if event["event"] == "resumed"]) >= 1
    _check(settings)


@pytest.mark.parametrize("seed", range(sized(2, 10)))
def test_kills_in_any_phase_with_faults_lose_and_double_nothing(
    tmp_path: Path, cloud: Cloud, faulty: FaultyS3, seed: int
) -> None:
    # Each seventh request fails.
    well: list[str | None] = [None] * 6
    faults = itertools.cycle([*well, "500", *well, "cut", *well, "cut after"])
    faulty.fault = lambda method, path: next(faults)
    settings = Settings(tmp_path, rate=40_000, interval_ms=30, inline_threshold=0, parts=5)
    targets = ("worker", "jobmanager", "both")
    killer = Killer(
        random.Random(seed), kills=4, targets=targets, after_snapshots=None, gate=settings.gate
    )
    run_to_the_end(settings, killer, job=cloud.job_elsewhere)
    assert len(killer.killed) >= 4, f"seed {seed}"
    assert all(faulty.faults[kind] for kind in ("500", "cut", "cut after")), faulty.faults
    _check(settings)


def test_files_are_sent_once(tmp_path: Path, cloud: Cloud, faulty: FaultyS3) -> None:
    settings = Settings(tmp_path, inline_threshold=0)
    events: list[dict[str, Any]] = []
    run(cloud.job(settings), progress=events.append)
    sent = [path for method, path in faulty.requests if method == "PUT" and is_file(path)]
    contents = [path.rpartition("/")[2] for path in sent]
    assert contents and len(set(contents)) == len(contents)
    taken = [event for event in events if event["event"] == "snapshot"]
    assert sum(event["files_sent"] for event in taken) == len(sent)
    sizes = [int(content.rpartition(".")[2]) for content in contents]
    assert sum(event["bytes_sent"] for event in taken) == sum(sizes)
    _check(settings)


class Finisher:
    """Lets all records of a job come when a condition holds; called with the job's events."""

    def __init__(self, settings: Settings, enough: Callable[[list[dict[str, Any]]], bool]) -> None:
        self.events: list[dict[str, Any]] = []
        self._gate, self._enough = settings.gate, enough

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if self._enough(self.events):
            let_all_go(self._gate)

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the events with this name."""
        return [event for event in self.events if event["event"] == name]


def _aborted(events: list[dict[str, Any]]) -> list[str]:
    return [event["reason"] for event in events if event["event"] == "aborted"]


def _tolerant(cloud: Cloud, settings: Settings, timeout: float) -> StreamExecutionEnvironment:
    env = cloud.job(settings)
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(1000)
    env.config.checkpoint_timeout_seconds = timeout
    return env


@pytest.mark.parametrize("kind", ["500", "cut", "slow"])
def test_a_store_that_fails_delays_snapshots_and_not_the_job(
    tmp_path: Path, cloud: Cloud, faulty: FaultyS3, kind: str
) -> None:
    settings = Settings(tmp_path, inline_threshold=0, parts=2)

    def named(reasons: list[str]) -> bool:
        return any("cannot write s3://" in reason and "500" in reason for reason in reasons)

    def enough(events: list[dict[str, Any]]) -> bool:
        reasons = _aborted(events)
        # On a slow machine, the time of some snapshots is over before a request has failed.
        wanted = kind != "500" or named(reasons) or len(reasons) >= 100
        done = len(reasons) >= 2 and wanted
        if done:
            faulty.fault = lambda method, path: None
            faulty.released.set()
        return done

    faulty.fault = lambda method, path: kind if method == "PUT" and is_file(path) else None
    finisher = Finisher(settings, enough)
    result = run(_tolerant(cloud, settings, 1.0), progress=finisher)
    assert result.restarts == []
    reasons = _aborted(finisher.events)
    assert len(reasons) >= 2
    assert kind != "500" or named(reasons), reasons
    assert faulty.faults[kind]
    _check(settings)


def test_a_store_that_refuses_ends_the_job_with_a_reason(
    tmp_path: Path, cloud: Cloud, faulty: FaultyS3
) -> None:
    settings = Settings(tmp_path, inline_threshold=0, parts=2)
    faulty.fault = lambda method, path: "403" if method == "PUT" and is_file(path) else None
    with pytest.raises(StoreError, match="the store refuses the credentials"):
        run(cloud.job(settings))
    faulty.fault = lambda method, path: "403"
    with pytest.raises(StoreError, match="the store refuses the credentials"):
        run(cloud.job(settings), resume="newest")


def test_a_listing_that_lags_hides_no_snapshot(
    tmp_path: Path, cloud: Cloud, faulty: FaultyS3
) -> None:
    settings = Settings(tmp_path, inline_threshold=0, parts=3)
    killer = Killer(random.Random(3), kills=2, targets=("jobmanager",), gate=settings.gate)
    faulty.fault = lambda method, path: "empty" if is_listing(path) else None
    run_to_the_end(settings, killer, job=cloud.job_elsewhere)
    assert len(killer.killed) >= 2 and faulty.faults["empty"]
    _check(settings)


def test_a_manifest_whose_answer_was_lost_counts_once(
    tmp_path: Path, cloud: Cloud, faulty: FaultyS3
) -> None:
    settings = Settings(tmp_path, inline_threshold=0)
    entries = itertools.count()

    def fault(method: str, path: str) -> str | None:
        # A slow machine takes only a few snapshots, so the first one is among them.
        lost = method == "PUT" and is_entry(path) and next(entries) % 2 == 0
        return "cut after" if lost else None

    faulty.fault = fault
    run(cloud.job(settings))
    assert faulty.faults["cut after"]
    _check(settings)


def test_a_jobmanager_that_was_replaced_ends(tmp_path: Path, cloud: Cloud) -> None:
    settings = Settings(tmp_path, inline_threshold=0, parts=2)
    took_over = False

    def take_over(event: dict[str, Any]) -> None:
        nonlocal took_over
        if event["event"] == "snapshot" and not took_over:
            took_over = True
            SnapshotLog(ObstoreObjects(cloud.url), "another").take_over()

    env = cloud.job(settings)
    with pytest.raises(StoreError, match="another JobManager has taken the job over"):
        run(env, progress=take_over)
    assert took_over
    let_all_go(settings.gate)
    run(cloud.job_elsewhere(settings), resume="newest")
    _check(settings)


def test_a_run_from_the_beginning_takes_no_job_over(tmp_path: Path, cloud: Cloud) -> None:
    settings = Settings(tmp_path, count=5_000, inline_threshold=0)
    run(cloud.job(settings))
    newest = cloud.log().newest
    with pytest.raises(StoreError, match="the store already holds snapshot"):
        run(cloud.job_elsewhere(settings))
    assert cloud.log().newest == newest


def _without_counts(cloud: Cloud) -> StreamExecutionEnvironment:
    """Return a program on a new machine that lacks the operator with the counts."""
    cloud.new_machine()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_checkpoint_config().set_checkpoint_storage_dir(cloud.url)
    env.from_collection(["a"]).uid("words").print().uid("files")
    return env


def test_a_run_that_does_not_fit_takes_no_job_over(tmp_path: Path, cloud: Cloud) -> None:
    settings = Settings(tmp_path, inline_threshold=0, parts=2)
    taken: list[int] = []
    refused: list[str] = []

    def refuse(event: dict[str, Any]) -> None:
        if event["event"] == "snapshot":
            taken.append(event["number"])
        if len(taken) > 1 and not refused:
            requests: list[tuple[StreamExecutionEnvironment, dict[str, Any]]] = [
                (_without_counts(cloud), {"resume": "newest"}),
                (cloud.job_elsewhere(settings), {"resume": taken[0]}),
                (cloud.job_elsewhere(settings), {"resume": str(tmp_path / "a"), "fork": True}),
            ]
            for env, options in requests:
                with pytest.raises(PenstockError) as caught:
                    run(env, **options)
                refused.append(str(caught.value))
            let_all_go(settings.gate)

    # The job runs on, and ends: it was not replaced.
    env = cloud.job(settings)
    env.get_checkpoint_config().set_retained_checkpoints(1000)
    run(env, progress=refuse)
    misfit, older, elsewhere = refused
    assert "count (Reduce): dropped" in misfit and "--allow-dropped" in misfit
    assert "not the newest" in older and "--fork" in older
    assert "the store already holds snapshot" in elsewhere and str(tmp_path / "a") in elsewhere
    _check(settings)


def test_a_fork_starts_from_a_url(tmp_path: Path, cloud: Cloud) -> None:
    settings = Settings(tmp_path / "a", count=5_000, inline_threshold=0)
    run(cloud.job(settings))
    parent = cloud.log().newest
    other = replace(settings, folder=tmp_path / "b")
    run(counting_job(other), resume=cloud.url, fork=True)
    # The parent had read all of its input, so the fork has none of it left.
    assert committed(other.output) == []
    assert cloud.log().newest == parent
    assert not (other.job / "work" / "fetched").exists()


def test_a_wrong_place_is_refused(tmp_path: Path, cloud: Cloud) -> None:
    settings = Settings(tmp_path)
    env = cloud.job(settings)
    env.get_checkpoint_config().set_checkpoint_storage_dir("s3://no-such-bucket/job")
    with pytest.raises(StoreError, match="there is no bucket for s3://no-such-bucket/job"):
        run(env)
    env = cloud.job(settings)
    env.set_restart_strategy(RestartStrategies.no_restart())
    shutil.rmtree(cloud.cache, ignore_errors=True)
    with pytest.raises((StoreError, JobError), match=r"cannot (read|write) s3://"):
        cloud.environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        env.config.checkpoint_timeout_seconds = 1.0
        run(env)


def test_commands_read_and_copy_a_store(tmp_path: Path, cloud: Cloud) -> None:
    settings = Settings(tmp_path, count=5_000, inline_threshold=0)
    run(cloud.job(settings))
    number = max(cloud.log().live)

    def penstock(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["snapshots", *words])
        assert result.exit_code == code, result.output
        return result.output

    listed = json.loads(penstock("list", cloud.url, "--json", "--verify"))
    assert listed["job"] == "counting"
    assert [row["number"] for row in listed["snapshots"]] == sorted(cloud.log().live)
    assert json.loads(penstock("show", cloud.url, "--json"))["number"] == number
    assert "have their checksums" in penstock("verify", cloud.url)
    folder, copy = tmp_path / "copy", f"{cloud.url}-copy"
    penstock("copy", cloud.url, str(folder))
    assert penstock("copy", str(folder), copy).strip() == copy
    assert "has snapshots already" in penstock("copy", str(folder), copy, code=1)
    with penstock_snapshot(cloud.url) as before, penstock_snapshot(copy) as after:
        assert before.number == after.number == number
        entries = [{entry.key: entry.value for entry in one.entries()} for one in (before, after)]
    assert entries[0] == entries[1] and len(entries[0]) == WORDS
    assert penstock("diff", cloud.url, copy).strip() == "no differences"
    # The copy is the store of the job from now on.
    cloud.url = copy
    run(cloud.job_elsewhere(settings), resume="newest")
    _check(settings)
    assert "no snapshots of a job" in penstock("list", f"{cloud.url}-none", code=1)
    assert "no bucket for s3://no-such-bucket/x" in penstock(
        "list", "s3://no-such-bucket/x", code=1
    )
