"""What a shell is offered behind TAB: names of models, as fast as one can look and without starting anything."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
import urllib.request
from pathlib import Path

import typer

from art.errors import ArtError

SECONDS = 1.0
"""For a server to answer: longer than that, nobody waits for TAB."""
LOOK_EVERY = 2_000
"""Instructions of SQLite between two looks at the clock; about a millisecond."""
MOST = 200


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """`project/name` of the models that the command line's server or folder has; none where it cannot be asked."""
    url, path = ctx.params.get("url"), ctx.params.get("path")
    if path is None:
        url = url or os.environ.get("ART_URL")
    try:
        names = _of_server(str(url)) if url else _of_folder(None if path is None else Path(path))
    except (OSError, ValueError, KeyError, TypeError, sqlite3.Error, ArtError):
        return []  # an error message behind TAB would stand in the middle of what is being typed
    return [name for name in names if name.startswith(incomplete)]


def _of_server(url: str) -> list[str]:
    request = urllib.request.Request(
        f"{url.rstrip('/').removesuffix('/v1')}/api/v1/models",
        headers={"Authorization": f"Bearer {os.environ.get('ART_API_KEY', '')}"},
    )
    if request.type not in ("http", "https"):
        return []
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return [str(model["inference_name"]) for model in json.load(answer)["models"][:MOST]]


def _of_folder(path: Path | None) -> list[str]:
    from art.cli._served import folder_of
    from art.cli._store import open_store
    from art.store.distrust import require_ours

    give_up = time.monotonic() + SECONDS
    with contextlib.closing(open_store(folder_of(path))) as conn:
        conn.set_progress_handler(lambda: time.monotonic() > give_up, LOOK_EVERY)
        require_ours(conn, path)
        rows = conn.execute(
            "SELECT project || '/' || name FROM models ORDER BY created_at DESC LIMIT ?", (MOST,)
        )
        return [str(name) for (name,) in rows]
