"""RemoteBackend: a server that runs elsewhere."""

from __future__ import annotations

from urllib.parse import urlsplit

from art.backends.http import FixedEndpoint
from art.backends.server import TRAIN_SECONDS, ServerBackend
from art.errors import ConfigError


class RemoteBackend(ServerBackend):
    """The server at `url`, with one of its keys.

    On that machine: `art serve --port 7999` (and for another host a tunnel or TLS proxy); the key lies in
    `server/admin.key` in its folder.
    """

    def __init__(self, url: str, key: str | None = None, *, train_timeout: float = TRAIN_SECONDS) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"{url!r} is no server address", hint='give one like "http://127.0.0.1:7999"')
        if not key:
            raise ConfigError(
                "RemoteBackend needs a key",
                hint='key=os.environ["ART_API_KEY"]; the server\'s own lies in server/admin.key in its folder',
            )
        url = url.rstrip("/").removesuffix("/v1")  # the base URL that agents are given, by habit
        super().__init__(FixedEndpoint(url, key), train_timeout=train_timeout)
