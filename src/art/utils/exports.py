"""Exports of runs as files: fetched from a server, written whole or not at all, and read back.

JSONL needs nothing more; Parquet needs pyarrow (`pip install 'agent-reinforcement-trainer[parquet]'`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode

import httpx2
from pydantic import ValidationError

from art.errors import InfraError, InvalidInput
from art.types.wire_export import FORMAT, RECORD, ExportedLog, ExportedRollout, ExportEnd
from art.utils import parquet

if TYPE_CHECKING:
    from art.backends.http import Connection

Format = Literal["jsonl", "parquet"]
Exported = ExportedRollout | ExportedLog
MAX_BATCH_BYTES = 8_000_000
"""Of JSON that is gathered before a row group of Parquet is written."""
MAX_BATCH_RECORDS = 256
_END = b'{"kind":"end"'


Sink = Callable[[bytes], None]
"""Takes one record as a line of JSON."""


@contextmanager
def jsonl_sink(file: IO[bytes]) -> Iterator[Sink]:
    """Writes lines as they come: nothing is read and written anew."""

    def add(line: bytes) -> None:
        file.write(line + b"\n")

    yield add


@contextmanager
def parquet_sink(file: IO[bytes]) -> Iterator[Sink]:
    """Gathers records into row groups, so that memory is bounded whatever the run's length."""
    waiting: list[dict[str, Any]] = []
    size = 0

    def add(line: bytes) -> None:
        nonlocal waiting, size
        waiting.append(parquet.row_of(parse(line)))
        size += len(line)
        if size >= MAX_BATCH_BYTES or len(waiting) >= MAX_BATCH_RECORDS:
            table.write(waiting)
            waiting, size = [], 0

    with parquet.TableWriter(file, parquet.record_schema()) as table:
        yield add
        if waiting:
            table.write(waiting)


async def export_run(
    connection: Connection,
    project: str,
    name: str,
    target: Path,
    *,
    format: Format | None = None,
    step: int | None = None,
    split: str | None = None,
    status: str | None = None,
) -> int:
    """Write what a server holds of a run to `target`; the number of records.

    `format`: by the file's ending where it is not given. `step`, `split` (`train`, `val`, ...) and `status` restrict. An
    export that breaks off leaves no file, and one that was there stays. InfraError when the server's answer was cut short.
    """
    kind = format or format_of(target)
    query = urlencode(
        {
            key: value
            for key, value in (("step", step), ("split", split), ("status", status))
            if value is not None
        }
    )
    path = f"/api/v1/models/{quote(project, safe='')}/{quote(name, safe='')}/export?{query}"
    if kind == "parquet":
        parquet.require()
    with whole_file(target) as file, (jsonl_sink if kind == "jsonl" else parquet_sink)(file) as sink:
        return await _fetch(connection, path, sink)


async def _fetch(connection: Connection, path: str, sink: Sink) -> int:
    from art.backends.http import READ_SECONDS, error_of

    count, end = 0, None
    try:
        async with connection.stream(path, silence_seconds=READ_SECONDS) as response:
            if not response.is_success:
                await response.aread()
                raise error_of(response)
            async for line in _lines(response):
                if line.startswith(_END):
                    end = ExportEnd.model_validate_json(line)
                elif line:
                    sink(line)
                    count += 1
    except httpx2.TransportError as error:
        raise _cut(f"{type(error).__name__}: {error}") from error
    if end is None or end.records != count:
        raise _cut(f"{count} records came, and {'no end' if end is None else f'{end.records} were sent'}")
    return count


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Cut at line feeds alone: JSON may hold what else counts as a line's end."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _cut(cause: str) -> InfraError:
    return InfraError(
        "the export was cut short, and no file was written",
        cause=cause,
        hint="try again; server/logs/gateway.log tells more",
    )


def read_export(file: str | Path) -> Iterator[Exported]:
    """The records of an export, one after the other. InvalidInput for a file that is none, naming the line or row."""
    path = Path(file)
    if format_of(path) == "parquet":
        for number, row in enumerate(parquet.read_rows(path), start=1):
            yield _checked(parquet.record_of(row), f"row {number} of {path}")
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield parse(line, f"line {number} of {path}")


def parse(line: bytes, where: str = "a record") -> Exported:
    """A record of a line."""
    try:
        found = RECORD.validate_json(line)
    except ValidationError as error:
        raise _no_record(where, error) from error
    return _known(found, where)


def _checked(data: dict[str, Any], where: str) -> Exported:
    try:
        found = RECORD.validate_python(data)
    except ValidationError as error:
        raise _no_record(where, error) from error
    return _known(found, where)


def _known(record: Exported, where: str) -> Exported:
    if record.format > FORMAT:
        raise InvalidInput(
            f"{where} has the format {record.format}, this release reads up to {FORMAT}",
            hint="use the release that wrote it, or a later one",
        )
    return record


def _no_record(where: str, error: ValidationError) -> InvalidInput:
    first = error.errors(include_url=False)[0]
    cause = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return InvalidInput(f"{where} is no record of an export", cause=cause, hint="`art export` writes one")


def format_of(target: Path) -> Format:
    """By the file's ending. InvalidInput for another."""
    endings: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    if (kind := endings.get(target.suffix.lower())) is None:
        raise InvalidInput(
            f"{target.name} says no format", hint="end it with .jsonl or .parquet, or give --format"
        )
    return kind


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is whole and on the disk; otherwise nothing changes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
