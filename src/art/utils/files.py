"""Small files that must survive a crash whole."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as JSON, as `write_text` does."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False))


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`: written beside it, synced, renamed. A reader sees old or new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """The file's data, or None when there is no file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def append_line(path: Path, data: Any) -> None:
    """Add one line of JSON, in a single write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(data, allow_nan=False) + "\n")
