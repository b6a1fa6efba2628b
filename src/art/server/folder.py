"""The server's folder: one server at a time, its address for others, leftovers of a killed one."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.config.running import RECORD
from art.errors import ConfigError, Conflict
from art.server.files import write_json


class ServerFolder:
    """`<path>/server`, held by a file lock while the server runs. The lock ends with the process, however it ends."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.server = self.root / "server"
        self.state_file = self.server / "server.json"
        self.admin_key = self.server / "admin.key"
        self.clients = self.server / "clients"
        self._lock_fd: int | None = None

    def acquire(self) -> None:
        """Take the folder. Conflict with the address of the server that has it."""
        try:
            self.server.mkdir(parents=True, exist_ok=True)
            self.clients.mkdir(exist_ok=True)
            self.server.chmod(0o700)
            fd = os.open(self.server / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"the folder {self.root} cannot be used", cause=str(error), hint="choose another with --path"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Conflict(
                f"a server runs on {self.root} already{self._where()}",
                hint="use that one, or another folder (--path)",
            ) from None
        self._lock_fd = fd

    def _where(self) -> str:
        try:
            state = json.loads(self.state_file.read_text())
            return f": {state['url']} (pid {state['pid']})"
        except (OSError, ValueError, KeyError, TypeError):
            return " and is still starting"

    def announce(self, *, url: str, version: str, settings: Mapping[str, Any]) -> None:
        """Write server.json, and what the server runs with beside it: from now on clients find it."""
        write_json(self.server / RECORD, {"pid": os.getpid(), "settings": settings}, mode=0o600)
        write_json(self.state_file, {"pid": os.getpid(), "url": url, "version": version})

    def release(self) -> None:
        """Give the folder back. The lock file stays: deleting it would let two servers lock two files."""
        if self._lock_fd is not None:
            self.state_file.unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = None

    def intact(self) -> bool:
        """False when the folder was deleted or replaced under the server: what it writes would be lost."""
        assert self._lock_fd is not None, "the folder was taken"
        try:
            there = os.stat(self.server / "server.lock")
        except OSError:
            return False
        ours = os.fstat(self._lock_fd)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def clients_held(self) -> int:
        """Client files that a living process holds; those of dead ones are removed."""
        held = 0
        for file in list(self.clients.iterdir()) if self.clients.is_dir() else ():
            if file.name.startswith("."):  # being made: it gets its name when it is locked
                continue
            try:
                fd = os.open(file, os.O_RDWR)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held += 1
            else:
                file.unlink(missing_ok=True)
            finally:
                os.close(fd)
        return held
