"""Connect to Redis or Valkey, and translate its errors into errors of a job.

A client of redis-py repeats commands after some errors, as its version decides. These clients do
not: sources, sinks and lookups know which commands may be repeated.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from penstock.connectors.tls import speaks_tls, tls_refusal
from penstock.dataflow.errors import GraphError, JobError, Recoverability

logger = logging.getLogger("penstock.connectors")


#: The time to wait for an answer, in seconds. A server that is slower counts as unreachable.
_ANSWER_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
#: The beginnings of answers of a server that lacks replicas or a disk, or runs a long script. The
#: client has classes for other errors, and cuts off the beginnings of their answers.
_PASSING = ("NOREPLICAS", "MISCONF", "BUSY")
#: Errors of a connection that the server has ended, perhaps because it expects TLS.
_ENDED = re.compile("closed|reset", re.IGNORECASE)
_HASH_TAG = re.compile(rb"\{([^}]+)\}")


@dataclass(frozen=True)
class RedisConnection:
    """Describes how to connect to a server of Redis or Valkey.

    Sources, sinks and lookups take either a URL or a `RedisConnection`.

    Arguments:
        url: the address: `redis://user:password@host:6379/0`, `rediss://` with TLS, or `unix://`.
            `valkey://` and `valkeys://` mean the same as the first two.
        cluster: whether the server is a node of a Redis Cluster.
        options: further arguments of `redis.Redis`, such as `{"ssl_ca_certs": "ca.pem"}`.

    Raises:
        GraphError: if the URL has another scheme.

    Examples:
        >>> RedisConnection("redis://:secret@localhost:6379/0").place
        'localhost:6379/0'
    """

    url: str = field(default="redis://localhost:6379/0", repr=False)
    cluster: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not re.match(r"(rediss?|valkeys?|unix)://", self.url):
            raise GraphError(
                f"the URL of a Redis server begins with redis://, rediss://, valkey:// or "
                f"unix://, and got {self.place!r}: for example redis://localhost:6379/0"
            )
        try:
            _ = urlsplit(self.url).port
        except ValueError:
            # The error of Python may show a part of the password.
            raise GraphError(
                f"the URL of the Redis server at {self.place!r} cannot be read: a password in it "
                f"is written with %2F for / and %40 for @, as urllib.parse.quote does"
            ) from None

    @classmethod
    def of(cls, connection: str | RedisConnection) -> RedisConnection:
        """Return a connection that is given as a URL or as it is."""
        return cls(connection) if isinstance(connection, str) else connection

    @property
    def place(self) -> str:
        """The address without user and password, for messages."""
        # Not by `urlsplit`: the password may have characters that end the host there.
        return self.url.partition("://")[2].rpartition("@")[2].partition("?")[0]

    def client(self) -> Any:
        """Return a new client, which connects at its first command."""
        redis = _library("redis")
        if self.cluster:
            return redis.RedisCluster.from_url(self._url, **self._arguments("redis.retry"))
        return redis.Redis.from_url(self._url, **self._arguments("redis.retry"))

    def async_client(self) -> Any:
        """Return a new client for asyncio, which connects at its first command."""
        redis = _library("redis.asyncio")
        if self.cluster:
            return redis.RedisCluster.from_url(self._url, **self._arguments("redis.asyncio.retry"))
        return redis.Redis.from_url(self._url, **self._arguments("redis.asyncio.retry"))

    @property
    def _url(self) -> str:
        return self.url.replace("valkey", "redis", 1) if self.url.startswith("valkey") else self.url

    def _arguments(self, retry_module: str) -> dict[str, Any]:
        retry = import_module(retry_module).Retry(import_module("redis.backoff").NoBackoff(), 0)
        return {
            "socket_timeout": _ANSWER_SECONDS,
            "socket_connect_timeout": _CONNECT_SECONDS,
            "socket_keepalive": True,
            # The answers of the other protocol have other shapes.
            "protocol": 2,
            "retry": retry,
            "client_name": "penstock",
            **self.options,
        }

    # ---- errors

    def is_passing(self, error: BaseException) -> bool:
        """Return whether an error may end by itself: the server is away, slow, starting or full."""
        errors = _library("redis.exceptions")
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError):
            return False
        if tls_refusal(error) is not None or self._wants_tls(error):
            return False
        if isinstance(error, errors.ConnectionError | errors.TimeoutError | OSError):
            return True  # a server that loads its data is one of them
        if isinstance(error, errors.MovedError):
            return self.cluster
        # A failover, a cluster without some of its slots, or a server without memory.
        if isinstance(error, errors.ReadOnlyError | errors.ClusterError | errors.OutOfMemoryError):
            return True
        if isinstance(error, errors.TryAgainError | errors.RedisClusterException):
            return not isinstance(error, _cross_slot_errors(errors))
        return isinstance(error, errors.ResponseError) and _text(error).startswith(_PASSING)

    def explain(self, error: BaseException, what: str) -> JobError:
        """Return the error to raise for an error of the client.

        Arguments:
            error: the error of the client.
            what: what could not be done, such as "read the stream 'orders'".
        """
        errors, text, place = _library("redis.exceptions"), _text(error), self.place
        if self.is_passing(error):
            said = f"cannot {what} at {place}: {type(error).__name__}: {text}"
            if isinstance(error, errors.OutOfMemoryError):
                said += ": raise maxmemory of the server, or remove keys"
            return JobError(said, recoverability=Recoverability.ENVIRONMENT)
        said = f"cannot {what}: Redis at {place} answers: {text}"
        refusal = tls_refusal(error)
        if refusal is not None:
            said = (
                f"cannot {what}: TLS with Redis at {place} fails: {refusal}. The file is the "
                f'option "ssl_ca_certs" of a RedisConnection'
            )
        elif self._wants_tls(error):
            said = f"cannot {what}: Redis at {place} expects TLS: use a URL with rediss://"
        elif isinstance(error, errors.AuthenticationError):
            said = f"cannot {what}: Redis at {place} refuses the user or password ({text}): "
            said += "correct them in the URL, and the users of the server (ACL LIST)"
        elif isinstance(error, errors.NoPermissionError):
            said += ": give the user of the URL this right with ACL SETUSER"
        elif text.startswith("WRONGTYPE") or "WRONGTYPE" in text:
            said += ": the key holds a value of another type; use another key"
        elif isinstance(error, errors.AskError):
            said += ": it is a Redis Cluster; use RedisConnection(url, cluster=True)"
        elif isinstance(error, _cross_slot_errors(errors)):
            said += ": put the common part of these keys into braces, as in {shop}:orders"
        elif not isinstance(error, errors.RedisError):
            return JobError(f"cannot {what} at {place}: {type(error).__name__}: {text}")
        return JobError(said, recoverability=Recoverability.NON_RECOVERABLE)

    def _wants_tls(self, error: BaseException) -> bool:
        """Return whether the server has ended a connection because it expects TLS."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("redis", "valkey") or not _ENDED.search(_text(error)):
            return False
        return speaks_tls(parts.hostname or "localhost", parts.port or 6379)


def hash_tag(key: bytes) -> bytes:
    """Return the part of a key that decides about its hash slot in a cluster."""
    found = _HASH_TAG.search(key)
    # Only the first pair of braces counts, and none if the first brace closes at once.
    if found is None or key.find(b"{") != found.start():
        return key
    return found[1]


def _cross_slot_errors(errors: Any) -> tuple[type[Exception], ...]:
    """Return the errors for keys in several hash slots; redis-py 5 has only one of them."""
    names = ("ClusterCrossSlotError", "CrossSlotTransactionError")
    return tuple(getattr(errors, name) for name in names if hasattr(errors, name))


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise JobError(
            "connectors of Redis need the package redis: pip install 'penstock[redis]'",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error
