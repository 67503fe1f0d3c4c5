"""Open connections to PostgreSQL, and turn its errors into errors of the job."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import GraphError, JobError, Recoverability

if TYPE_CHECKING:
    import psycopg

#: The settings of each session, so that values have one form whatever the server's settings are.
_SESSION = {
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    # A reader that waits for its task may hold a transaction open.
    "idle_in_transaction_session_timeout": "0",
}
#: Names of types whose default length is 1, with the names of the same types for any length.
_UNLIMITED = {"character": "bpchar", "bit": "varbit"}
#: Classes of SQLSTATE codes with which the same statement fails again: no such feature, data that
#: does not fit, a violated constraint, a missing table or right, a violated WITH CHECK.
_LASTING = ("0A", "22", "23", "28", "3D", "3F", "42", "44")
#: Parts of messages with which the server refuses a connection, which has no SQLSTATE in libpq.
_REFUSED = re.compile(
    r"password authentication failed|no pg_hba\.conf entry|does not exist|"
    r"authentication failed|no password supplied|permission denied for database|"
    r"is not permitted to log in|"
    # Of libpq, about TLS. Without the file of an authority, it does not connect at all.
    r"certificate verify failed|certificate|does not match host name|"
    r"server does not support SSL|unknown ca",
    re.IGNORECASE,
)
#: Parts of the messages of refused connections, and what to do.
_ADVICE = (
    (
        r"certificate|does not match host name|unknown ca",
        "check sslmode, sslrootcert and the host of the connection string",
    ),
    (r"server does not support SSL", "configure ssl of the server, or change sslmode"),
    (
        r"no pg_hba\.conf entry",
        "add a line for this user, host and encryption there, or set sslmode=verify-full",
    ),
    (
        r"password|authentication failed",
        "check the user, and the password in PGPASSWORD, in ~/.pgpass or in the connection string",
    ),
)


def require_psycopg() -> None:
    """Check that psycopg 3 is installed.

    Raises:
        GraphError: if it is missing.
    """
    if find_spec("psycopg") is None:
        raise GraphError(
            "PostgreSQL needs psycopg 3, which is not installed here: pip install "
            "'penstock[postgres]'"
        )


def connect(
    conninfo: str, purpose: str, *, session: dict[str, str] | None = None, **parameters: Any
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection whose statements are transactions of their own.

    Arguments:
        conninfo: the connection string.
        purpose: what the connection is for, for the errors and for the list of the server's
            connections (`application_name`).
        session: further settings of the session.
        parameters: further parameters of the connection.

    Raises:
        JobError: if the server cannot be reached, or refuses the connection.
    """
    require_psycopg()
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    with explained(purpose):
        defaults = {
            "application_name": f"penstock: {purpose}"[:63],
            # A connection attempt to a machine that is gone ends, and so does a connection.
            "connect_timeout": "20",
            "keepalives_idle": "30",
            "keepalives_interval": "10",
            "keepalives_count": "3",
        }
        given = conninfo_to_dict(conninfo)
        made = make_conninfo(conninfo, **{**defaults, **given, **parameters})
        connection = psycopg.connect(made, autocommit=True)
        # Not as `options` of the connection, which proxies such as PgBouncer refuse.
        try:
            for name, value in {**_SESSION, **(session or {})}.items():
                connection.execute(f"SET {name} = '{value}'".encode())
        except BaseException:
            connection.close()
            raise
        return connection


@contextlib.contextmanager
def explained(purpose: str) -> Iterator[None]:
    """Raise a `JobError` for each error of psycopg.

    An error with which the same statement fails again ends the job. After any other, such as a lost
    connection, the job restarts.

    Arguments:
        purpose: the action, for the message, such as "read the catalog".
    """
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        text = " ".join(str(error).split()) or type(error).__name__
        if error.sqlstate is None:
            found = (advice for part, advice in _ADVICE if re.search(part, text, re.IGNORECASE))
            text = ": ".join([text, *islice(found, 1)])
        raise JobError(
            f"PostgreSQL: {purpose}: {text}", recoverability=recoverability(error)
        ) from error


def recoverability(error: psycopg.Error) -> Recoverability:
    """Return whether the same statement may succeed later."""
    import psycopg

    if error.sqlstate is not None:
        lasting = error.sqlstate.startswith(_LASTING)
    elif isinstance(error, psycopg.OperationalError):
        lasting = _REFUSED.search(str(error)) is not None
    else:
        # psycopg itself raises these: a value that it cannot send or read.
        lasting = isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
    return Recoverability.NON_RECOVERABLE if lasting else Recoverability.ENVIRONMENT


def column_name(name: str) -> Any:
    """Return a name for a statement with parameters, where each % of the text is doubled."""
    from psycopg.sql import Identifier

    return Identifier(name.replace("%", "%%"))


def type_names(connection: Any, oids: Sequence[int]) -> list[str]:
    """Return types as SQL names them in a cast, without a limit of their length."""
    row = connection.execute(
        "SELECT array(SELECT t::regtype::text FROM unnest(%s::oid[]) WITH ORDINALITY AS u(t, n) "
        "ORDER BY n)",
        [list(oids)],
    ).fetchone()
    return [_UNLIMITED.get(name, name) for name in row[0]]


def check_in_program(check: Any) -> None:
    """Call a check in the process of the program, before a job starts.

    A server that cannot be reached does not prevent the start: the job waits for it.

    Raises:
        GraphError: if the check finds something that waiting does not mend.
    """
    try:
        check()
    except JobError as error:
        if error.recoverability is Recoverability.NON_RECOVERABLE:
            raise GraphError(error.message) from error
