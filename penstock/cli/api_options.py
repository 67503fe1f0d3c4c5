"""The options of the HTTP API, and its server during `penstock run`."""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.options import JobOptions, print_message

if TYPE_CHECKING:
    from penstock.cli.script import Watch
    from penstock.rest.access import ApiAccess
    from penstock.rest.observers import JobObserver
    from penstock.rest.server import ServerCertificate
    from penstock.runtime.dispatcher.control_plane import ControlPlane

Command = TypeVar("Command", bound=Callable[..., Any])

#: The port of the API if the user gives none; Flink's.
DEFAULT_PORT = 8081
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ApiOptions:
    """The options of the HTTP API.

    Arguments:
        port: the TCP port to listen on; 0 for any free port.
        host: the address to listen on.
        certificate, key: the files of the certificate for TLS; None without TLS.
        names: further names of this machine that requests may use.
        private_state: whether the token that is only for reading may not query state.
        read_token: the file of the token that is only for reading; None for the state folder.
    """

    port: int
    host: str
    certificate: Path | None
    key: Path | None
    names: tuple[str, ...]
    private_state: bool = False
    read_token: Path | None = None

    def words(self) -> tuple[str, ...]:
        """Return the options as words of a command line."""
        words: tuple[str, ...] = ("--ui", str(self.port))
        if self.host != _LOOPBACK[1]:
            words += ("--ui-host", self.host)
        if self.certificate is not None:
            words += ("--ui-cert", str(self.certificate), "--ui-key", str(self.key))
        for name in self.names:
            words += ("--ui-name", name)
        if self.private_state:
            words += ("--ui-private-state",)
        if self.read_token is not None:
            words += ("--ui-read-token", str(self.read_token))
        return words

    def tls(self) -> ServerCertificate | None:
        """Return the certificate. Raise `PenstockError` if it cannot be used."""
        if self.certificate is None or self.key is None:
            return None
        from penstock.rest.server import ServerCertificate

        tls = ServerCertificate(self.certificate, self.key)
        tls.check()
        return tls


def api_options(command: Command) -> Command:
    """Add the options of the HTTP API to a command, which gets them as the argument `api`."""

    @functools.wraps(command)
    def with_api(**values: Any) -> Any:
        given = {name: values.pop(name) for name in ("ui", "ui_host", "ui_cert", "ui_key")}
        given["ui_read_token"] = values.pop("ui_read_token")
        names, private = values.pop("ui_names"), values.pop("ui_private_state")
        return command(api=_checked(given, names, private), **values)

    decorated: Any = with_api
    file = click.Path(path_type=Path, exists=True, dir_okay=False)
    for decorate in (
        click.option(
            "--ui-read-token",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="With --ui: keep the token that is only for reading in this file, and not in the "
            "state folder.",
        ),
        click.option(
            "--ui-private-state",
            is_flag=True,
            help="With --ui: the token that is only for reading may not query the state of jobs.",
        ),
        click.option(
            "--ui-name",
            "ui_names",
            multiple=True,
            metavar="NAME",
            help="With --ui: a further name of this machine that requests may use; may be given "
            "several times.",
        ),
        click.option("--ui-key", type=file, metavar="FILE", help="With --ui-cert: the key."),
        click.option(
            "--ui-cert", type=file, metavar="FILE", help="With --ui: serve TLS, with this chain."
        ),
        click.option(
            "--ui-host",
            metavar="H",
            help="With --ui: the address to listen on.  [default: 127.0.0.1]",
        ),
        click.option(
            "--ui",
            is_flag=False,
            flag_value=str(DEFAULT_PORT),
            metavar="[PORT]",
            help="Serve the HTTP API and metrics on this port, 0 for any free one.  "
            f"[default: {DEFAULT_PORT}]",
        ),
    ):
        decorated = decorate(decorated)
    return decorated  # type: ignore[no-any-return]


def _checked(
    given: dict[str, Any], names: tuple[str, ...], private_state: bool
) -> ApiOptions | None:
    port, host = given["ui"], given["ui_host"]
    certificate, key, read_token = given["ui_cert"], given["ui_key"], given["ui_read_token"]
    if port is None:
        files = (host, certificate, key, read_token)
        if private_state or names or any(one is not None for one in files):
            raise click.UsageError(
                "--ui-host, --ui-cert, --ui-key, --ui-name, --ui-private-state and "
                "--ui-read-token go with --ui."
            )
        return None
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        hint = ""
        if port.endswith(".py"):
            hint = f" Write it after the job file: penstock run {port} --ui"
        raise click.UsageError(f"--ui {port!r} is no port.{hint}")
    if (certificate is None) != (key is None):
        raise click.UsageError("--ui-cert and --ui-key go together.")
    host = host or _LOOPBACK[1]
    return ApiOptions(int(port), host, certificate, key, names, private_state, read_token)


def prepare_service(
    api: ApiOptions | None, observers: Sequence[JobObserver], root: Path, slots: int | None
) -> tuple[str, Callable[..., Awaitable[None]]]:
    """Return where the HTTP API of a job service will be, and the function that serves it.

    The function also runs the observers of jobs.

    Raise `PenstockError` if the server cannot start.

    Arguments:
        api: the options of the API; None for no API.
        observers: see the events of all jobs.
        root: the state folder of the service.
        slots: the number of slots of the service; None if it is not limited.
    """
    from penstock.rest.service_jobs import serve_service

    listener, access, certificate, message = None, None, None, ""
    if api is not None:
        from penstock.rest.server import require_packages

        require_packages()
        listener, access, certificate, message = _prepare(api, root)

    async def serve(control: ControlPlane, task_status: Any) -> None:
        await serve_service(control, slots, listener, access, certificate, observers, task_status)

    return message, serve


def _prepare(
    api: ApiOptions, root: Path
) -> tuple[socket.socket, ApiAccess, ServerCertificate | None, str]:
    """Return the socket, the access and the certificate of a server, and where it is."""
    from penstock.rest.access import ApiAccess, Tokens
    from penstock.rest.server import listen, url_of
    from penstock.runtime.dispatcher.state_folder import TOKEN_FOLDER

    certificate = api.tls()
    folder = root / TOKEN_FOLDER
    tokens = Tokens.load(folder, api.read_token)
    access = ApiAccess(tokens, (*api.names, api.host), not api.private_state)
    listener = listen(api.host, api.port)
    url = url_of(listener, api.host, certificate)
    message = f"HTTP API at {url}/v1, its token is in {folder / 'token'}"
    # A browser sends no fragment to the server. A log that others read does not get the token.
    message += f"\npage at {url}/" + (f"#token={tokens.full}" if sys.stderr.isatty() else "")
    if certificate is None and api.host not in _LOOPBACK:
        message += (
            f"\nwarning: {api.host} can be reached from outside, and without --ui-cert the token "
            f"and all answers can be read on the way"
        )
    return listener, access, certificate, message


@contextmanager
def serving(
    options: JobOptions, api: ApiOptions | None, observers: Sequence[JobObserver]
) -> Iterator[Watch | None]:
    """Serve the HTTP API while the block runs, and run the observers of jobs.

    The block gets a function that adds a job to them; None if there is neither.
    Raise `PenstockError` if the server cannot start.

    Arguments:
        options: the options of the command.
        api: the options of the API; None for no API.
        observers: see the events of all jobs.
    """
    if api is None and not observers:
        yield None
        return
    from penstock.rest.program_jobs import ApiServer, ProgramServer

    server: ApiServer | None = None
    message = ""
    if api is not None:
        from penstock.rest.server import require_packages

        require_packages()
        from penstock.runtime.dispatcher.state_folder import StateFolder

        listener, access, certificate, message = _prepare(api, StateFolder().root)
        server = ApiServer(listener, access, certificate)
    with ProgramServer(server, observers) as running:
        if message and options.progress != "none":
            print_message(message)
        yield running.jobs.watch


def with_api_words(options: JobOptions, api: ApiOptions | None) -> JobOptions:
    """Return options whose command for a resume has the options of the API."""
    return options if api is None else replace(options, extra=(*options.extra, *api.words()))
