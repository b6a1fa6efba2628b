"""Which checkpoints stay: the latest, the best by validation reward, the last few, and those in use."""

from __future__ import annotations

import logging
import math

from art.config.server import ServerConfig
from art.errors import ArtError
from art.server.versions import ModelEntry, Versions
from art.store.store import Store
from art.trainer.protocol import Trainer

logger = logging.getLogger(__name__)

BEST_BY = "val/reward"


class Retention:
    """Deletes checkpoints of a model. Applied after each published step; asked for by the API."""

    def __init__(self, settings: ServerConfig, *, store: Store, trainer: Trainer, versions: Versions) -> None:
        self._settings = settings
        self._store = store
        self._trainer = trainer
        self._versions = versions

    async def apply(self, entry: ModelEntry) -> list[int]:
        """Delete what the rule does not keep; the deleted steps. A failure is logged and never fails a job."""
        project, name = entry.key
        rows = await self._store.list_checkpoints(project, name)
        steps = [row.info.step for row in rows]
        keep = {0, entry.step, *steps[-self._settings.keep_checkpoints :], *entry.leased()}
        best = best_step(await self._store.list_history(project, name))
        if best is not None:
            keep.add(best)
        deleted: list[int] = []
        for row in rows:
            if row.info.step in keep:
                continue
            try:
                await self.delete(entry, row.info.step, row.info.path)
            except ArtError as error:
                logger.warning("%s: step %d stays for now: %s", entry.wire_name, row.info.step, error)
            else:
                deleted.append(row.info.step)
        return deleted

    async def delete(self, entry: ModelEntry, step: int, path: str) -> None:
        """Delete one step: first it is not served any more, then forgotten, then its files go.

        Conflict when it is the latest or in use.
        """
        await self._versions.forget(entry, step)
        await self._store.remove_checkpoint(*entry.key, step)
        await self._trainer.delete_checkpoint(path)


def best_step(history: list[dict[str, object]]) -> int | None:
    """The step with the best mean validation reward; the later one of equals; None without any."""
    sums: dict[int, list[float]] = {}
    for row in history:
        value, step = row.get(BEST_BY), row.get("step")
        if isinstance(value, int | float) and isinstance(step, int) and math.isfinite(value):
            sums.setdefault(step, []).append(float(value))
    if not sums:
        return None
    return max(sums, key=lambda step: (sum(sums[step]) / len(sums[step]), step))
