"""Write to Kafka in a transaction that is open from one barrier to the next.

Each part of the output has a transaction with a transactional id of its own, which is never used
again. So a commit that arrives late cannot meet a later transaction, and the state that the brokers
report for an id is the fate of exactly one part. A part ends at a barrier: all messages have
arrived, the transaction is still open, and the committable has its producer id and epoch. The
JobManager commits it (`direct_committer.py`).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from penstock.connectors.kafka.batch_producer import BatchProducer, require_size
from penstock.connectors.kafka.client import KafkaConnection, confluent_kafka
from penstock.connectors.kafka.serializers import KafkaRecordSerializationSchema
from penstock.connectors.kafka.transaction_client import TransactionClient
from penstock.connectors.kafka.transactional_producer import (
    STEP_SECONDS,
    bounded,
    transaction_failure,
    transactional_producer,
)
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import SinkWriter, WriterContext
from penstock.dataflow.type_variables import PlainValue

logger = logging.getLogger("penstock.kafka")

#: The parts of the time-out of a transaction after which the writer warns, and after which it
#: refuses to make the transaction a part of a snapshot.
_WARN_AT, _REFUSE_AT = 0.5, 0.9
#: The longest time for which an abort waits until messages on their way have arrived, in seconds.
_SETTLE_SECONDS = 1.0


class DirectWriter(SinkWriter):
    """Writes the records of one subtask, in one transaction for each snapshot.

    Arguments:
        connection: the cluster.
        serializer: encodes records.
        prefix: the beginning of the transactional ids, which no other sink of any job has.
        context: the subtask.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        serializer: KafkaRecordSerializationSchema,
        prefix: str,
        context: WriterContext,
    ) -> None:
        self._connection, self._context = connection, context
        self._serialize = serializer.open(context.metrics)
        # A run from a copy of the job's folder could have the same attempt.
        token = uuid.uuid4().hex[:12]
        self._prefix = f"{prefix}{context.attempt}-{context.subtask}-{token}"
        self._transactions = TransactionClient(connection)
        self._begun = 0
        #: The next part. Its producer connects in a thread, which takes longer than a batch.
        self._next: Future[_Part] | None = None
        #: The part before the one that takes records, if its messages may still be on their way.
        self._ended: _Part | None = None
        #: The part that takes records, and those whose barriers have passed but that are not ended.
        self._current: _Part | None = None
        self._unfinished: list[_Part] = []
        self._lock = threading.Lock()
        self._warned = False

    def open(self) -> None:
        """Begin to connect the first producer."""
        self._next = self._connect()

    def _connect(self) -> Future[_Part]:
        """Connect a producer in a thread, for which the process does not wait at its end."""
        part: Future[_Part] = Future()
        name = f"{self._prefix}-{self._begun}"
        self._begun += 1

        def run() -> None:
            try:
                part.set_result(_Part(self._connection, name))
            except BaseException as error:
                part.set_exception(error)

        threading.Thread(target=run, name="kafka producer", daemon=True).start()
        return part

    def write(self, batch: list[Any]) -> None:
        """Send a batch in the open transaction."""
        batches = self._serialize(batch)
        require_size(batches, self._connection.properties)
        count = sum(len(one.values) for one in batches)
        if count == 0:
            return
        if self._current is None:
            self._current = self._begin()
        self._current.count += count
        with self._named_errors():
            self._current.producer.send(batches)

    def _begin(self) -> _Part:
        """Return the next part, whose transaction has begun."""
        assert self._next is not None
        if self._ended is not None:
            # Each part has a producer of its own. So a message of this part could arrive before one
            # of the last part that is still on its way, and keys would lose their order.
            with self._named_errors():
                self._ended.producer.flush()
            self._ended = None
        try:
            part = self._next.result(STEP_SECONDS)
        except TimeoutError:
            raise JobError(
                f"a transaction cannot be begun at {self._connection.bootstrap_servers}: the "
                f"brokers have not answered for {STEP_SECONDS:g} seconds",
                recoverability=Recoverability.ENVIRONMENT,
            ) from None
        part.begin()
        self._next = self._connect()
        return part

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise a `JobError` for an error of the transaction, such as that it was fenced."""
        try:
            yield
        except confluent_kafka().KafkaException as error:
            what = "messages cannot be written in a transaction"
            raise transaction_failure(self._connection, what, error) from None

    def prepare(self, snapshot: int) -> Callable[[], list[PlainValue]] | None:
        """End the part; return a function that waits for its messages, or None without one."""
        part, self._current = self._current, None
        if part is None:
            return None
        self._ended = part
        self._unfinished.append(part)

        def finish() -> list[PlainValue]:
            # From here on, only the JobManager knows whether the part belongs to a snapshot.
            with self._lock:
                if part not in self._unfinished:
                    raise JobError(f"the sink was closed before snapshot {snapshot} was complete")
                self._unfinished.remove(part)
            return [self._finish(part, snapshot)]

        return finish

    def _finish(self, part: _Part, snapshot: int) -> PlainValue:
        with self._named_errors():
            part.producer.flush()
        found = self._transactions.describe([part.name]).get(part.name)
        if found is None or found.state != "Ongoing":
            state = "unknown" if found is None else found.state
            raise JobError(
                f"the brokers have ended the transaction of snapshot {snapshot} (state {state}) "
                f"before the snapshot was complete: a newer attempt of the job has replaced this "
                f"one, or the transaction was open for longer than transaction.timeout.ms. The "
                f"job writes its records again. Take snapshots more often, or raise this property "
                f"of the sink",
                recoverability=Recoverability.ENVIRONMENT,
            )
        self._check_age(time.monotonic() - part.began, found.timeout_seconds)
        part.producer.close()
        return {
            "transaction": part.name,
            "producer": found.producer_id,
            "epoch": found.epoch,
            "records": part.count,
        }

    def _check_age(self, age: float, limit: float) -> None:
        """Warn if a transaction was open for long; raise if it would soon be too long."""
        if age < limit * _WARN_AT:
            return
        what = (
            f"a transaction was open for {age:.0f} seconds before its snapshot, and the brokers "
            f"abort it after {limit:.0f} seconds (transaction.timeout.ms). The rest must last "
            f"for the commit, and for an outage of the job. Take snapshots more often, or raise "
            f"this property of the sink, and transaction.max.timeout.ms of the brokers"
        )
        if age > limit * _REFUSE_AT:
            raise JobError(
                f"{what}. The transaction was not made a part of the snapshot, so its records are "
                f"written again",
                recoverability=Recoverability.ENVIRONMENT,
            )
        if not self._warned:
            self._warned = True
            logger.warning("sink %s: %s", self._context.name, what)

    def flush(self) -> None:
        """Find out whether messages were not delivered."""
        if self._current is not None:
            with self._named_errors():
                self._current.producer.serve(0)
            self._current.producer.check()

    def close(self) -> None:
        """Abort the transactions that no snapshot can have, and close all connections."""
        with self._lock:
            parts, self._unfinished = self._unfinished, []
        if self._current is not None:
            parts.append(self._current)
            self._current = None
        for part in parts:
            part.abort()
        self._next = self._ended = None
        self._transactions.close()


class _Part:
    """A part of the output: a producer, and the one transaction that it begins.

    Arguments:
        connection: the cluster.
        name: the transactional id.
    """

    def __init__(self, connection: KafkaConnection, name: str) -> None:
        self.name = name
        self.producer: BatchProducer = transactional_producer(connection, name)
        self.count = 0
        self.began = 0.0
        self._connection = connection

    def begin(self) -> None:
        """Begin the transaction."""
        try:
            self.producer.client.begin_transaction()
        except confluent_kafka().KafkaException as error:
            what = "a transaction cannot be begun"
            raise transaction_failure(self._connection, what, error) from None
        self.began = time.monotonic()

    def abort(self) -> None:
        """Abort the transaction. If it is not possible, the next attempt of the job does so."""
        try:
            # A request that adds a partition may be on its way. If it came after the abort, the
            # broker would open a transaction for it, and no producer would end that transaction.
            self.producer.serve(_SETTLE_SECONDS, until_empty=True)
            bounded(self.producer.client.abort_transaction, STEP_SECONDS)
        except (confluent_kafka().KafkaException, JobError) as error:
            logger.info("transaction %s is not aborted yet: %s", self.name, error)
        self.producer.close()
