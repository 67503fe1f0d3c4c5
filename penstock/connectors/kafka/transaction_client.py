"""Ask the brokers about transactions, and end those of other processes, with kafka-python.

librdkafka only ends the transaction of its own client. The protocol has no such limit: any client
that sends the transactional id, the producer id and the epoch may commit a transaction. Flink uses
reflection on the Java client for this. kafka-python has the messages as classes, but no method that
sends EndTxn alone. So this module uses its connections, which are not public; the extra `kafka`
therefore allows one major version of kafka-python only.

The requests need brokers of version 3.0 or newer (KIP-664, KIP-699).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from penstock.connectors.kafka.client import KafkaConnection
from penstock.dataflow.errors import GraphError, JobError, Recoverability

#: The time after which a request has failed, and the time for which an abort is tried, in seconds.
REQUEST_SECONDS, _ABORT_SECONDS = 15.0, 30.0
#: The type of a coordinator that looks after transactions.
_TRANSACTIONS = 1
#: The time-out of a transaction that is begun only to abort the one before, in milliseconds.
_FENCE_MS = 10_000
#: The names in kafka-python of properties of librdkafka.
_NAMES = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}
#: Properties of a connection that have no name in kafka-python begin with these.
_OF_CONNECTION = ("ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.", "oauth")


def kafka_python() -> ModuleType:
    """Return the module `kafka`.

    Raises:
        GraphError: if it is not installed.
    """
    try:
        import kafka.admin
        import kafka.errors
    except ImportError as error:
        raise GraphError(
            f"Direct transactions need kafka-python: pip install 'penstock[kafka]' ({error})"
        ) from None
    module: ModuleType = kafka
    return module


def translate_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of kafka-python for properties of librdkafka.

    Properties that only concern producers are left out.

    Raises:
        GraphError: if a property of the connection has no such setting.
    """
    settings: dict[str, Any] = {}
    for name, value in properties.items():
        if name == "security.protocol":
            settings["security_protocol"] = str(value).upper()
        elif name == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = str(value).lower() == "https"
        elif name in _NAMES:
            settings[_NAMES[name]] = value
        elif name.startswith(_OF_CONNECTION):
            raise GraphError(
                f"a KafkaSink with exactly_once_mode='direct' cannot use the property {name}: "
                f"transactions are committed by kafka-python, which has no such setting. Use the "
                f"mode 'staged'"
            )
    return settings


@dataclass(frozen=True)
class Transaction:
    """Describes the newest transaction of a transactional id.

    Arguments:
        state: its state, such as Ongoing or CompleteCommit.
        producer_id: the id of the producer.
        epoch: the epoch of the producer.
        timeout_seconds: the time after which the brokers abort it, in seconds.
    """

    state: str
    producer_id: int
    epoch: int
    timeout_seconds: float


class TransactionClient:
    """Asks the coordinators of transactions. Several threads may use it.

    It connects when it is used first, and again after each error.

    Arguments:
        connection: the cluster.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._settings = translate_properties(connection.properties)
        self._lock = threading.Lock()
        self._admin: Any = None

    def describe(self, ids: Sequence[str]) -> dict[str, Transaction]:
        """Return the newest transaction of each transactional id that the brokers know.

        Raises:
            JobError: if the brokers do not answer, or refuse it.
        """
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        async def ask(admin: Any) -> dict[str, Transaction]:
            found = {}
            for node, own in (await _coordinators(admin, ids)).items():
                request = DescribeTransactionsRequest(transactional_ids=own)
                answer = await admin._manager.send(request, node_id=node)
                for row in answer.transaction_states:
                    if _name(row.error_code) == "TRANSACTIONAL_ID_NOT_FOUND":
                        continue
                    _require(row.error_code)
                    found[row.transactional_id] = Transaction(
                        row.transaction_state,
                        row.producer_id,
                        row.producer_epoch,
                        row.transaction_timeout_ms / 1000,
                    )
            return found

        described: dict[str, Transaction] = self._run("transactions cannot be described", ask)
        return described

    def commit(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """Commit an open transaction, also of a process that is gone.

        Raises:
            JobError: if the brokers do not answer, or refuse it. The transaction may be committed
                or not.
        """
        from kafka.protocol.producer.transaction import EndTxnRequest

        async def ask(admin: Any) -> None:
            # Version 5 would begin another epoch, which librdkafka does not know of.
            request = EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=True,
                max_version=3,
            )
            [node] = await _coordinators(admin, [transactional_id])
            _require((await admin._manager.send(request, node_id=node)).error_code)

        self._run(f"transaction {transactional_id} is not committed", ask)

    def open_ids(self, prefix: str) -> list[str]:
        """Return the transactional ids that begin with `prefix` and have an open transaction.

        Raises:
            JobError: if the brokers do not answer, or refuse it.
        """

        async def ask(admin: Any) -> list[str]:
            found = await admin._async_list_transactions(state_filters=["Ongoing"])
            ids = [one.transactional_id for own in found.values() for one in own]
            return sorted(one for one in ids if one.startswith(prefix))

        listed: list[str] = self._run("open transactions cannot be listed", ask)
        return listed

    def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id, and fence its producer.

        Raises:
            JobError: if the brokers do not answer, or refuse it.
        """
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        async def ask(admin: Any) -> str:
            # An abort by EndTxn would not fence the producer, which could write once more.
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=_FENCE_MS, max_version=4
            )
            [node] = await _coordinators(admin, [transactional_id])
            code = (await admin._manager.send(request, node_id=node)).error_code
            if _name(code) != "CONCURRENT_TRANSACTIONS":
                _require(code)
            return _name(code)

        deadline = time.monotonic() + _ABORT_SECONDS
        what = f"the open transaction {transactional_id} is not aborted"
        # The answer says so until the abort has reached all partitions.
        while self._run(what, ask) == "CONCURRENT_TRANSACTIONS":
            if time.monotonic() > deadline:
                raise JobError(
                    f"{what} at {self._connection.bootstrap_servers} after {_ABORT_SECONDS:g} "
                    f"seconds",
                    recoverability=Recoverability.ENVIRONMENT,
                )
            time.sleep(0.1)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(Exception):
                admin.close()

    def _run(self, what: str, ask: Callable[[Any], Any]) -> Any:
        """Return the result of a request. After an error, the next one connects again."""
        kafka = kafka_python()
        try:
            admin = self._connected(kafka)
            return admin._manager.run(ask, admin)
        except (kafka.errors.KafkaError, OSError) as error:
            self.close()
            raise self._failure(kafka.errors, what, error) from None

    def _connected(self, kafka: ModuleType) -> Any:
        with self._lock:
            if self._admin is None:
                milliseconds = int(1000 * REQUEST_SECONDS)
                made = kafka.admin.KafkaAdminClient
                admin = made.__new__(made)
                try:
                    admin.__init__(
                        bootstrap_servers=self._connection.bootstrap_servers.split(","),
                        request_timeout_ms=milliseconds,
                        bootstrap_timeout_ms=milliseconds,
                        **self._settings,
                    )
                except BaseException:
                    # It has started a thread, which would go on.
                    admin._closed = False
                    with suppress(Exception):
                        admin.close()
                    raise
                self._admin = admin
            return self._admin

    def _failure(self, errors: Any, what: str, error: Exception) -> JobError:
        place = f"{what} at {self._connection.bootstrap_servers}"
        refused = (
            errors.AuthorizationError,
            errors.SaslAuthenticationFailedError,
            errors.UnsupportedSaslMechanismError,
            errors.IllegalSaslStateError,
        )
        if isinstance(error, refused):
            return JobError(
                f"{place}: the brokers refuse this user ({error}): check the credentials and the "
                f"access control lists. The mode 'direct' needs the rights Write and Describe for "
                f"the transactional ids",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        unsupported = (errors.UnsupportedVersionError, errors.IncompatibleBrokerVersion)
        if isinstance(error, unsupported):
            return JobError(
                f"{place}: the brokers are too old ({error}). The mode 'direct' needs version 3.0; "
                f"use the mode 'staged'",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return JobError(f"{place}: {error!r}", recoverability=Recoverability.ENVIRONMENT)


async def _coordinators(admin: Any, ids: Iterable[str]) -> dict[int, list[str]]:
    """Return the transactional ids that each broker looks after.

    kafka-python's own method keeps each id in memory without an end.
    """
    from kafka.protocol.metadata import FindCoordinatorRequest

    request = FindCoordinatorRequest(
        key_type=_TRANSACTIONS, coordinator_keys=list(ids), min_version=4
    )
    nodes: dict[int, list[str]] = {}
    for row in (await admin._manager.send(request)).coordinators:
        _require(row.error_code)
        nodes.setdefault(row.node_id, []).append(row.key)
    return nodes


def _name(code: int) -> str:
    """Return the name of an error of the protocol."""
    import kafka.errors

    return str(getattr(kafka.errors.for_code(code), "message", code))


def _require(code: int) -> None:
    """Raise the error of kafka-python that a code stands for. The code 0 is no error."""
    import kafka.errors

    if code:
        raise kafka.errors.for_code(code)()
