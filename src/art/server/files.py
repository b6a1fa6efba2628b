"""Small files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(file: Path, data: Any, *, mode: int = 0o644) -> None:
    """Replace `file` by rename, so that a reader never sees half of it."""
    _replace(file, json.dumps(data, indent=2, allow_nan=False) + "\n", mode)


def write_lines(file: Path, rows: list[Any]) -> None:
    """Replace `file` by one JSON line per row."""
    _replace(file, "".join(_line(row) for row in rows), 0o644)


def _replace(file: Path, text: str, mode: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(file)


def append_line(file: Path, data: Any) -> None:
    """Append one JSON line with a single write, after ending a line that a crash cut off."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = _line(data)
    with file.open("a+b") as handle:
        if handle.seek(0, os.SEEK_END) > 0:
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                line = "\n" + line
        handle.write(line.encode())


def _line(data: Any) -> str:
    return json.dumps(data, allow_nan=False, ensure_ascii=False) + "\n"
