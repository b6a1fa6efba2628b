"""The listening socket, taken before anything slow happens."""

from __future__ import annotations

import errno
import socket

from art.config.server import ServerConfig
from art.errors import ArtError, ConfigError


class PortInUse(ArtError):
    """Another process listens on the port."""

    code = "port_in_use"


def check_host(settings: ServerConfig) -> None:
    """ConfigError for a host that other machines can reach, unless that was asked for."""
    if settings.is_loopback or settings.allow_remote:
        return
    raise ConfigError(
        f"the host {settings.host} can be reached from other machines",
        cause="keys and content would cross the network in plain text",
        hint="put a TLS proxy (caddy, nginx) or an SSH tunnel before 127.0.0.1; or, in a network that you trust,"
        " add --allow-remote. Every request needs a key either way; make one per person with a narrow role",
    )


def bind(settings: ServerConfig) -> socket.socket:
    """A bound socket. PortInUse or ConfigError at once."""
    check_host(settings)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"the host {settings.host!r} is not known", cause=str(error)) from error
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
                f"port {settings.port} on {settings.host} is in use",
                cause="another process listens there",
                hint="stop it, or choose another port: --port 0 takes a free one",
            ) from error
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}", cause=str(error)) from error
    sock.set_inheritable(False)
    return sock


def url_of(settings: ServerConfig, sock: socket.socket) -> str:
    """`http://host:port` as programs on this machine reach the socket."""
    port = sock.getsockname()[1]
    host = settings.host
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
