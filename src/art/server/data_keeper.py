"""Enforces in the background what projects say about their data: retention, and tokens that go once they were trained."""

from __future__ import annotations

import asyncio
import logging
import time

from art.errors import ArtError
from art.server.keys import Keys
from art.store.purge import PurgeFilter
from art.store.records import AuditRow
from art.store.store import Store
from art.types.wire_purge import Purged
from art.types.wire_retention import ProjectRetention, RetentionSet

logger = logging.getLogger(__name__)

ROUND_SECONDS = 600.0
"""Between two looks. What is kept for days is not deleted to the minute."""
ACTION = "retention"
"""In the audit log, without a key: the server itself."""


class DataKeeper:
    """`start` once, `stop` once."""

    def __init__(self, store: Store, keys: Keys, *, round_seconds: float = ROUND_SECONDS) -> None:
        self._store = store
        self._keys = keys
        self._round_seconds = round_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """The first look is now: the server may have been down for days."""
        self._task = asyncio.create_task(self._rounds(), name="data-keeper")

    async def stop(self) -> None:
        """A project that is being purged is purged on at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def set(self, project: str, keep_seconds: float | None, *, dry_run: bool) -> RetentionSet:
        """Say how long a project's data is kept, and delete at once what is older; with `dry_run` only count it."""
        if dry_run and keep_seconds is not None:
            row = ProjectRetention(project=project, keep_seconds=keep_seconds, changed_at=time.time())
            return RetentionSet(retention=row, purged=await self._purge(row, dry_run=True))
        if dry_run:
            return RetentionSet(retention=None, purged=Purged())
        kept = await self._store.keeping.set_retention(project, keep_seconds)
        return RetentionSet(retention=kept, purged=Purged() if kept is None else await self._enforce(kept))

    async def look(self) -> None:
        """One round over all projects."""
        await self._store.keeping.settle()
        for row in await self._store.keeping.retentions():
            await self._enforce(row)

    async def _rounds(self) -> None:
        while True:
            try:
                await self.look()
            except ArtError as error:
                logger.warning("data that is too old could not be deleted for now: %s", error)
            except Exception:
                # A boundary: a fault of ours in one round must not end all later ones.
                logger.exception("a round of the data keeper failed")
            await asyncio.sleep(self._round_seconds)

    async def _enforce(self, row: ProjectRetention) -> Purged:
        """Delete what is older than the project keeps, and write down that it went."""
        purged = await self._purge(row, dry_run=False)
        deleted = purged.model_dump(exclude={"kept_running", "kept_in_jobs"})
        if any(deleted.values()):
            self._keys.forget()  # those of the rollouts are gone
            entry = AuditRow(
                key_id=None,
                action=ACTION,
                target=row.project,
                detail={"keep_seconds": row.keep_seconds, **deleted},
            )
            await self._store.add_audit(entry)
            logger.info("%s: deleted what is older than it keeps: %s", row.project, deleted)
        return purged

    async def _purge(self, row: ProjectRetention, *, dry_run: bool) -> Purged:
        wanted = PurgeFilter(project=row.project, before=time.time() - row.keep_seconds)
        return await self._store.purge(wanted, dry_run=dry_run)
