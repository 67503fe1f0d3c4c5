"""Define `Tls`, the settings of encrypted connections, and explain handshakes that fail."""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass
from functools import lru_cache

from penstock.dataflow.errors import JobError, Recoverability

#: Parts of the reasons of OpenSSL with which the next handshake fails, too.
_LASTING = re.compile(
    r"CERTIFICATE|UNKNOWN_CA|WRONG_VERSION|PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL|"
    r"HANDSHAKE_FAILURE|NO_SHARED_CIPHER|ACCESS_DENIED|INTERNAL_ERROR"
)
#: The time for which a server has to answer the first message of a handshake, in seconds.
_PROBE_SECONDS = 5.0
#: The types of records with which a server of TLS answers: an alert, a handshake.
_ALERT, _HANDSHAKE = 0x15, 0x16


@dataclass(frozen=True)
class Tls:
    """Encrypts the connections of a connector, and checks the certificate of the server.

    The files are read in the workers, so they must exist on each machine.

    Arguments:
        ca_file: the path of a file with the certificates to trust; None for those of the system.
        certificate: the path of a file with the client's certificate; None if it has none.
        key: the path of a file with the client's private key, if it is not in `certificate`.
        check_hostname: whether the certificate must be for the name of the server's host.

    Examples:
        >>> Tls("ca.pem").certificate is None
        True
    """

    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the context for the connections of a client.

        Raises:
            JobError: if a file is missing or is no certificate.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.check_hostname = self.check_hostname
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            names = [name for name in (self.ca_file, self.certificate, self.key) if name]
            raise JobError(
                f"the files for TLS cannot be read ({', '.join(names)}): {error}",
                recoverability=Recoverability.NON_RECOVERABLE,
            ) from error
        return context


def tls_refusal(error: BaseException) -> str | None:
    """Return why TLS is not possible, and what to do; None for any other error.

    Another try cannot help then. A connection that ends during the handshake is no such error,
    because a server that restarts ends it, too.

    Arguments:
        error: an error of a client. The error of TLS may be its cause or its context.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    reason = str(found.reason or found)
    if isinstance(found, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the server is not trusted ({found.verify_message}): give the "
            f"certificate of the authority that has signed it, and connect by a name that the "
            f"certificate has"
        )
    if _LASTING.search(reason.upper().replace(" ", "_")) is None:
        return None
    if "WRONG_VERSION" in reason:
        return "the server answers without TLS: connect without it, or to its port for TLS"
    return f"the server and the client do not agree on TLS ({reason}): check the certificates"


def speaks_tls(host: str, port: int, *, end: bool = True) -> bool:
    """Return whether a server answers a handshake of TLS. False if it cannot be reached.

    A client without TLS only sees that such a server ends the connection, as one that restarts
    does.

    Arguments:
        host: the name or address of the server.
        port: its port.
        end: whether to end the sending side, so that a server without TLS does not wait for the
            rest of a command. Some servers with TLS do not answer then.
    """
    try:
        return _answers_handshake(host, port, end)
    except OSError:
        return False


@lru_cache(maxsize=256)
def _answers_handshake(host: str, port: int, end: bool) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass  # the first message is in `outgoing`
    with socket.create_connection((host, port), timeout=_PROBE_SECONDS) as connection:
        connection.sendall(outgoing.read())
        if end:
            connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(2, socket.MSG_WAITALL)
        return len(answer) == 2 and answer[0] in (_ALERT, _HANDSHAKE) and answer[1] == 3
