"""Token arrays on disk: one append-only file per rollout, one safetensors buffer per call, encrypted where it is sealed."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from art.errors import InvalidInput
from art.store.sealing import MAGIC, Seal, deleted, is_destroyed, is_sealed
from art.types.tokens import BlobRef


class BlobStore:
    """Reads and appends blobs under `root`. One writer at a time; readers need no lock.

    A crash during an append leaves bytes that no BlobRef names; the next append goes after them.
    """

    def __init__(self, root: Path, seal: Seal | None = None) -> None:
        """Without a `seal` the one of the server's folder, in which `root` lies, is read when it is first needed."""
        self.root = root
        self._seal = seal

    def append(self, path: str, arrays: dict[str, np.ndarray], *, sealed: bool = False) -> BlobRef:
        """Write `arrays` at the end of `path` (relative to the root). The bytes are with the system on return."""
        body = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        if sealed:
            body = self._key().close(body, path)
        file = self._resolve(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            offset = os.fstat(fd).st_size
            view = memoryview(body)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        return BlobRef(path=path, offset=offset, length=len(body), crc32=zlib.crc32(body), sealed=sealed)

    def read(self, ref: BlobRef) -> dict[str, np.ndarray]:
        """The arrays behind `ref`. TokensDeleted when they were destroyed; InvalidInput naming the file when the bytes
        are not the ones written."""
        file = self._resolve(ref.path)
        try:
            with file.open("rb") as handle:
                handle.seek(ref.offset)
                body = handle.read(ref.length)
        except OSError as error:
            raise InvalidInput(f"the token file {file} cannot be read", cause=str(error)) from error
        if is_destroyed(body):
            raise deleted(ref.path)
        if len(body) != ref.length or zlib.crc32(body) != ref.crc32:
            raise InvalidInput(
                f"the token file {file} is damaged at offset {ref.offset}",
                cause=f"{ref.length} bytes with checksum {ref.crc32} were written, other bytes were found",
                hint="restore the file from a backup, or leave this rollout out of training",
            )
        if is_sealed(body):
            body = self._key().open(body, ref.path)
        try:
            return load(body)
        except SafetensorError as error:
            raise InvalidInput(f"the token file {file} holds no arrays at offset {ref.offset}") from error

    def destroy(self, refs: Iterable[BlobRef]) -> int:
        """Overwrite sealed records, their keys first; the number of those that were there. May be repeated."""
        found: dict[str, list[BlobRef]] = {}
        for ref in refs:
            found.setdefault(ref.path, []).append(ref)
        done = 0
        for path, records in found.items():
            try:
                fd = os.open(self._resolve(path), os.O_RDWR)
            except FileNotFoundError:
                continue
            try:
                for ref in records:
                    if os.pread(fd, len(MAGIC), ref.offset) == MAGIC:
                        _overwrite(fd, ref.offset + len(MAGIC), ref.length - len(MAGIC))
                        done += 1
                os.fdatasync(fd)
            finally:
                os.close(fd)
        return done

    def remove(self, paths: Sequence[str], *, dry_run: bool = False) -> int:
        """Delete files; the number of those that were there. With `dry_run` only count."""
        found = 0
        for path in paths:
            file = self._resolve(path)
            found += file.exists()
            if not dry_run:
                file.unlink(missing_ok=True)
        return found

    def sync(self, path: str) -> None:
        """Force `path` to the disk; a file that does not exist has nothing to force."""
        try:
            fd = os.open(self._resolve(path), os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def _key(self) -> Seal:
        if self._seal is None:
            self._seal = Seal.load(self.root.parent)
        return self._seal

    def _resolve(self, path: str) -> Path:
        file = (self.root / path).resolve()
        if not file.is_relative_to(self.root.resolve()):
            raise InvalidInput(f"the blob path {path!r} leaves the store")
        return file


def _overwrite(fd: int, offset: int, length: int) -> None:
    view = memoryview(bytes(length))
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def blob_path(project: str, rollout_id: str) -> str:
    """Where a rollout's token arrays lie, relative to the blob folder."""
    return f"{project}/{rollout_id}.blob"
