"""The server's certificate: read at the start, and anew when its files change, as renewals do."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from art.errors import ConfigError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Between two looks at the files. A renewal comes weeks before the old certificate ends."""
_READABLE_BY_ALL = 0o004


class Certificate:
    """A certificate chain and its key, in PEM; `key` may lie in the same file. ConfigError when they cannot be used.

    `context` serves new connections with what was read last; open ones keep what they began with.
    """

    def __init__(self, cert: Path, key: Path | None = None) -> None:
        self._cert = cert
        self._key = key or cert
        self._seen = self._stamp()
        self.context = self._context()
        self.context.set_alpn_protocols(["http/1.1"])

    def refresh(self) -> bool:
        """Read the files again where they have changed; True when new connections get another certificate.

        Files that do not fit together (one of the two is being replaced) are told in the log and tried at the next look.
        """
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self._context()  # a trial: a context that took only half of them would serve nobody
            self.context.load_cert_chain(self._cert, self._key, password="")
        except (ConfigError, OSError) as error:
            logger.warning("the renewed certificate is not used yet: %s", error)
            return False
        self._seen = stamp
        logger.info("the certificate %s was read anew", self._cert)
        return True

    async def watch(self) -> None:
        """`refresh` now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.refresh)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # An empty password: a key that wants one must not wait for somebody at a terminal.
            context.load_cert_chain(self._cert, self._key, password="")
        except OSError as error:  # SSLError is one
            raise ConfigError(
                f"the certificate {self._cert} with the key {self._key} cannot be used",
                cause=f"{type(error).__name__}: {error}",
                hint="both are PEM files that belong together, the chain with the server's own certificate first,"
                " the key without a password",
            ) from error
        return context

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes with the files. ConfigError when they are not there, or everybody may read the key."""
        found = []
        for file in (self._cert, self._key):
            try:
                stat = file.stat()
            except OSError as error:
                raise ConfigError(
                    f"{file} cannot be read", cause=str(error), hint="--tls-cert FILE --tls-key FILE, in PEM"
                ) from error
            if file == self._key and stat.st_mode & _READABLE_BY_ALL:
                raise ConfigError(
                    f"the TLS key {file} can be read by everybody on this machine",
                    cause=f"its mode is {stat.st_mode & 0o777:04o}",
                    hint=f"chmod 600 {file}",
                )
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)
