"""Other people's texts on a terminal: what would move its cursor, set its title or hide something is made visible."""

from __future__ import annotations

import re
import unicodedata

JOINERS = "\u200c\u200d"
"""What words of Persian and Hindi and many emoji are written with; they move nothing."""
_UNSEEN = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""What JSON may hold as it is. The control characters below U+0020 it has to escape."""


def clean(text: str, *, lines: bool = False) -> str:
    """A text that somebody else wrote, with control and direction characters made visible: it moves no cursor, changes no
    colour and hides nothing. With `lines` line feeds and tabs stay; else they become spaces."""
    if text.isprintable():
        return text
    return "".join(_seen(character, lines=lines) for character in text)


def _seen(character: str, *, lines: bool) -> str:
    if character.isprintable() or character in JOINERS:
        return character
    if character in "\n\t":
        return character if lines else " "
    if unicodedata.category(character) == "Zs":
        return " "
    return ascii(character)[1:-1]


def clean_json(document: str) -> str:
    """The same JSON with such characters as escapes. They stand inside its strings alone."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", document)
