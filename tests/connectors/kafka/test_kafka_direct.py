"""Topics that are written in transactions which are open until their snapshot is complete."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka.admin
import kafka.errors
import pytest

from penstock import GraphError, JobError, Recoverability
from penstock.connectors.formats import SimpleStringSchema
from penstock.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from penstock.connectors.kafka.client import KafkaConnection
from penstock.connectors.kafka.transaction_client import TransactionClient, translate_properties
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.sink import Committable, Committer, CommitterContext, WriterContext
from penstock.testing.connectors import SinkConformance
from penstock.testing.connectors.source_run import SourceRun
from penstock.testing.servers.kafka import KafkaServer
from tests.connectors.kafka.open_transactions import expire_all

LINEAGE = "1f3b"


def values(server: KafkaServer, topic: str) -> list[str]:
    """Return the committed records of a topic."""
    latest = KafkaOffsetsInitializer.latest()
    source = KafkaSource(server.address, topic, SimpleStringSchema(), stopping_offsets=latest)
    return SourceRun(source, 1, None, 100).run()


def direct(server: KafkaServer, topic: str, **properties: Any) -> KafkaSink[Any]:
    return KafkaSink(
        server.address,
        topic,
        SimpleStringSchema(),
        exactly_once_mode="direct",
        transactional_id_prefix=topic,
        # Producers connect in a few milliseconds instead of 50 to 500.
        properties={"enable.sparse.connections": False, **properties},
    )


class TestDirectKafkaSink(SinkConformance):
    parallelisms = (1, 2)
    shared = True

    @pytest.fixture(autouse=True)
    def server(self, kafka_server: KafkaServer) -> None:
        self.kafka = kafka_server
        self.topics: dict[str, str] = {}

    def create_sink(self, place: Path) -> KafkaSink[Any]:
        if place.name not in self.topics:
            self.topics[place.name] = self.kafka.create_topic(partitions=2)
        return direct(self.kafka, self.topics[place.name])

    def read_output(self, place: Path) -> list[str]:
        if self.expires:
            expire_all(self.kafka, self.topics[place.name])
        return values(self.kafka, self.topics[place.name])

    expires = False

    def test_an_older_attempt_that_writes_and_commits_late_changes_nothing(self) -> None:
        """Read when the transactions of the old attempt have expired, for which readers wait."""
        self.expires = True
        super().test_an_older_attempt_that_writes_and_commits_late_changes_nothing()


class Job:
    """The writers and committers of one sink, without a job."""

    def __init__(self, server: KafkaServer) -> None:
        self.server, self.topic = server, server.create_topic()
        self.uid = self.topic
        self.closing: list[Any] = []
        self.transactions = TransactionClient(KafkaConnection(server.address, {}))

    def writer(self, attempt: int, subtask: int = 0, **properties: Any) -> Any:
        context = WriterContext(self.uid, "Kafka", subtask, 2, attempt, LINEAGE, MetricGroup())
        writer = direct(self.server, self.topic, **properties).create_writer(context)
        writer.open()
        self.closing.append(writer)
        return writer

    def committer(self, marker: int | None = None) -> Committer:
        committer = direct(self.server, self.topic).create_committer()
        assert committer is not None
        committer.open(CommitterContext("Kafka", LINEAGE, marker=marker))
        self.closing.append(committer)
        return committer

    def stage(self, writer: Any, snapshot: int, attempt: int, *texts: str) -> Committable:
        """Write records, and return the committable of the snapshot behind them."""
        writer.write(list(texts))
        [payload] = writer.prepare(snapshot)()
        subtask = writer._context.subtask
        return Committable(LINEAGE, self.uid, subtask, snapshot, attempt, payload)

    def read(self) -> list[str]:
        return values(self.server, self.topic)


@pytest.fixture
def job(kafka_server: KafkaServer) -> Iterator[Job]:
    job = Job(kafka_server)
    yield job
    for one in (*job.closing, job.transactions):
        one.close()


def test_a_transaction_is_committed_when_its_writer_is_gone(job: Job):
    first, second = job.writer(10, 0), job.writer(10, 1)
    staged = [job.stage(first, 11, 10, "a", "b"), job.stage(second, 11, 10, "c")]
    first.write(["behind the barrier"])
    first.close()
    second.close()
    assert job.read() == []
    # A JobManager with another number of subtasks commits the same transactions.
    job.committer().commit(staged)
    assert sorted(job.read()) == ["a", "b", "c"]
    job.committer().commit(staged)
    assert sorted(job.read()) == ["a", "b", "c"]


def test_transactions_of_earlier_attempts_that_no_snapshot_has_are_aborted(job: Job):
    zombie = job.writer(10)
    staged = job.stage(zombie, 11, 10, "lost attempt")
    zombie.write(["open"])
    zombie._current.producer.flush()
    committer = job.committer()
    assert committer.clean(LINEAGE, "another", 20) == 0
    assert committer.clean("2222", job.uid, 20) == 0
    assert committer.clean(LINEAGE, job.uid, 10) == 0
    assert committer.clean(LINEAGE, job.uid, 20) == 2
    assert committer.clean(LINEAGE, job.uid, 20) == 0
    successor = job.stage(job.writer(20), 21, 20, "successor")
    # The zombie wakes up: it writes and ends its part, and the old JobManager commits.
    with pytest.raises(JobError):
        zombie.write(["zombie"])
        zombie.prepare(12)()
    with pytest.raises(JobError, match="1 records of snapshot 11"):
        job.committer().commit([staged])
    committer.commit([successor])
    assert job.read() == ["successor"]


def test_a_zombie_that_begins_a_transaction_late_has_no_effect(job: Job):
    committer: Any = job.committer()
    zombie = job.writer(10)
    committer.commit([job.stage(zombie, 11, 10, "a")])
    committer.clean(LINEAGE, job.uid, 20)
    zombie.write(["zombie"])
    zombie.prepare(12)()
    staged = job.stage(job.writer(20), 21, 20, "b")
    committer._next_sweep = 0
    committer.commit([staged])
    assert job.transactions.open_ids(f"{job.topic}/{LINEAGE}-") == []
    assert job.read() == ["a", "b"]
    zombie.write(["zombie"])
    zombie._current.producer.flush()
    committer.finish(LINEAGE, job.uid)
    assert job.transactions.open_ids(f"{job.topic}/{LINEAGE}-") == []


def test_an_expired_transaction_ends_the_job_and_names_what_is_lost(
    job: Job, caplog: pytest.LogCaptureFixture
):
    first, second = job.writer(10, 0), job.writer(10, 1)
    staged = [
        job.stage(first, 11, 10, "a", "b"),
        job.stage(second, 11, 10, "c"),
        job.stage(first, 12, 10, "d"),
    ]
    # The test server never does so itself.
    expired: Any = staged[0].payload
    job.transactions.abort(expired["transaction"])
    for _ in range(2):
        with pytest.raises(JobError) as error:
            job.committer().commit(staged)
        assert error.value.recoverability is Recoverability.NON_RECOVERABLE
        message = str(error.value)
        assert "2 records of 1 transactions cannot be committed" in message
        assert "2 records of snapshot 11 (subtask 0) are lost" in message
        assert "900 seconds" in message or "10 seconds" in message
        assert f"--sink-marker UID=11; the uid is {job.uid!r}" in message
    # Nothing else is lost or doubled.
    assert sorted(job.read()) == ["c", "d"]
    with pytest.raises(JobError):
        job.committer(marker=10).commit(staged)
    with caplog.at_level(logging.WARNING, "penstock.kafka"):
        job.committer(marker=11).commit(staged)
    assert "2 records of snapshot 11 (subtask 0) are lost" in caplog.text
    assert sorted(job.read()) == ["c", "d"]


def test_a_transaction_that_the_brokers_have_forgotten_ends_the_job(job: Job):
    payload = {"transaction": "nobody", "producer": 1, "epoch": 0, "records": 1_000}
    forgotten = Committable(LINEAGE, job.uid, 0, 7, 5, payload)
    with pytest.raises(JobError, match=r"unknown whether 1,000 records of snapshot 7"):
        job.committer().commit([forgotten])
    job.committer(marker=7).commit([forgotten])


def test_a_transaction_of_another_producer_is_not_committed(job: Job):
    writer = job.writer(10)
    staged: Any = job.stage(writer, 11, 10, "a")
    for change in ({"epoch": 3}, {"producer": staged.payload["producer"] + 1}):
        wrong = Committable(*staged.identity, {**staged.payload, **change})
        with pytest.raises(JobError, match="1 records of snapshot 11"):
            job.committer().commit([wrong])
    assert job.read() == []


def test_a_transaction_that_ends_before_its_snapshot_fails_the_snapshot(job: Job):
    writer = job.writer(10)
    writer.write(["a"])
    writer._current.producer.flush()
    job.transactions.abort(writer._current.name)
    finish = writer.prepare(11)
    with pytest.raises(JobError, match="have ended the transaction of snapshot 11") as error:
        finish()
    assert error.value.recoverability is Recoverability.ENVIRONMENT
    assert job.read() == []


def test_a_transaction_that_is_open_for_long_is_reported_and_then_refused(
    job: Job, caplog: pytest.LogCaptureFixture
):
    writer = job.writer(10, **{"transaction.timeout.ms": 100_000})
    writer.write(["a"])
    writer._current.began -= 60
    with caplog.at_level(logging.WARNING, "penstock.kafka"):
        writer.prepare(11)()
    assert "abort it after 100 seconds" in caplog.text
    writer.write(["b"])
    writer._current.began -= 95
    with pytest.raises(JobError, match="Take snapshots more often"):
        writer.prepare(12)()


def test_records_behind_a_barrier_are_sent_when_those_before_it_have_arrived(job: Job):
    writer = job.writer(10, **{"linger.ms": 300})
    writer.write(["a"])
    before = writer._current.producer.client
    finish = writer.prepare(11)
    assert len(before) == 1
    writer.write(["b"])
    assert len(before) == 0
    payloads = [*finish(), *writer.prepare(12)()]
    staged = [Committable(LINEAGE, job.uid, 0, 11 + n, 10, one) for n, one in enumerate(payloads)]
    job.committer().commit(staged)
    assert job.read() == ["a", "b"]


def test_a_writer_that_closes_leaves_no_transaction_without_a_snapshot_open(job: Job):
    writer = job.writer(10)
    staged = job.stage(writer, 11, 10, "a")
    writer.write(["b"])
    finish = writer.prepare(12)
    writer.write(["c"])
    writer.close()
    with pytest.raises(JobError, match="was closed"):
        finish()
    name: Any = staged.payload
    assert job.transactions.open_ids(name["transaction"][:-2]) == [name["transaction"]]
    job.committer().commit([staged])
    assert job.read() == ["a"]


def test_a_commit_whose_answer_is_lost_is_not_an_error(job: Job, monkeypatch: Any):
    staged = job.stage(job.writer(10), 11, 10, "a")
    commit, failures = TransactionClient.commit, []

    def fail(self: Any, *arguments: Any) -> None:
        commit(self, *arguments)
        failures.append(arguments)
        self.close()
        raise JobError("no answer", recoverability=Recoverability.ENVIRONMENT)

    monkeypatch.setattr(TransactionClient, "commit", fail)
    job.committer().commit([staged])
    assert len(failures) == 1
    assert job.read() == ["a"]


def test_a_transaction_time_out_that_the_brokers_refuse_ends_the_job(job: Job):
    slower = {"enable.sparse.connections": True}  # Otherwise the client does not notice at once.
    writer = job.writer(10, **{"transaction.timeout.ms": 7_200_000}, **slower)
    with pytest.raises(JobError, match="do not allow transactions of 120 minutes") as error:
        writer.write(["a"])
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_topic_that_is_missing_is_found_before_records_flow(kafka_server: KafkaServer):
    committer = direct(kafka_server, "no-such-topic").create_committer()
    assert committer is not None
    with pytest.raises(JobError, match="there is no topic 'no-such-topic'"):
        committer.clean(LINEAGE, "uid", 1)
    committer.close()


@pytest.mark.parametrize(
    ("name", "message", "recoverability"),
    [
        ("KafkaTimeoutError", "cannot be described at host:1", Recoverability.ENVIRONMENT),
        ("TransactionalIdAuthorizationFailedError", "refuse", Recoverability.NON_RECOVERABLE),
        ("SaslAuthenticationFailedError", "credentials", Recoverability.NON_RECOVERABLE),
        ("UnsupportedVersionError", "needs version 3", Recoverability.NON_RECOVERABLE),
    ],
)
def test_errors_of_the_brokers_say_whether_a_restart_helps(
    monkeypatch: Any, name: str, message: str, recoverability: Recoverability
):
    def fail(*_: Any, **__: Any) -> None:
        raise getattr(kafka.errors, name)

    monkeypatch.setattr(kafka.admin.KafkaAdminClient, "__init__", fail)
    client = TransactionClient(KafkaConnection("host:1", {}))
    with pytest.raises(JobError, match=message) as error:
        client.describe(["id"])
    assert error.value.recoverability is recoverability


def test_a_fenced_writer_with_messages_on_their_way_closes(job: Job):
    """The client calls the functions for reports of these messages while its error is set."""
    late = job.writer(10, **{"linger.ms": 200})
    late.write([str(number) for number in range(100)])
    job.transactions.abort(late._current.name)
    late.close()
    assert job.read() == []


def test_a_writer_does_not_wait_for_good_for_brokers(monkeypatch: Any):
    monkeypatch.setattr("penstock.connectors.kafka.direct_writer.STEP_SECONDS", 0.1)
    sink = KafkaSink("127.0.0.1:1", "topic", SimpleStringSchema(), exactly_once_mode="direct")
    writer = sink.create_writer(WriterContext("uid", "Kafka", 0, 1, 1, LINEAGE, MetricGroup()))
    writer.open()
    with pytest.raises(JobError, match=r"have not answered for 0\.1 seconds") as error:
        writer.write(["a"])
    assert error.value.recoverability is Recoverability.ENVIRONMENT
    writer.close()


def test_output_of_the_other_mode_is_refused(job: Job):
    staged = {"staged": "0123456789-0001-00000-00000000", "size": 1, "checksum": ""}
    with pytest.raises(JobError, match="was not written in the mode 'direct'"):
        job.committer().commit([Committable(LINEAGE, job.uid, 0, 1, 1, staged)])


def test_properties_of_the_connection_are_translated_for_the_committer():
    properties = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "secret",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "compression.type": "zstd",
    }
    assert translate_properties(properties) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "ann",
        "sasl_plain_password": "secret",
        "ssl_cafile": "ca.pem",
        "ssl_check_hostname": False,
    }
    with pytest.raises(GraphError, match=r"cannot use the property sasl\.oauthbearer\.config"):
        KafkaSink(
            "host:9092",
            "topic",
            SimpleStringSchema(),
            exactly_once_mode="direct",
            properties={"sasl.oauthbearer.config": "x"},
        )


def test_the_builder_sets_the_mode_and_the_topic_may_depend_on_the_record():
    schema = KafkaRecordSerializationSchema(lambda text: text, SimpleStringSchema())
    builder = KafkaSink.builder().set_bootstrap_servers("host:9092").set_record_serializer(schema)
    sink = builder.set_exactly_once_mode("direct").set_transactional_id_prefix("shop").build()
    assert sink.create_committer() is not None
    with pytest.raises(GraphError, match="is 'staged' or 'direct', not 'best'"):
        builder.set_exactly_once_mode("best").build()  # type: ignore[arg-type]
    builder.set_exactly_once_mode("direct")
    sink = builder.set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE).build()
    assert sink.create_committer() is None
