"""The listening sockets, taken before anything slow happens.

A server with a certificate has two: TLS on its host and port, and plain HTTP on a free port of loopback, for the
programs of this machine, whose traffic leaves no memory of it and whose clients know no certificate.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from art.config.server import ServerConfig
from art.errors import ArtError, ConfigError
from art.server.tls import Certificate

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


class PortInUse(ArtError):
    """Another process listens on the port."""

    code = "port_in_use"


@dataclass(frozen=True, slots=True)
class Listening:
    """The sockets of one server."""

    plain: socket.socket
    url: str
    """`http://host:port` as programs on this machine reach the plain one."""
    tls: socket.socket | None = None
    certificate: Certificate | None = None
    tls_url: str | None = None
    """`https://host:port`, the host as it was given."""


def check_host(settings: ServerConfig) -> None:
    """ConfigError for a host that other machines can reach, unless it speaks TLS or that was asked for."""
    if settings.is_loopback or settings.tls_cert is not None:
        return
    if settings.allow_remote:
        logger.warning(
            "plain HTTP on %s: whoever can listen on the way to this machine can read keys and texts;"
            " --tls-cert and --tls-key encrypt them",
            settings.host,
        )
        return
    raise ConfigError(
        f"the host {settings.host} can be reached from other machines",
        cause="keys and content would cross the network in plain text",
        hint="encrypt it: --tls-cert FILE --tls-key FILE; or put a TLS proxy (caddy, nginx) or an SSH tunnel before"
        " 127.0.0.1; or, in a network that you trust, add --allow-remote. Every request needs a key either way; make"
        " one per person with a narrow role",
    )


@contextlib.contextmanager
def listening(settings: ServerConfig) -> Iterator[Listening]:
    """The bound sockets. PortInUse or ConfigError at once."""
    check_host(settings)
    certificate = None
    if settings.tls_cert is not None:
        certificate = Certificate(settings.tls_cert, settings.tls_key)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(bind(settings.host, settings.port))
        if certificate is None:
            yield Listening(sock, _url("http", settings.host, sock))
            return
        plain = stack.enter_context(bind(LOOPBACK, 0))
        yield Listening(
            plain,
            _url("http", LOOPBACK, plain),
            tls=sock,
            certificate=certificate,
            tls_url=_url("https", settings.host, sock),
        )


def bind(host: str, port: int) -> socket.socket:
    """A bound socket. PortInUse or ConfigError at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"the host {host!r} is not known", cause=str(error)) from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A killed server's connections linger in TIME_WAIT; its successor takes the port all the same.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"port {port} on {host} is in use",
                cause="another process listens there",
                hint="stop it, or choose another port: --port 0 takes a free one",
            ) from error
        raise ConfigError(f"cannot listen on {host}:{port}", cause=str(error)) from error
    sock.set_inheritable(False)
    return sock


def _url(scheme: str, host: str, sock: socket.socket) -> str:
    """The socket's address; one that listens everywhere is reached on loopback from here."""
    port = sock.getsockname()[1]
    if host in ("0.0.0.0", "::"):
        host = LOOPBACK
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
