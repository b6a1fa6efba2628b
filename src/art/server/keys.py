"""API keys: 256 random bits, stored as a hash, compared in constant time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from art.errors import ConfigError, Conflict, NotFound
from art.server.auth import Principal
from art.store.records import KeyRow, Role
from art.store.store import Store
from art.types.wire_keys import Quotas

PREFIX = "art_"
ADMIN_KEY_ID = "admin"
_CACHE_SIZE = 4096  # keys kept in memory; a rollout has one each
_NOBODY = hashlib.sha256(b"").hexdigest()
"""Compared with where there is no such key: whether there is takes no other time."""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Keys:
    """Makes and checks keys. A token is `art_<key id>_<secret>`; only its sha256 is kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: dict[str, KeyRow] = {}
        self._changing = asyncio.Lock()
        """Held from reading a key to writing it changed: of two changes at once none is undone."""

    async def create(
        self,
        role: Role,
        project: str | None = None,
        *,
        expires: float | None = None,
        label: str = "",
        quotas: Quotas | None = None,
    ) -> tuple[str, KeyRow]:
        """A new token, shown this once, and what is kept of it. `expires` is a Unix time, None is never."""
        key_id, token = _new_token()
        row = KeyRow(
            key_id=key_id,
            sha256=_digest(token),
            role=role,
            project=project,
            label=label,
            expires_at=expires,
            quotas=quotas or Quotas(),
            account=key_id,
        )
        await self._store.put_key(row)
        self._remember(row)
        return token, row

    async def for_rollout(self, rollout_id: str, project: str, opener: Principal, *, seconds: float) -> str:
        """A token for calls inside one rollout. It ends after `seconds`, or before with the key that opened the rollout."""
        key_id, token = _new_token()
        row = KeyRow(
            key_id=key_id,
            sha256=_digest(token),
            role=Role.INFER,
            project=project,
            rollout_id=rollout_id,
            expires_at=time.time() + seconds,
            account=opener.account,
            opened_by=opener.key_id,
        )
        await self._store.put_key(row)
        self._remember(row)
        return token

    async def revoke(self, key_id: str) -> KeyRow:
        """End a key at once, and those of its rollouts. NotFound when there is none; revoking twice changes nothing."""
        async with self._changing:
            row = await self._known(key_id)
            if row.revoked_at is None:
                row = row.model_copy(update={"revoked_at": time.time()})
                await self._store.put_key(row)
            self._remember(row)
        return row

    async def rotate(self, key_id: str, *, grace_seconds: float) -> tuple[str, KeyRow]:
        """A new token with the rights and the end of an old key, which ends after `grace_seconds`. Open rollouts go on.

        NotFound when there is none; Conflict when it has ended, or is the key of a rollout.
        """
        async with self._changing:
            row = await self._known(key_id)
            if row.rollout_id is not None:
                raise Conflict(
                    f"{key_id} is the key of a rollout", hint="it ends with the rollout; open another"
                )
            now = time.time()
            if _ended(row, now):
                raise Conflict(
                    f"the key {key_id} has ended already", hint="make a new one: POST /api/v1/keys"
                )
            new_id, token = _new_token()
            account = row.account or row.key_id
            new = row.model_copy(
                update={"key_id": new_id, "sha256": _digest(token), "created_at": now, "account": account}
            )
            end = now + grace_seconds
            changes = (
                {"expires_at": min(end, row.expires_at or end)} if grace_seconds else {"revoked_at": now}
            )
            old = row.model_copy(update=changes)
            await self._store.accounts.replace(old, new)
            self._cache = {name: kept for name, kept in self._cache.items() if kept.opened_by != key_id}
            self._remember(old)
            self._remember(new)
        return token, new

    async def change_quotas(self, key_id: str, changes: Mapping[str, int | None]) -> KeyRow:
        """Set the quotas that are named; None lifts one. NotFound, or Conflict for the key of a rollout."""
        async with self._changing:
            row = await self._known(key_id)
            if row.rollout_id is not None:
                raise Conflict(
                    f"{key_id} is the key of a rollout",
                    hint="it uses up the quotas of the key that opened the rollout; change those",
                )
            row = row.model_copy(update={"quotas": row.quotas.model_copy(update=dict(changes))})
            await self._store.put_key(row)
            self._remember(row)
        return row

    async def authenticate(self, token: str) -> Principal | None:
        """The principal of a token, or None when it is unknown, expired or revoked."""
        key_id, _, secret = token.removeprefix(PREFIX).partition("_")
        row = await self._row(key_id) if token.startswith(PREFIX) and secret else None
        same = hmac.compare_digest(_NOBODY if row is None else row.sha256, _digest(token))
        now = time.time()
        if row is None or not same or _ended(row, now):
            return None
        payer = row if row.opened_by is None else await self._row(row.opened_by)
        if payer is None or _ended(payer, now):
            return None
        account = payer.account or payer.key_id
        return Principal(row.key_id, row.role, row.project, row.rollout_id, account, payer.quotas)

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
        row = KeyRow(
            key_id=ADMIN_KEY_ID,
            sha256=_digest(token),
            role=Role.ADMIN,
            label="made at first start",
            account=ADMIN_KEY_ID,
        )
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

    def forget(self) -> None:
        """The keys of rollouts may have been deleted from the store: look them up again."""
        self._cache = {name: row for name, row in self._cache.items() if row.rollout_id is None}

    async def _known(self, key_id: str) -> KeyRow:
        row = await self._store.get_key(key_id)
        if row is None:
            raise no_key(key_id)
        return row

    async def _row(self, key_id: str) -> KeyRow | None:
        """From memory, else from the store. What was changed while the store was read is newer than what it said."""
        row = self._cache.get(key_id)
        if row is not None:
            return row
        read = await self._store.get_key(key_id)
        row = self._cache.get(key_id) or read
        if row is not None:
            self._remember(row)
        return row

    def _remember(self, row: KeyRow) -> None:
        if len(self._cache) >= _CACHE_SIZE and row.key_id not in self._cache:
            del self._cache[next(iter(self._cache))]
        self._cache[row.key_id] = row


def no_key(key_id: str) -> NotFound:
    """The answer for a key that is not there, or not for who asks."""
    return NotFound(f"there is no key {key_id}", hint="GET /api/v1/keys lists them")


def _new_token() -> tuple[str, str]:
    """A key's id, and its token."""
    key_id = secrets.token_hex(6)
    return key_id, f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"


def _ended(row: KeyRow, now: float) -> bool:
    """A rollout's key ends with its rollout: its date says when the row may go, and a clock that jumps ends none."""
    if row.revoked_at is not None:
        return True
    return row.rollout_id is None and row.expires_at is not None and row.expires_at <= now
