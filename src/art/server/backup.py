"""A server's folder, copied while the server runs, and put back elsewhere.

The database is copied first, by SQLite's own online backup, and the files that it names after it: token files only grow and
checkpoints never change, so whatever the copy of the database names is in the files. What a running server deletes
meanwhile is told and marked as deleted. A backup appears whole or not at all, with the sha256 of every file.

Not copied: logs, locks, history.jsonl (a restored server writes it anew from the database), and checkpoints that were
not published.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from art.config.data_key import FILE as DATA_KEY
from art.errors import ConfigError, Conflict, InvalidInput, NotFound
from art.store.store import BLOBS, DATABASE
from art.version import package_version

INFO = "backup.json"
FILES = "files"
SERVER = "server"
ADMIN_KEY = "admin.key"
BASE_MODELS = "base_models"
MARGIN_BYTES = 64 * 1024**2
"""Free space that is left to whoever else uses the disk."""
CHUNK_BYTES = 1024**2
JSON_PATHS = (("models", "base"), ("checkpoints", "info"), ("jobs", "result"))
"""Columns with JSON in which absolute paths of the folder stand."""


class BackedFile(BaseModel):
    """One file of a backup."""

    size: int
    sha256: str


class BackupInfo(BaseModel):
    """What a backup holds; its `backup.json`."""

    schema_version: int = 1
    created_at: float
    art_version: str
    root: str
    """The folder it is a copy of."""
    models: int
    rollouts: int
    files: dict[str, BackedFile]
    """By path in the folder."""
    deleted_meanwhile: list[str] = Field(default_factory=list)
    """What the database named and the server deleted before it was copied."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def back_up(root: Path, target: Path, *, base_models: bool = True) -> BackupInfo:
    """Copy the server's folder `root` to the new folder `target`; the server may run.

    NotFound when `root` is no server's folder, Conflict when `target` exists, ConfigError when the disk is too small or
    refuses. `base_models=False` leaves converted base models out: they are made again from their source.
    """
    root, target = root.absolute(), target.absolute()
    database = root / SERVER / DATABASE
    if not database.is_file():
        raise NotFound(f"{root} is no server's folder", hint="name it with --path")
    if target.exists():
        raise Conflict(f"{target} exists already", hint="name a folder that does not exist yet")
    if target.is_relative_to(root):
        raise ConfigError(f"{target} lies inside the folder that is copied", hint="name one outside of it")
    with _whole_or_not(target) as made:
        copied = made / FILES / SERVER / DATABASE
        copied.parent.mkdir(parents=True)
        _copy_database(database, copied)
        with contextlib.closing(sqlite3.connect(copied)) as conn:
            wanted = [
                *_optional(root, [root / SERVER / ADMIN_KEY, root / SERVER / DATA_KEY]),
                *_blobs(root),
                *_models(root, conn),
                *(_tree(root, root / SERVER / BASE_MODELS) if base_models else ()),
            ]
            _check_space(made, wanted)
            files: dict[str, BackedFile] = {}
            gone: list[str] = []
            for source in wanted:
                name = source.path.relative_to(root).as_posix()
                try:
                    files[name] = _copy(source.path, made / FILES / name)
                except FileNotFoundError:
                    if source.gone is not None:
                        source.gone(conn)
                        gone.append(name)
            conn.commit()
            models, rollouts = (
                int(conn.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])
                for table in ("models", "rollouts")
            )
        files[f"{SERVER}/{DATABASE}"] = _digest(copied)
        info = BackupInfo(
            created_at=time.time(),
            art_version=package_version(),
            root=str(root),
            models=models,
            rollouts=rollouts,
            files=files,
            deleted_meanwhile=gone,
        )
        (made / INFO).write_text(info.model_dump_json(indent=1))
    return info


def restore(backup: Path, root: Path) -> BackupInfo:
    """Make the server's folder `root` of a backup. Every file is held against its sha256.

    NotFound when `backup` is none, InvalidInput when a file is missing or damaged, Conflict when `root` is in use.
    """
    backup, root = backup.absolute(), root.absolute()
    info = read_info(backup)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise Conflict(
            f"{root} exists and is not empty",
            hint="move it away first, or restore to another folder (--path): nothing is overwritten",
        )
    with _whole_or_not(root) as made:
        for name, expected in info.files.items():
            target = (made / name).resolve()
            if not target.is_relative_to(made.resolve()):
                raise InvalidInput(f"the backup names a file outside of its folder: {name!r}")
            try:
                found = _copy(backup / FILES / name, target)
            except FileNotFoundError:
                raise InvalidInput(
                    f"the backup lacks the file {name}", hint="nothing was restored; use another backup"
                ) from None
            if found != expected:
                raise InvalidInput(
                    f"the backup's file {name} is damaged",
                    cause=f"sha256 {found.sha256[:16]}… was found, {expected.sha256[:16]}… was written",
                    hint="nothing was restored; use another backup",
                )
        with contextlib.closing(sqlite3.connect(made / SERVER / DATABASE)) as conn:
            _move_paths(conn, info.root, str(root))
            conn.commit()
        (made / SERVER).chmod(0o700)
    return info


def read_info(backup: Path) -> BackupInfo:
    """The backup's description. NotFound when there is none, InvalidInput when it cannot be read."""
    try:
        return BackupInfo.model_validate_json((backup / INFO).read_text())
    except FileNotFoundError:
        raise NotFound(f"{backup} is no backup", cause=f"it has no {INFO}") from None
    except (OSError, ValidationError) as error:
        raise InvalidInput(f"{backup / INFO} cannot be read", cause=str(error)) from error


@dataclass(frozen=True, slots=True)
class _Source:
    """A file to copy."""

    path: Path
    size: int
    gone: Callable[[sqlite3.Connection], None] | None = None
    """What the copied database is told when the server has deleted the file; None: nothing needs to know."""


@contextlib.contextmanager
def _whole_or_not(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it at the end; an error or a kill leaves no `target`."""
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    _remove_killed(target)
    try:
        partial.mkdir(parents=True, mode=0o700)
        yield partial
        fd = os.open(partial, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        partial.rename(target)
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written",
            cause=str(error),
            hint="check free space and permissions; nothing was left behind",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_killed(target: Path) -> None:
    """Delete what processes left that were killed while they made this target."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.partial-*"):
        try:
            os.kill(int(left.name.rpartition("-")[2]), 0)
        except (ProcessLookupError, ValueError):
            shutil.rmtree(left, ignore_errors=True)
        except PermissionError:  # another user's, and alive
            continue


def _copy_database(source: Path, target: Path) -> None:
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=30)) as live,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error as error:
        raise ConfigError(
            f"{source} cannot be copied", cause=str(error), hint="check free space, and that it is a store"
        ) from error
    target.chmod(0o600)


def _blobs(root: Path) -> Iterator[_Source]:
    """The token files, as long as they are now."""
    yield from _tree(root, root / SERVER / BLOBS)


def _models(root: Path, conn: sqlite3.Connection) -> Iterator[_Source]:
    """What lies in the models' folders: published checkpoints that were not deleted, and all further files."""
    for project, name, model_dir in conn.execute("SELECT project, name, model_dir FROM models").fetchall():
        folder = Path(model_dir)
        steps = conn.execute(
            "SELECT step FROM checkpoints WHERE project = ? AND name = ? AND deleted_at IS NULL",
            (project, name),
        ).fetchall()
        for (step,) in steps:
            checkpoint = folder / "checkpoints" / f"{step:04d}"

            def gone(copy: sqlite3.Connection, at: tuple[str, str, int] = (project, name, step)) -> None:
                copy.execute(
                    "UPDATE checkpoints SET deleted_at = ? WHERE project = ? AND name = ? AND step = ?",
                    (time.time(), *at),
                )

            found = list(_tree(root, checkpoint, gone=gone))
            yield from found or [_Source(checkpoint / "manifest.json", 0, gone)]
        if folder.is_dir():
            for entry in sorted(folder.iterdir()):
                if entry.is_file() and entry.name != "history.jsonl" and not entry.name.startswith("."):
                    yield from _optional(root, [entry])


def _tree(
    root: Path, folder: Path, *, gone: Callable[[sqlite3.Connection], None] | None = None
) -> Iterator[_Source]:
    """All files under `folder` but temporary ones."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(".lock"):
                with contextlib.suppress(FileNotFoundError):
                    file = Path(parent) / name
                    yield _Source(file, file.stat().st_size, gone)


def _optional(root: Path, files: list[Path]) -> Iterator[_Source]:
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            yield _Source(file, file.stat().st_size)


def _check_space(where: Path, wanted: list[_Source]) -> None:
    """ConfigError when the disk cannot take what is to be copied."""
    needed, free = sum(source.size for source in wanted), shutil.disk_usage(where).free
    if needed + MARGIN_BYTES > free:
        raise ConfigError(
            f"the backup needs {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free",
            hint="free some space, name a folder on another disk, or leave base models out",
        )


def _copy(source: Path, target: Path) -> BackedFile:
    """Copy a file, force it to the disk and tell what was read. Only its owner may read the copy."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as reading:
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as writing:
            while chunk := reading.read(CHUNK_BYTES):
                writing.write(chunk)
                digest.update(chunk)
                size += len(chunk)
            writing.flush()
            os.fsync(writing.fileno())
    return BackedFile(size=size, sha256=digest.hexdigest())


def _digest(file: Path) -> BackedFile:
    with file.open("rb") as reading:
        digest = hashlib.file_digest(reading, "sha256").hexdigest()
    return BackedFile(size=file.stat().st_size, sha256=digest)


def _move_paths(conn: sqlite3.Connection, old: str, new: str) -> None:
    """Let the database name the files where they lie now."""
    for rowid, path in conn.execute("SELECT rowid, model_dir FROM models").fetchall():
        conn.execute("UPDATE models SET model_dir = ? WHERE rowid = ?", (_moved(path, old, new), rowid))
    for table, column in JSON_PATHS:
        for rowid, text in conn.execute(
            f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL"
        ).fetchall():
            data = json.loads(text)
            if (moved := _moved(data, old, new)) != data:
                body = json.dumps(moved, ensure_ascii=False, separators=(",", ":"))
                conn.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (body, rowid))


def _moved(value: Any, old: str, new: str) -> Any:
    """`value` with every path in `old` as one in `new`."""
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(old + os.sep) else value
    if isinstance(value, list):
        return [_moved(item, old, new) for item in value]
    if isinstance(value, dict):
        return {name: _moved(item, old, new) for name, item in value.items()}
    return value
