"""What a terminal is shown: columns, figures, and other people's texts without what would move its cursor.

A terminal gets colours and lines cut to its width. Everything else gets the same lines plain and whole: a pipe, a
file, a dumb terminal, or any of them where NO_COLOR is set (https://no-color.org).
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import typer

from art.utils.visible import JOINERS, clean

MISSING = "-"
"""Where there is no figure."""
GAP = "  "
COLOURS = {
    "trained": "green",
    "evaluated": "cyan",
    "finished": "blue",
    "running": "yellow",
    "zero_variance": "bright_black",
    "stale": "magenta",
    "agent_error": "red",
    "infra_error": "red",
    "no_calls": "red",
    "overlong": "magenta",
    "warning": "yellow",
}
_WIDE = {"W", "F"}


def is_terminal() -> bool:
    """Whether stdout is a terminal that can do more than print."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def colours_wanted() -> bool:
    """Whether stdout is to be coloured."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def styled(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    """`text`, coloured where colours are wanted."""
    return typer.style(text, fg=fg, bold=bold or None, dim=dim or None) if colours_wanted() else text


def coloured(word: str) -> str:
    """A status or a fate in its colour."""
    return styled(word, fg=COLOURS.get(word))


MOST_SPACE = 1_000
"""Cells that a text is filled up with: one long text must not make every row of the table as long."""


def width_of(text: str) -> int:
    """Cells that a cleaned text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(one) or one in JOINERS
        else 2
        if unicodedata.east_asian_width(one) in _WIDE
        else 1
        for one in text
    )


def cut(text: str, cells: int) -> str:
    """The beginning of a cleaned text that fits into so many cells, with an ellipsis where something is missing."""
    if width_of(text) <= cells:
        return text
    kept, used = "", 0
    for one in text:
        used += width_of(one)
        if used > max(0, cells - 1):
            break
        kept += one
    return f"{kept}…"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    align: Literal["left", "right"] = "left"
    stretch: bool = False
    """Cut on a terminal that is too narrow for the whole line."""


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, widest: int | None = None
) -> list[str]:
    """Rows under a head, in columns of at most `widest` cells. Texts are cleaned here; words with a colour of their own get it."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [
        max([len(column.title), *(width_of(row[number]) for row in cells)])
        for number, column in enumerate(columns)
    ]
    if widest is not None:
        widths = [min(width, widest) for width in widths]
    if is_terminal():
        widths = _fitted(columns, widths, shutil.get_terminal_size().columns)
    head = _line(columns, widths, [column.title for column in columns])
    return [styled(head, bold=True), *(_line(columns, widths, row, colour=True) for row in cells)]


def _fitted(columns: Sequence[Column], widths: list[int], available: int) -> list[int]:
    over = sum(widths) + len(GAP) * (len(widths) - 1) - available
    for number, column in enumerate(columns):
        if column.stretch and over > 0:
            kept = max(8, widths[number] - over)
            over -= widths[number] - kept
            widths[number] = kept
    return widths


def _line(columns: Sequence[Column], widths: list[int], row: Sequence[str], *, colour: bool = False) -> str:
    shown = []
    for column, width, cell in zip(columns, widths, row, strict=True):
        text = cut(cell, width)
        space = " " * min(MOST_SPACE, width - width_of(text))
        text = coloured(text) if colour else text
        shown.append(space + text if column.align == "right" else text + space)
    return GAP.join(shown).rstrip()


def number(value: float | None, *, digits: int = 4) -> str:
    """A figure for a person: 0.6250, 1.2e-05, 12,345."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def reward(value: float | None) -> str:
    """A reward: three decimals, so that a column of them can be read."""
    if value is None:
        return MISSING
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.4g}"


def span(seconds: float | None) -> str:
    """A span of time: `0.4 s`, `35 s`, `12 min`, `3.5 h`, `2 d`."""
    if seconds is None:
        return MISSING
    if seconds < 10:
        return f"{seconds:.2g} s"
    for limit, unit, name in ((120, 1, "s"), (2 * 3600, 60, "min"), (2 * 86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 86400:.3g} d"


def short(count: float) -> str:
    """A count: 950, 8.2k, 1.5M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.3g}"


def moment(seconds: float) -> str:
    """A time of day here, with its date."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def counts(found: dict[str, int]) -> str:
    """`12 trained, 3 zero_variance`, the most first."""
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {coloured(clean(name))}" for name, count in ordered if count) or MISSING


def spark(values: Sequence[float]) -> str:
    """A curve in one line of text, from its lowest to its highest value."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    marks = "▁▂▃▄▅▆▇█"
    if high == low:
        return marks[3] * len(values)
    return "".join(marks[round((value - low) / (high - low) * (len(marks) - 1))] for value in values)
