"""The records of a `.wandb` file: LevelDB's log format, W&B's own protocol buffers. W&B has no reader of it in Python."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report_kit import DEADLINE
from wandb.proto import wandb_internal_pb2

HEADER = 7
"""Bytes: of the file (`:W&B`, a magic number, a version) and of each piece (checksum, length, type)."""
BLOCK = 32 * 1024
"""Bytes; no piece crosses the end of a block."""
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = HEADER
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        checksum = int.from_bytes(data[at : at + 4], "little")
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece = data[at + HEADER : at + HEADER + length]
        if len(piece) < length:
            return  # it is still being written
        assert zlib.crc32(bytes([kind]) + piece) == checksum
        yield kind, piece
        at += HEADER + length


def read(file: Path) -> list[Any]:
    """Its records, in order."""
    data = file.read_bytes()
    assert data[:4] in (b"", b":W&B")
    found, whole = [], b""
    for kind, piece in pieces(data):
        whole = piece if kind in (WHOLE, FIRST) else whole + piece
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
    return found


def finished(file: Path) -> list[Any]:
    """Its records, once the last is there: W&B's own process writes them a moment after `finish` has returned."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        found = read(file)
        if any(one.WhichOneof("record_type") == "exit" for one in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{file} was not finished: {[one.WhichOneof('record_type') for one in found]}")


def records(folder: Path) -> list[Any]:
    """All records of the offline runs in a folder, in order."""
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    return [record for file in files for record in finished(file)]
