"""Where in a TOML file a setting stands, for messages: the parser does not say."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#.*)?$")
_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_LONG = ('"' * 3, "'" * 3)


def line_of(text: str, *path: str) -> int | None:
    """The line, from 1, of the setting or table `path`; None where it cannot be told (inside an inline table)."""
    table: tuple[str, ...] = ()
    inside = ""  # of a text over several lines: its marks
    for number, line in enumerate(text.splitlines(), 1):
        if inside:
            inside = "" if inside in line else inside
            continue
        if header := _HEADER.match(line):
            table = _parts(header[1])
            found = table
        elif key := _KEY.match(line):
            found = (*table, *_parts(key[1]))
        else:
            continue
        if found == path or (found[: len(path)] == path and not header):
            return number
        inside = next((mark for mark in _LONG if line.count(mark) == 1), "")
    return None


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(text))
