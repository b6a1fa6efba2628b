"""Server-sent events as the control API sends them: bytes in, however they are cut, JSON objects out.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html. Lines end in LF, CR LF or CR and in nothing else:
JSON may hold what Python's `splitlines` takes for the end of a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from art.errors import InfraError

MAX_EVENT_BYTES = 64 << 20
"""Of one event: far more than any job's result, and less than a machine's memory."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
_MARK = b"\xef\xbb\xbf"
"""A byte order mark, which a stream may begin with."""


class EventReader:
    """The data of each event, read as JSON. Comments, names and ids are left out, as is an event that is cut off."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._begun = False

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The events that have become whole. InfraError for data that is no JSON object, and for an event without an end."""
        found: list[dict[str, Any]] = []
        for line in self._lines(chunk):
            if not line:
                if self._data:
                    found.append(_object(b"\n".join(self._data)))
                self._data, self._size = [], 0
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
        if self._size + len(self._line) > MAX_EVENT_BYTES:
            raise InfraError(f"an event of the server is over {MAX_EVENT_BYTES} bytes")
        return found

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that have ended."""
        if not chunk:
            return
        rest = chunk[1:] if self._after_cr and chunk.startswith(b"\n") else chunk
        self._after_cr = chunk.endswith(b"\r")
        first, *others = _LINE_END.split(rest)
        self._line += first
        for part in others:
            line, self._line = bytes(self._line), bytearray(part)
            yield line if self._begun else line.removeprefix(_MARK)
            self._begun = True


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InfraError(
            "the server sent an event that is no JSON", cause=f"{type(error).__name__}: {error}"[:300]
        ) from error
    if not isinstance(value, dict):
        raise InfraError(
            "the server sent an event that is no JSON object", cause=f"it is a {type(value).__name__}"
        )
    return value
