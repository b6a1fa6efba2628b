"""Tokenizers of models whether or not they are served: a page shows tokens of runs whose base model no engine loads."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from art.errors import ArtError
from art.server.versions import Versions
from art.store.store import Store
from art.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

KEPT = 8
"""Tokenizers in memory beside those of served models; each is some ten megabytes."""
OWN_MODELS = ("server", "base_models")
"""Below the server's folder; where that was moved, the paths in the store are those of before."""


class Tokenizers:
    """Found by the version that a call names, each read once."""

    def __init__(self, root: Path, store: Store, versions: Versions) -> None:
        self._root = root
        self._store = store
        self._versions = versions
        self._read: dict[str, Tokenizer | None] = {}
        self._reading = asyncio.Lock()

    async def of(self, version: str) -> Tokenizer | None:
        """Of the model that `project/name@step` is a step of; None where its files are gone."""
        project, _, name = version.rpartition("@")[0].partition("/")
        try:
            return self._versions.entry(project, name).renderer.tokenizer
        except ArtError:
            row = await self._store.get_model(project, name)
        if row is None:
            return None
        async with self._reading:
            if row.base.path not in self._read:
                if len(self._read) >= KEPT:
                    del self._read[next(iter(self._read))]
                self._read[row.base.path] = await asyncio.to_thread(self._load, Path(row.base.path))
            return self._read[row.base.path]

    def _load(self, folder: Path) -> Tokenizer | None:
        for place in (folder, self._moved(folder)):
            if place is not None and place.is_dir():
                try:
                    return Tokenizer.load(place)
                except ArtError as error:
                    logger.warning("tokens are shown as numbers: %s", error)
        return None

    def _moved(self, folder: Path) -> Path | None:
        """Where a model of the server's own folder lies now."""
        parts = folder.parts
        for at in range(len(parts) - 1):
            if parts[at : at + 2] == OWN_MODELS:
                return self._root.joinpath(*parts[at:])
        return None
