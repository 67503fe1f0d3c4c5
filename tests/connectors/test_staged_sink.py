"""Sinks that stage and publish by transactions: the protocol, its guards, and every fault."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import JobError
from penstock.connectors.staged_sink import SinkPlace, StagedCommitter
from penstock.dataflow.errors import Recoverability
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.sink import Committable, CommitterContext, WriterContext
from penstock.testing.connectors import FakeSystem, FakeTargetSink, SinkConformance
from tests.sizes import sized

LINEAGE, UID = "0a1b2c3d", "sink-1"
KEY = SinkPlace(LINEAGE, UID, "Sink").key


class TestFakeTarget(SinkConformance):
    whole_snapshots = True

    @pytest.fixture(autouse=True)
    def systems(self) -> Iterator[None]:
        self.found: dict[str, FakeSystem] = {}
        yield
        for system in self.found.values():
            system.__exit__()

    def create_sink(self, place: Path) -> FakeTargetSink:
        if place.name not in self.found:
            self.found[place.name] = FakeSystem(place.name)
        return FakeTargetSink(place.name)

    def read_output(self, place: Path) -> Sequence[Any]:
        return self.found[place.name].records


@pytest.fixture
def system() -> Iterator[FakeSystem]:
    with FakeSystem("system") as system:
        yield system


class Job:
    """Stages output, and has JobManagers that publish it."""

    def __init__(self, folder: Path, sink: str = "system") -> None:
        self.staging, self.sink = folder / "staging", FakeTargetSink(sink)
        self.snapshots = 0
        self.files = 0

    def stage(self, *records: Any, subtask: int = 0, snapshot: int | None = None) -> Committable:
        self.files += 1
        writer = self.sink.create_writer(
            WriterContext(UID, "Sink", subtask, 2, self.files, LINEAGE, MetricGroup(), self.staging)
        )
        if snapshot is None:
            self.snapshots += 1
            snapshot = self.snapshots
        writer.open()
        writer.write(list(records))
        finish = writer.prepare(snapshot)
        assert finish is not None
        [payload] = finish()
        writer.close()
        return Committable(LINEAGE, UID, subtask, snapshot, self.files, payload)

    def committer(self, **run: Any) -> StagedCommitter:
        committer = StagedCommitter(self.sink)
        run = {"restored": self.snapshots, "staging": (self.staging,), "lineage": LINEAGE, **run}
        committer.open(CommitterContext("Sink", **run))
        return committer


def test_the_output_of_all_subtasks_of_a_snapshot_is_one_transaction_in_order(tmp_path, system):
    job = Job(tmp_path)
    output = [job.stage(1, 2), job.stage(3, subtask=1, snapshot=1), job.stage(4)]
    steps = []
    system.hook = steps.append
    job.committer().commit(output)
    assert system.records == [1, 2, 3, 4]
    assert steps.count("commit") == 2
    assert not list(job.staging.iterdir())


def test_a_new_process_publishes_only_what_the_marker_does_not_cover(tmp_path, system):
    job = Job(tmp_path)
    output = [job.stage(1), job.stage(2)]
    job.committer().commit(output[:1])
    job.committer().commit(output)
    job.committer().commit(output)
    assert system.records == [1, 2]
    assert system.markers[KEY].number == 2


def test_an_old_jobmanager_that_goes_on_publishes_nothing_twice(tmp_path, system):
    job = Job(tmp_path)
    old, new = job.committer(), job.committer()
    first, second = job.stage(1), job.stage(2)
    old.commit([first])
    new.commit([second])
    old.commit([second])
    new.commit([second])
    assert system.records == [1, 2]


@pytest.mark.parametrize("seed", range(sized(200, 5_000)))
def test_whatever_fails_nothing_is_lost_or_doubled(tmp_path, seed):
    rng = random.Random(seed)
    with FakeSystem(f"system {seed}", failure_rate=0.3, seed=seed) as system:
        job = Job(tmp_path, system.name)
        committers = [job.committer()]
        pending: list[Committable] = []
        expected = []
        for number in range(1, 8):
            records = [[number, index] for index in range(rng.randrange(1, 5))]
            expected += records
            cut = rng.randrange(len(records) + 1)
            for subtask, part in enumerate((records[:cut], records[cut:])):
                if part:
                    pending.append(job.stage(*part, subtask=subtask, snapshot=number))
            job.snapshots = number
            while rng.random() < 0.7 or number == 7:
                if rng.random() < 0.2:
                    committers.append(job.committer())
                # The last one is the JobManager. Earlier ones are zombies.
                committer = committers[-1] if number == 7 else rng.choice(committers[-2:])
                committer.open(CommitterContext("Sink", LINEAGE, number, staging=(job.staging,)))
                try:
                    committer.commit(list(pending))
                except ConnectionError:
                    continue
                if number == 7:
                    break
        assert system.records == expected
        assert system.faults


def test_a_marker_beyond_the_restored_snapshot_is_refused(tmp_path, system):
    job = Job(tmp_path)
    job.committer().commit([job.stage(1), job.stage(2), job.stage(3)])
    behind = job.committer(restored=2)
    with pytest.raises(JobError, match=r"has the output of snapshot 3 already.*from snapshot 2"):
        behind.clean(LINEAGE, UID, 9)
    fork = job.committer(restored=0, lineage="ffff")
    fork.clean("ffff", UID, 9)
    fork.commit([Committable("ffff", UID, 0, 3, 1, job.stage("again").payload)])
    assert system.records == [1, 2, 3, "again"]


def test_a_fork_of_a_running_job_leaves_the_output_of_its_parent_alone(tmp_path, system):
    job = Job(tmp_path)
    parent, output = job.committer(), [job.stage(1), job.stage(2)]
    parent.commit(output)
    job.committer(restored=0, lineage="ffff").commit(output[:1])
    third = job.stage(3)
    parent.commit([third])
    assert system.records == [1, 2, 3]


def test_a_marker_that_is_gone_is_refused_until_the_user_says_what_is_there(tmp_path, system):
    job = Job(tmp_path)
    output = [job.stage(1), job.stage(2)]
    job.committer().commit(output[:1])
    system.markers.clear()
    confirmed = {(LINEAGE, UID): 1}
    with pytest.raises(JobError, match=f"--sink-marker UID=2 .*'{UID}'") as refused:
        job.committer(confirmed=confirmed).commit(output[1:])
    assert refused.value.recoverability is Recoverability.NON_RECOVERABLE
    job.committer(confirmed=confirmed, marker=1).commit(output[1:])
    assert system.records == [1, 2]


def test_a_marker_that_is_older_than_what_was_published_is_refused(tmp_path, system):
    job = Job(tmp_path)
    output = [job.stage(1), job.stage(2), job.stage(3)]
    committer = job.committer()
    committer.commit(output[:1])
    old = dict(system.markers)
    committer.commit(output[1:2])
    system.markers |= old  # a failover to a server that was behind
    system.epochs[KEY] += 1
    with pytest.raises(JobError, match=r"up to snapshot 1 only, and had it up to snapshot 2"):
        committer.commit(output[2:])
    confirmed = {(LINEAGE, UID): 2}
    with pytest.raises(JobError, match=f"--sink-marker UID=2; the uid is '{UID}'") as refused:
        job.committer(confirmed=confirmed).clean(LINEAGE, UID, 9)
    assert refused.value.recoverability is Recoverability.NON_RECOVERABLE
    job.committer(confirmed=confirmed, marker=2).commit(output[2:])
    assert system.records == [1, 2, 3]


def test_a_marker_that_may_have_expired_is_refused(tmp_path, system, monkeypatch):
    job = Job(tmp_path)
    output = [job.stage(1)]
    monkeypatch.setattr("penstock.testing.connectors.fake_target._FakeTarget.marker_seconds", 100.0)
    with pytest.raises(JobError, match="limited time only"):
        job.committer(age_seconds=95.0).commit(output)
    job.committer(age_seconds=60.0).commit(output)
    assert system.records == [1]


def test_other_output_of_the_same_snapshot_is_refused(tmp_path, system):
    one, other = Job(tmp_path / "one"), Job(tmp_path / "other")
    one.committer().commit([one.stage(1)])
    with pytest.raises(JobError, match="another run of this job has published other output"):
        other.committer(restored=1).commit([other.stage(2)])
    assert system.records == [1]


def test_a_damaged_or_removed_staged_file_is_never_published(tmp_path, system):
    job = Job(tmp_path)
    for damaged in (lambda data: data[:-1], lambda data: bytes(len(data)), lambda data: data * 2):
        item = job.stage([1, 2, 3])
        path = job.staging / item.payload["staged"]
        path.write_bytes(damaged(path.read_bytes()))
        with pytest.raises((JobError, ValueError)):
            job.committer().commit([item])
    item = job.stage(1)
    (job.staging / item.payload["staged"]).unlink()
    with pytest.raises(JobError, match="is lost"):
        job.committer().commit([item])
    assert system.records == []


def test_a_payload_that_names_another_file_is_refused(tmp_path, system):
    job = Job(tmp_path)
    for payload in ({"staged": "../secret"}, {"staged": 3}, "name", None):
        with pytest.raises(JobError, match="has not staged"):
            job.committer().commit([Committable(LINEAGE, UID, 0, 1, 1, payload)])


def test_cleaning_removes_files_of_earlier_attempts_only(tmp_path, system):
    job = Job(tmp_path)
    items = [job.stage(1), job.stage(2)]
    committer = job.committer()
    assert committer.clean(LINEAGE, UID, 2) == 1
    assert committer.clean(LINEAGE, "another", 9) == 0
    assert [path.name for path in job.staging.iterdir()] == [items[1].payload["staged"]]
