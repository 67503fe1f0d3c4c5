"""Begin to write with a transactional id, and wait for a client no longer than some time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, Queue
from typing import Any

from penstock.connectors.kafka.batch_producer import BatchProducer
from penstock.connectors.kafka.client import KafkaConnection, confluent_kafka, error_of_client
from penstock.dataflow.errors import JobError, Recoverability

#: The greatest time-out of a transaction that brokers allow by default, in milliseconds.
TRANSACTION_MS = 900_000
#: The time that a commit may take, which also waits for the last messages, and that of the other
#: steps of a transaction, in seconds.
COMMIT_SECONDS, STEP_SECONDS = 60.0, 15.0
#: The time after which the client should have returned with an error of its own, in seconds.
_GRACE_SECONDS = 2.0


def transactional_producer(connection: KafkaConnection, transactional_id: str) -> BatchProducer:
    """Return a producer with a transactional id. It has fenced each other one with this id.

    Arguments:
        connection: the cluster.
        transactional_id: the id.

    Raises:
        JobError: if the brokers do not answer, or refuse it.
    """
    kafka = confluent_kafka()
    timeout = connection.properties.get("transaction.timeout.ms", TRANSACTION_MS)
    producer = BatchProducer(
        connection,
        stall_seconds=COMMIT_SECONDS,
        **{"transactional.id": transactional_id, "transaction.timeout.ms": timeout},
    )
    try:
        bounded(producer.client.init_transactions, COMMIT_SECONDS)
    except kafka.KafkaException as raised:
        reason = raised
        try:
            producer.serve(0)
        except kafka.KafkaException as fatal:
            reason = fatal  # If it came early, the call has only timed out.
        producer.check()
        raise transaction_failure(connection, "a transaction cannot be begun", reason) from None
    return producer


def transaction_failure(connection: KafkaConnection, what: str, error: Any) -> JobError:
    """Return the error of a job for an error of a transaction.

    Arguments:
        connection: the cluster.
        what: the failure, such as "a transaction cannot be begun".
        error: the exception of the client.
    """
    if error.args[0].name() == "INVALID_TRANSACTION_TIMEOUT":
        timeout = connection.properties.get("transaction.timeout.ms", TRANSACTION_MS)
        return JobError(
            f"{what}: the brokers do not allow transactions of {int(timeout) / 60_000:g} minutes. "
            f"Set the property transaction.timeout.ms of the sink to transaction.max.timeout.ms of "
            f"the brokers",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    return connection.failure(what, error)


def bounded(call: Callable[[float], object], seconds: float) -> None:
    """Call a method of a client with a time-out, and return although the client does not.

    librdkafka may never return if its coordinator restarts at the wrong moment. The producer is
    then given up, and a new one fences it. So it has no effect if it wakes up later.

    Raises:
        JobError: if the client has not returned in time.
    """
    result: Queue[BaseException | None] = Queue()

    def run() -> None:
        try:
            call(seconds)
        except SystemError as error:
            result.put(error_of_client(error))
        except BaseException as error:
            result.put(error)
        else:
            result.put(None)

    threading.Thread(target=run, name="kafka transaction", daemon=True).start()
    try:
        error = result.get(timeout=seconds + _GRACE_SECONDS)
    except Empty:
        raise JobError(
            f"the Kafka client has not finished a step of a transaction in {seconds:g} seconds",
            recoverability=Recoverability.ENVIRONMENT,
        ) from None
    if error is not None:
        try:
            raise error
        finally:
            del error  # Otherwise the error and this frame were a cycle, with the client in it.
