"""Make clients of confluent-kafka, and turn their errors into clear ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.connectors.tls import speaks_tls
from penstock.dataflow.errors import GraphError, JobError, Recoverability

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

logger = logging.getLogger("penstock.kafka")

#: The time after which a request to the brokers has failed, in seconds.
REQUEST_SECONDS = 30.0
#: The errors with which brokers refuse a user that is unknown, or that may not do this.
_REFUSED = (
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)

#: Parts of errors of TLS with which the next handshake fails, too.
_UNTRUSTED = re.compile("certificate|wrong version|handshake failure|unknown ca", re.IGNORECASE)
#: The part of the error for a client without TLS.
_NO_CERTIFICATE = ", so that no certificate was exchanged"


def confluent_kafka() -> ModuleType:
    """Return the module `confluent_kafka`.

    Raises:
        GraphError: if it is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise GraphError(
            f"Kafka needs confluent-kafka: pip install 'penstock[kafka]' ({error})"
        ) from None
    return confluent_kafka


def error_of_client(error: SystemError) -> Exception:
    """Return the `KafkaException` that a producer had set when Python raised a `SystemError`.

    With a fatal error, the client sets its exception, and calls the functions for other reports
    before it raises it. Python takes the first of them that returns for broken, and the exception
    is its cause, or lost.
    """
    kafka = confluent_kafka()
    cause = error.__cause__
    if isinstance(cause, Exception) and isinstance(cause, kafka.KafkaException):
        return cause
    reason = "a newer attempt may have fenced this one; the log of this worker has the reason"
    lost: Exception = kafka.KafkaException(
        kafka.KafkaError(kafka.KafkaError._FATAL, reason, fatal=True)
    )
    lost.__cause__ = error
    return lost


class KafkaConnection:
    """Describes how to reach a Kafka cluster, and makes clients.

    Arguments:
        bootstrap_servers: the addresses of some brokers, separated by commas.
        properties: further settings of librdkafka, by their names.
    """

    def __init__(self, bootstrap_servers: str, properties: Mapping[str, Any]) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.properties = dict(properties)

    def settings(self, **defaults: Any) -> dict[str, Any]:
        """Return settings for a client.

        Arguments:
            defaults: settings that the properties of the user may replace, with `_` for `.`.
        """
        return {
            # By default, the client logs each refused connection. The connector logs it once.
            "log_level": 2,
            **{name.replace("_", "."): value for name, value in defaults.items()},
            **self.properties,
            "bootstrap.servers": self.bootstrap_servers,
        }

    def create(self, make: Callable[..., Any], settings: dict[str, Any]) -> Any:
        """Return a client that logs with Python.

        Arguments:
            make: the class of the client.
            settings: its settings.

        Raises:
            JobError: if a setting is unknown or has a wrong value.
        """
        kafka = confluent_kafka()
        try:
            return make(settings, logger=logger)
        except (kafka.KafkaException, TypeError, ValueError) as error:
            shown = error.args[0].str() if isinstance(error, kafka.KafkaException) else error
            raise JobError(
                f"a property of the Kafka client is wrong: {shown}. The names are those of "
                f"librdkafka; for example, sasl.username and sasl.password replace "
                f"sasl.jaas.config",
                recoverability=Recoverability.NON_RECOVERABLE,
            ) from None

    def failure(self, what: str, error: KafkaError | KafkaException) -> JobError:
        """Return the error of a job for an error of the client.

        Arguments:
            what: the failure, such as "messages cannot be read".
            error: the error of the client.
        """
        kafka = confluent_kafka()
        found: Any = error.args[0] if isinstance(error, kafka.KafkaException) else error
        place = f"{what} at {self.bootstrap_servers}"
        if found.name() == "_SSL" and is_refused(found):
            return JobError(
                f"{place}: TLS with the brokers fails ({found.str()}): check the properties "
                f"security.protocol and ssl.ca.location, and the names in their certificates",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        if is_refused(found):
            return JobError(
                f"{place}: the brokers refuse this user ({found.str()}): check the credentials and "
                f"the access control lists",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return JobError(
            f"{place}: {found.str()} ({found.name()})", recoverability=Recoverability.ENVIRONMENT
        )

    def refusal(self, error: KafkaError) -> KafkaError | None:
        """Return the error with which the brokers refuse this client; None if they do not.

        Arguments:
            error: an error that the client has reported.
        """
        if is_refused(error):
            return error
        if error.name() != "_ALL_BROKERS_DOWN" or self._encrypts:
            return None
        # A client without TLS only sees that brokers with TLS end its connections.
        for server in self.bootstrap_servers.split(","):
            host, _, port = server.rpartition("://")[2].strip().rpartition(":")
            if host and port.isdecimal() and speaks_tls(host.strip("[]"), int(port)):
                kafka = confluent_kafka()
                text = f"{host}:{port} expects TLS, and the client does not use it"
                wrong: KafkaError = kafka.KafkaError(kafka.KafkaError._SSL, text + _NO_CERTIFICATE)
                return wrong
        return None

    @property
    def _encrypts(self) -> bool:
        protocol = self.properties.get("security.protocol", "plaintext")
        return str(protocol).lower().endswith("ssl")


def is_refused(error: KafkaError) -> bool:
    """Return whether an error is about rights, users or certificates."""
    if error.name() == "_SSL":
        # Not a connection that ends during a handshake, as with a broker that restarts.
        return _UNTRUSTED.search(error.str()) is not None
    return error.name() in _REFUSED
