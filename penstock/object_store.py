"""Open an object store by a URL, and translate its errors into errors of a job.

obstore repeats a request that fails in the network or in the server, with a growing pause. When it
gives up, the error counts as one of the environment, so the job is restarted until the store
answers again. Wrong credentials and a missing bucket are not mended by a restart.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import GraphError, JobError, Recoverability

if TYPE_CHECKING:
    import obstore.store

_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "file", "memory")
#: The stores of this process, by their URL and options. Clients of a store share connections.
_OPENED: dict[tuple[str, str], Any] = {}
_RETRY_SECONDS = 30.0


class ObjectStore:
    """Names a store of objects: a bucket, or a part of it, and how to reach it.

    Credentials are best taken from the environment, as the tools of the vendor take them:
    `AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_KEY` and others.
    Credentials that are given here are stored with the job.

    Arguments:
        url: the URL: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
            `file:///folder` or `memory://name`. A store in memory is for tests in one process.
        endpoint: the URL of a server that is compatible with S3. With `http://`, the connection
            is not encrypted.
        retry_seconds: the time for which a failed request is repeated, in seconds.
        timeout_seconds: the time for one request, in seconds.
        options: options of obstore's store, such as `region`, `access_key_id` or
            `virtual_hosted_style_request`.

    Raises:
        GraphError: if obstore is not installed, or the URL or an option is wrong.

    Examples:
        >>> store = ObjectStore("s3://logs/2026", region="eu-central-1")
        >>> print(store)
        s3://logs/2026
    """

    def __init__(
        self,
        url: str,
        *,
        endpoint: str | None = None,
        retry_seconds: float = _RETRY_SECONDS,
        timeout_seconds: float = 30.0,
        **options: Any,
    ) -> None:
        scheme, separator, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
        if not separator or scheme not in _SCHEMES:
            raise GraphError(
                f"an object store is given as s3://bucket/prefix, gs://…, az://…, file:///folder "
                f"or memory://name, not {url!r}"
            )
        if not retry_seconds >= 0 or not timeout_seconds > 0:
            raise GraphError("retry_seconds is 0 or more, and timeout_seconds is positive")
        self.url = url
        self.scheme = scheme
        #: The URL of the bucket, and the name of a folder or object in it; "" for all of it.
        self.bucket, self.prefix = _divided(url)
        self.endpoint = endpoint
        self.retry_seconds = retry_seconds
        self.timeout_seconds = timeout_seconds
        self.options: Mapping[str, Any] = options
        self.open()

    @classmethod
    def of(cls, place: str | ObjectStore) -> ObjectStore:
        """Return the store for a URL or a store that a user gave."""
        return place if isinstance(place, ObjectStore) else cls(place)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"  # without options, which may have secrets

    def at(self, url: str) -> ObjectStore:
        """Return the store for another URL, with the options of this one."""
        return ObjectStore(
            url,
            endpoint=self.endpoint,
            retry_seconds=self.retry_seconds,
            timeout_seconds=self.timeout_seconds,
            **self.options,
        )

    def open(self) -> obstore.store.ObjectStore:
        """Return obstore's store of the bucket, which this process opens once.

        Raises:
            GraphError: if obstore is not installed, or the URL or an option is wrong.
        """
        # A password that changes makes another store, so options are a part of the key.
        options = sorted(self.options.items())
        key = (
            self.bucket,
            repr((self.endpoint, self.retry_seconds, self.timeout_seconds, options)),
        )
        if key not in _OPENED:
            _OPENED[key] = self._opened()
        opened: obstore.store.ObjectStore = _OPENED[key]
        return opened

    def _opened(self) -> Any:
        obstore = require_obstore()
        if self.scheme == "memory":
            return obstore.store.MemoryStore()
        if self.scheme == "file":
            return obstore.store.LocalStore()
        options = dict(self.options)
        client: dict[str, Any] = {"timeout": timedelta(seconds=self.timeout_seconds)}
        if self.endpoint is not None:
            options["endpoint"] = self.endpoint
            client["allow_http"] = self.endpoint.startswith("http://")
        # Each pause is at most as long as the time for all attempts.
        longest = timedelta(seconds=min(15.0, max(0.1, self.retry_seconds / 4)))
        retry = {
            "max_retries": 1000 if self.retry_seconds else 0,
            "retry_timeout": timedelta(seconds=self.retry_seconds),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": longest},
        }
        try:
            return obstore.store.from_url(
                self.bucket,
                client_options=client,
                retry_config=retry,
                **options,
            )
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            raise GraphError(f"{self} cannot be opened: {first_line(error)}") from None

    def path(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.bucket}/{key}"

    @contextlib.contextmanager
    def naming(self, what: str) -> Iterator[None]:
        """Raise a `JobError` with `what` and the cause, if obstore raises an error.

        Some errors are raised as they are: an object is missing, exists already or has changed.
        """
        exceptions = require_obstore().exceptions
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" not in str(error):
                raise
            raise self._no_bucket() from error
        except exceptions.BaseError as error:
            denied = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
            # Such an answer to a list request has no class of its own.
            if isinstance(error, denied) or re.search("status code: 40[13]", str(error)):
                raise JobError(
                    f"{what}: the store refuses the credentials ({_reason(error)}). Check the keys "
                    f"in the environment of the workers and the JobManager, what they may do in "
                    f"{self}, and the clocks",
                    recoverability=Recoverability.NON_RECOVERABLE,
                ) from error
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise self._no_bucket() from error
            raise JobError(
                f"{what}: {_reason(error)}. It was tried for up to {self.retry_seconds:g} s",
                recoverability=Recoverability.ENVIRONMENT,
            ) from error

    def _no_bucket(self) -> JobError:
        return JobError(
            f"there is no bucket for {self}: create it, or correct the URL",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def require_obstore() -> Any:
    """Return the package obstore.

    Raises:
        GraphError: if it is not installed.
    """
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise GraphError(
            f"object stores are reached through the package obstore, which is not installed: "
            f"pip install 'penstock[object-store]' ({error})"
        ) from error
    return obstore


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def _reason(error: Exception) -> str:
    """Return why a request failed, without the XML of the answer."""
    text = first_line(error)
    code = re.search("<Code>([^<]+)</Code>", str(error))
    text = re.sub(r": <\?xml.*", "", text)
    return f"{text} ({code[1]})" if code else text


def _divided(url: str) -> tuple[str, str]:
    """Divide a URL into that of its bucket, and the prefix in the bucket."""
    scheme, _, rest = url.partition("://")
    # The URLs of files begin with an empty host. Azure's account is an option or a variable.
    bucket, _, prefix = rest.partition("/")
    return f"{scheme}://{bucket}", prefix.strip("/")
