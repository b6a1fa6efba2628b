"""Queries over a seeded folder, on a connection as the read API's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from art.store.readers import Readers
from art.store.store import DATABASE


def asker(folder: Path) -> Callable[[Callable[[Any], Any]], Any]:
    """What asks a query of the folder's store."""

    def ask(query: Callable[[Any], Any]) -> Any:
        async def main() -> Any:
            readers = Readers(folder / "server" / DATABASE)
            try:
                return await readers.read(query)
            finally:
                readers.close()

        return asyncio.run(main())

    return ask
