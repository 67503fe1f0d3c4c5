"""A client of a schema registry, with the errors of Penstock and a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.connectors.formats.libraries import library
from penstock.dataflow.errors import GraphError, JobError, Recoverability

_NOT_FOUND = 404
#: The codes of HTTP for a request that is refused as long as it is the same.
_REFUSED = (400, 401, 403, 404, 409, 422)
_WHY = {
    401: "the user or the password is wrong",
    403: "the user may not do this",
    409: "it is incompatible with an earlier version of the subject; change the schema so that it "
    "is compatible, for example by a default for each new field, or use another subject",
    422: "it is not a valid schema",
}


class RegisteredSchema(NamedTuple):
    """A schema in a registry.

    Arguments:
        type: "AVRO", "JSON" or "PROTOBUF".
        text: the text of the schema.
        references: the names of the schemas that the text refers to, with their texts.
    """

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class Reference(NamedTuple):
    """A schema that another one refers to.

    Arguments:
        name: the name by which it is referred to.
        subject: the subject under which it is registered.
        version: its version in the subject.
    """

    name: str
    subject: str
    version: int


class UnknownSchemaError(ValueError):
    """A registry has no schema with an id that a message has."""


class SchemaRegistry:
    """The address of a schema registry of Confluent's kind, such as Apicurio or Karapace.

    It opens no connection. Each worker makes a client when it needs one. Schemas stay in its cache,
    because a registry never changes the schema of an id.

    A registry that cannot be reached is asked again, `retries` times, after longer and longer
    pauses. Then the job pauses and restarts from its newest snapshot, as often as necessary.

    It needs `pip install 'penstock[schema-registry]'`.

    Arguments:
        url: the URL of the registry, or several URLs separated by commas.
        user, password: the credentials for basic authentication; None if there are none.
        retries: how often a request is repeated if the registry cannot be reached.
        timeout_seconds: the longest time of a request, in seconds.
        options: further options of confluent-kafka's `SchemaRegistryClient`, such as
            `{"ssl.ca.location": "ca.pem"}`.

    Raises:
        GraphError: if the URL is not one, or the package is missing.

    Examples:
        >>> SchemaRegistry("http://localhost:8081").url
        'http://localhost:8081'
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        retries: int = 5,
        timeout_seconds: float = 10.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise GraphError(f"a schema registry needs a URL such as http://host:8081, not {url!r}")
        if (user is None) != (password is None):
            raise GraphError("a schema registry needs both user and password, or neither")
        self.url = url
        self._options = {
            "url": url,
            "max.retries": retries,
            "retries.wait.ms": 200,
            "retries.max.wait.ms": 3_000,
            "timeout": timeout_seconds,
            **(options or {}),
        }
        if user is not None:
            self._options["basic.auth.user.info"] = f"{user}:{password}"
        _module()
        self._client: Any = None
        self._schemas: dict[tuple[int, str | None], RegisteredSchema] = {}

    def schema(self, id: int, format: str | None = None) -> RegisteredSchema:
        """Return the schema with an id.

        Arguments:
            id: the id, which is the same in all subjects of the registry.
            format: the form of the text; "serialized" is that of Protobuf in base64.

        Raises:
            UnknownSchemaError: if the registry has no such schema.
            JobError: if the registry cannot be reached, or refuses the request.
        """
        found = self._schemas.get((id, format))
        if found is not None:
            return found
        try:
            schema = self._connected().get_schema(id, fmt=format)
            found = self._registered(schema, format)
        except _error_class() as error:
            if error.http_status_code == _NOT_FOUND:
                raise UnknownSchemaError(
                    f"the schema registry {self.url} has no schema with id {id}"
                ) from None
            raise self._failure(f"get schema {id}", error) from error
        except Exception as error:
            raise self._unreachable(f"get schema {id}", error) from error
        self._schemas[id, format] = found
        return found

    def register(
        self,
        subject: str,
        type: str,
        text: str,
        references: Sequence[Reference] = (),
        *,
        only_look_up: bool = False,
    ) -> tuple[int, int]:
        """Register a schema under a subject, unless it is there already.

        Arguments:
            subject: the name of the subject.
            type: "AVRO", "JSON" or "PROTOBUF".
            text: the text of the schema.
            references: the schemas that the text refers to.
            only_look_up: whether the schema must be there already.

        Returns:
            The id of the schema, and its version in the subject.

        Raises:
            JobError: if the registry refuses the schema, does not have it, or cannot be reached.
        """
        module = _module()
        parts = [module.SchemaReference(*one) for one in references]
        schema = module.Schema(text, schema_type=type, references=parts)
        what = f"{'find' if only_look_up else 'register'} a schema under subject {subject!r}"
        try:
            if not only_look_up:
                id: int = self._connected().register_schema(subject, schema)
                if not references and type != "PROTOBUF":
                    return id, 0  # nothing refers to it, so its version does not matter
            found = self._connected().lookup_schema(subject, schema)
            return found.schema_id, found.version
        except _error_class() as error:
            if only_look_up and error.http_status_code == _NOT_FOUND:
                raise JobError(
                    f"the schema registry {self.url} does not have this schema under subject "
                    f"{subject!r}: register it, or set auto_register=True. The schema: "
                    f"{_shortened(text)}",
                    recoverability=Recoverability.NON_RECOVERABLE,
                ) from error
            raise self._failure(what, error, text) from error
        except Exception as error:
            raise self._unreachable(what, error) from error

    def _registered(self, schema: Any, format: str | None) -> RegisteredSchema:
        """Return a schema of the client, with those that it refers to."""
        references: dict[str, str] = {}

        def add(parts: Any) -> None:
            for part in parts or ():
                if part.name in references:
                    continue
                found = self._connected().get_version(part.subject, part.version, fmt=format)
                add(found.schema.references)
                references[part.name] = found.schema.schema_str

        add(schema.references)
        kind = schema.schema_type or "AVRO"
        return RegisteredSchema(kind, schema.schema_str, tuple(references.items()))

    def _connected(self) -> Any:
        if self._client is None:
            try:
                self._client = _module().SchemaRegistryClient(self._options)
            except (TypeError, ValueError) as error:
                raise JobError(
                    f"a client of the schema registry {self.url} cannot be made: {error}",
                    recoverability=Recoverability.NON_RECOVERABLE,
                ) from error
        return self._client

    def _failure(self, what: str, error: Any, text: str = "") -> JobError:
        """Return the error for an answer that is no success."""
        code = error.http_status_code
        if code not in _REFUSED:
            return self._unreachable(what, error)
        why = _WHY.get(code)
        said = f"{error.error_message} (HTTP {code}, error {error.error_code})"
        shown = f". The schema: {_shortened(text)}" if text else ""
        return JobError(
            f"the schema registry {self.url} refuses to {what}: {f'{why}. It said: ' * bool(why)}"
            f"{said}{shown}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )

    def _unreachable(self, what: str, error: Exception) -> JobError:
        if isinstance(error, JobError):
            return error
        return JobError(
            f"the schema registry {self.url} cannot be reached to {what}: {error or type(error)}. "
            f"The job tries again",
            recoverability=Recoverability.ENVIRONMENT,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}


def _module() -> Any:
    return library("confluent_kafka.schema_registry", "schema-registry", "SchemaRegistry")


def _error_class() -> Any:
    return library(
        "confluent_kafka.schema_registry.error", "schema-registry", "it"
    ).SchemaRegistryError


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]} …"
