"""RemoteBackend: a server that runs elsewhere."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from art.backends.http import FixedEndpoint
from art.backends.server import TRAIN_SECONDS, ServerBackend
from art.errors import ConfigError


class RemoteBackend(ServerBackend):
    """The server at `url`, with one of its keys.

    On that machine: `art serve --port 7999` (and for another host a tunnel, `--tls-cert` or a TLS proxy); the key lies
    in `server/admin.key` in its folder.
    `verify`: a file or folder of CA certificates (PEM) to check an https server against; by default those that this
    machine trusts, or `SSL_CERT_FILE`.
    `gpu_cost_per_hour_usd`: what an hour of that machine costs; steps get their share of it as `costs/gpu`.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        train_timeout: float = TRAIN_SECONDS,
        verify: str | Path | None = None,
        gpu_cost_per_hour_usd: float | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"{url!r} is no server address", hint='give one like "http://127.0.0.1:7999"')
        if not key:
            raise ConfigError(
                "RemoteBackend needs a key",
                hint='key=os.environ["ART_API_KEY"]; the server\'s own lies in server/admin.key in its folder',
            )
        if verify is not None and parts.scheme == "http":
            raise ConfigError(
                f"verify={str(verify)!r} has nothing to check: {url} is plain HTTP",
                hint="give the https:// address, or leave verify out",
            )
        url = url.rstrip("/").removesuffix("/v1")  # the base URL that agents are given, by habit
        super().__init__(
            FixedEndpoint(url, key),
            train_timeout=train_timeout,
            verify=None if verify is None else str(verify),
            gpu_cost_per_hour_usd=gpu_cost_per_hour_usd,
        )
        self.connection.tls()  # a file that cannot be read shows here, not at the first request
        if parts.scheme == "http" and not _stays_here(parts.hostname):
            self.connection.notices.show(
                [f"{url} is plain HTTP: the key and all texts can be read on the way (art serve --tls-cert)"]
            )


def _stays_here(host: str) -> bool:
    """Traffic to `host` leaves this machine for no network."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
