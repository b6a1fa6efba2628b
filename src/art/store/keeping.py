"""How long what was recorded is kept: purges, the projects' retention, and tokens that go once they were trained."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from art.errors import ArtError
from art.store import purge, rollout_facts
from art.store.blobs import BlobStore, blob_path
from art.store.database import Database
from art.store.purge import PurgeFilter
from art.store.sql import Conn, insert, rows
from art.types.wire_purge import Purged
from art.types.wire_retention import ProjectRetention

logger = logging.getLogger(__name__)


class Keeping:
    """The part of a store that deletes."""

    def __init__(self, database: Database, blobs: BlobStore) -> None:
        self._db = database
        self._blobs = blobs

    async def purge(self, wanted: PurgeFilter, *, dry_run: bool = False) -> Purged:
        """Delete what the filter names, for good, and tell what it was; with `dry_run` only tell. May be repeated."""
        chosen = await self._db.read(lambda conn: purge.choose(conn, wanted))
        for batch in chosen.batches():
            files = [blob_path(project, name) for name, project in batch] + chosen.token_files
            chosen.token_files.clear()
            chosen.counts.token_files += await asyncio.to_thread(self._blobs.remove, files, dry_run=dry_run)
            if not dry_run:
                await self._db.write(partial(purge.delete, rollouts=batch, wanted=wanted))
        if not dry_run:
            await self._forget_words()
            await self._db.flush()
        return chosen.counts

    async def _forget_words(self) -> None:
        """Rewrite the index of words, a piece at a time, so that recording goes on meanwhile."""
        if not await self._db.read(rollout_facts.must_tidy):
            return
        more = await self._db.write(partial(rollout_facts.tidy, first=True))
        while more:
            more = await self._db.write(partial(rollout_facts.tidy, first=False))

    async def settle(self) -> int:
        """Destroy the sealed tokens that nothing will read any more; the number of calls they were of.

        What cannot be destroyed now is next time; it is logged, and fails nothing.
        """
        done = 0
        try:
            while await self._db.read(lambda conn: bool(purge.settled(conn, limit=1))):
                done += await self._db.write(self._destroy)
            files = await self._db.read(purge.settled_files)
            await asyncio.to_thread(self._blobs.remove, files)
        except (ArtError, OSError) as error:
            logger.warning("encrypted tokens of trained calls could not be deleted for now: %s", error)
        return done

    def _destroy(self, conn: Conn) -> int:
        """Records first: a row whose record is gone is found again, a record that no row names is not."""
        found = purge.settled(conn, limit=purge.BATCH)
        self._blobs.destroy(ref for _, ref in found)
        purge.forget_blobs(conn, [call_id for call_id, _ in found])
        return len(found)

    # -- retention

    async def retentions(self) -> list[ProjectRetention]:
        """Of all projects that have one."""
        return await self._db.read(list_retentions)

    async def set_retention(self, project: str, keep_seconds: float | None) -> ProjectRetention | None:
        """What holds from now on; None keeps everything."""

        def run(conn: Conn) -> ProjectRetention | None:
            if keep_seconds is None:
                conn.execute("DELETE FROM retentions WHERE project = ?", (project,))
                return None
            row = ProjectRetention(project=project, keep_seconds=keep_seconds, changed_at=time.time())
            insert(conn, "retentions", row.model_dump(), replace=("project",))
            return row

        return await self._db.write(run)


def list_retentions(conn: Conn) -> list[ProjectRetention]:
    """Of all projects that have one, by name."""
    found = rows(conn, "SELECT project, keep_seconds, changed_at FROM retentions ORDER BY project")
    return [ProjectRetention.model_validate(dict(row)) for row in found]
