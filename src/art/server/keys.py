"""API keys: 256 random bits, stored as a hash, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path

from art.errors import ConfigError, Conflict, NotFound
from art.server.auth import Principal
from art.store.records import KeyRow, Role
from art.store.store import Store

PREFIX = "art_"
ADMIN_KEY_ID = "admin"
ROLLOUT_KEY_SECONDS = 30 * 24 * 3600.0  # far beyond any rollout; afterwards its key is deleted at a start
_CACHE_SIZE = 4096  # keys kept in memory; a rollout has one each


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Keys:
    """Makes and checks keys. A token is `art_<key id>_<secret>`; only its sha256 is kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: dict[str, KeyRow] = {}

    async def create(
        self,
        role: Role,
        project: str | None = None,
        rollout_id: str | None = None,
        expires: float | None = None,
        *,
        label: str = "",
    ) -> str:
        """A new token, shown this once. `expires` is a Unix time, None is never (a rollout's key: a month)."""
        return (await self.create_row(role, project, rollout_id, expires, label=label))[0]

    async def create_row(
        self,
        role: Role,
        project: str | None = None,
        rollout_id: str | None = None,
        expires: float | None = None,
        *,
        label: str = "",
    ) -> tuple[str, KeyRow]:
        """As `create`, with what is kept of the key."""
        if rollout_id is not None and expires is None:
            expires = time.time() + ROLLOUT_KEY_SECONDS
        key_id = secrets.token_hex(6)
        token = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
        row = KeyRow(
            key_id=key_id,
            sha256=_digest(token),
            role=role,
            project=project,
            rollout_id=rollout_id,
            label=label,
            expires_at=expires,
        )
        await self._store.put_key(row)
        self._remember(row)
        return token, row

    async def revoke(self, key_id: str) -> KeyRow:
        """End a key at once. NotFound when there is none; revoking twice changes nothing."""
        row = await self._store.get_key(key_id)
        if row is None:
            raise NotFound(f"there is no key {key_id}", hint="GET /api/v1/keys lists them")
        if row.revoked_at is None:
            row = row.model_copy(update={"revoked_at": time.time()})
            await self._store.put_key(row)
        self._cache.pop(key_id, None)
        return row

    async def rotate(self, key_id: str, *, grace_seconds: float) -> tuple[str, KeyRow]:
        """A new token with the rights and the end of an old key, which ends after `grace_seconds`.

        NotFound when there is none; Conflict when it has ended, or is the key of a rollout.
        """
        row = await self._store.get_key(key_id)
        if row is None:
            raise NotFound(f"there is no key {key_id}", hint="GET /api/v1/keys lists them")
        now = time.time()
        if row.rollout_id is not None:
            raise Conflict(f"{key_id} is the key of a rollout", hint="it ends with the rollout; open another")
        if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            raise Conflict(f"the key {key_id} has ended already", hint="make a new one: POST /api/v1/keys")
        made = await self.create_row(row.role, row.project, expires=row.expires_at, label=row.label)
        if grace_seconds == 0:
            await self.revoke(key_id)
            return made
        end = now + grace_seconds
        old = row.model_copy(update={"expires_at": min(end, row.expires_at or end)})
        await self._store.put_key(old)
        self._remember(old)
        return made

    async def authenticate(self, token: str) -> Principal | None:
        """The principal of a token, or None when it is unknown, expired or revoked."""
        if not token.startswith(PREFIX):
            return None
        key_id, _, secret = token[len(PREFIX) :].partition("_")
        if not secret:
            return None
        row = self._cache.get(key_id) or await self._store.get_key(key_id)
        if row is None or not hmac.compare_digest(row.sha256, _digest(token)):
            return None
        if row.revoked_at is not None or (row.expires_at is not None and row.expires_at < time.time()):
            return None
        self._remember(row)
        return Principal(row.key_id, row.role, row.project, row.rollout_id)

    async def ensure_admin(self, file: Path) -> None:
        """Make the admin key at the first start; later starts read it from its file (mode 0600)."""
        token = self._read_admin(file)
        if token is None:
            token = f"{PREFIX}{ADMIN_KEY_ID}_{secrets.token_urlsafe(32)}"
            temporary = file.with_suffix(f".{os.getpid()}.tmp")
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w") as handle:
                handle.write(token + "\n")
                handle.flush()
                os.fsync(fd)
            temporary.replace(file)
        row = KeyRow(key_id=ADMIN_KEY_ID, sha256=_digest(token), role=Role.ADMIN, label="made at first start")
        await self._store.put_key(row)

    @staticmethod
    def _read_admin(file: Path) -> str | None:
        try:
            mode = file.stat().st_mode & 0o777
            token = file.read_text().strip()
        except FileNotFoundError:
            return None
        if mode & 0o077:
            raise ConfigError(
                f"the admin key {file} can be read by others",
                cause=f"its mode is {mode:04o}",
                hint=f"chmod 600 {file} (and delete it first if others may have seen it: a new one is made)",
            )
        if not token.startswith(f"{PREFIX}{ADMIN_KEY_ID}_"):
            raise ConfigError(
                f"{file} holds no admin key", hint="delete the file; a new key is made at the next start"
            )
        return token

    def _remember(self, row: KeyRow) -> None:
        if len(self._cache) >= _CACHE_SIZE:
            del self._cache[next(iter(self._cache))]
        self._cache[row.key_id] = row
