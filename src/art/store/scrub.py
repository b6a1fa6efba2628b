"""Takes what looks like a secret out of texts and JSON: each place becomes `[REDACTED:<name of the pattern>]`.

A text that is JSON itself (a tool's arguments) is read, so that nothing hides behind an escape and the result is JSON
again. Content parts and the events of a stream are read as the one text that they are pieces of: a secret that was cut
in two is found. Where anything was taken out, log-probabilities and token ids beside it go too, for they spell it.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from art.config.content import ContentRule
from art.store import numbers, patterns
from art.store.patterns import Detector, Span

logger = logging.getLogger(__name__)

BUILT_IN: dict[str, Detector] = {
    "private_key": patterns.private_key,
    "api_key": patterns.api_key,
    "aws": patterns.aws,
    "jwt": patterns.jwt,
    "bearer": patterns.bearer,
    "password": patterns.password,
    "email": patterns.email,
    "card": numbers.card,
    "iban": numbers.iban,
    "phone": numbers.phone,
}
SHORTEST = 6
"""Characters; nothing that is looked for is shorter, own patterns aside."""
NAME = 12
"""Characters from which on the name of a field is looked at too: names of fields are short words."""
LARGE_NUMBER, LARGEST_NUMBER = 10**12, 10**19
"""Between these a number may be a card's."""
DEEPEST = 100
"""Levels of nested JSON that are read; nothing that agents send for a reason has more."""
READ_JSON = 1_000_000
"""Characters of a text that is read as JSON, a level deeper each time."""
SPELLING = frozenset({"logprobs", "prompt_logprobs", "top_logprobs", "token_ids", "prompt_token_ids"})
"""Fields that say again, token by token, what the text beside them says."""
PIECES = frozenset(
    [
        "text",
        "content",
        "delta",
        "arguments",
        "partial_json",
        "thinking",
        "reasoning",
        "reasoning_content",
        "refusal",
        "token",
    ]
)
"""Fields in which content parts and events carry their part of a text."""
_PLACES = ("type", "index", "output_index", "content_index", "item_id")
"""Fields that tell which of several texts an event continues."""


def marker(name: str) -> str:
    """What stands in the place of a secret."""
    return f"[REDACTED:{name}]"


_MARKER = re.compile(r"\[REDACTED:[a-z0-9_ ]{1,60}\]")
DEEP, FAILED = marker("nested too deeply"), marker("own function failed")


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Applies one project's patterns and function. Safe to use from several threads."""

    detectors: Mapping[str, Detector]
    """By name; where two find the same text, the earlier one names it."""
    function: Callable[[str], str] | None = None
    names: bool = field(init=False)
    """Whether the name of a field alone makes its text a secret."""
    shortest: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", "password" in self.detectors)
        own = self.function is not None or bool(set(self.detectors) - set(BUILT_IN))
        object.__setattr__(self, "shortest", 1 if own else SHORTEST)

    @classmethod
    def of(cls, rule: ContentRule, function: Callable[[str], str] | None = None) -> Scrubber:
        """What the rule asks for; `function` is the one that its import path names."""
        detectors: dict[str, Detector] = {
            name: _matches(re.compile(pattern)) for name, pattern in rule.redact_patterns.items()
        }
        return cls({**detectors, **{name: BUILT_IN[name] for name in rule.redact}}, function)

    def text(self, text: str) -> str:
        """A text without its secrets."""
        return self._text(text, 0)

    def json(self, value: Any) -> Any:
        """JSON-like data without its secrets; `value` itself stays as it is."""
        kept = self._value(value, 0)
        return kept if kept == value else _without_spelling(kept)

    def _text(self, text: str, depth: int) -> str:
        if len(text) < self.shortest:
            return text
        read = self._read(text, depth)
        kept = _replaced(read, self._found(read))
        return kept if self.function is None else _applied(self.function, kept)

    def _read(self, text: str, depth: int) -> str:
        """A text that is JSON, with what its values hide taken out."""
        if text.lstrip()[:1] not in ("{", "[") or len(text) > READ_JSON or depth > DEEPEST:
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        kept = self._value(value, depth + DEEPEST // 4)
        return text if kept == value else json.dumps(kept, ensure_ascii=False)

    def _found(self, text: str) -> list[tuple[int, int, str]]:
        """What the detectors find, in order; pieces that overlap are one, under the first detector's name."""
        marked = _Marked.of(text)
        spans = [
            (start, end, order, name)
            for order, (name, detector) in enumerate(self.detectors.items())
            for start, end in detector(text)
            if start < end and not marked.touches(start, end)
        ]
        merged: list[tuple[int, int, int, str]] = []
        for start, end, order, name in sorted(spans):
            if merged and start < merged[-1][1]:
                last = merged[-1]
                first, named = min((last[2], last[3]), (order, name))
                merged[-1] = (last[0], max(last[1], end), first, named)
            else:
                merged.append((start, end, order, name))
        return [(start, end, name) for start, end, _, name in merged]

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value, depth)
        if isinstance(value, int) and LARGE_NUMBER <= abs(value) < LARGEST_NUMBER:
            found = self._found(str(abs(value)))
            return marker(found[0][2]) if found else value
        if isinstance(value, dict | list | tuple) and depth > DEEPEST:
            return DEEP
        if isinstance(value, dict):
            return self._mapping(value, depth + 1)
        if isinstance(value, list | tuple):
            return [self._value(item, depth + 1) for item in self._joined(value)]
        return value

    def _mapping(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        kept: dict[Any, Any] = {}
        for name, item in value.items():
            secret = self.names and isinstance(name, str) and isinstance(item, str) and len(item) >= SHORTEST
            if secret and patterns.SECRET_NAMES.fullmatch(name) and _MARKER.fullmatch(item) is None:
                kept[name] = marker("password")
                continue
            shown = self._text(name, depth) if isinstance(name, str) and len(name) >= NAME else name
            while shown in kept:
                shown = f"{shown} "  # two secrets as names: neither may take the other's value away
            kept[shown] = self._value(item, depth)
        return kept

    def _across(self, pieces: Sequence[str]) -> list[tuple[int, int, str]]:
        """What is found in the whole and lies in more than one of its pieces."""
        if len(pieces) < 2:
            return []
        ends = list(accumulate(map(len, pieces)))
        found = self._found("".join(pieces))
        return [one for one in found if bisect_right(ends, one[0]) != bisect_right(ends, one[1] - 1)]

    def _joined(self, items: Sequence[Any]) -> Sequence[Any]:
        """Content parts or events without the secrets that lie across them."""
        if len(items) < 2 or not all(_is_piece(item) for item in items):
            return items
        changed: list[Any] | None = None
        for place, pieces in _texts_of(items).items():
            found = self._across([text for _, text in pieces])
            if found:
                changed = [_copied(item, 0) for item in items] if changed is None else changed
                parts = _texts_of(changed)[place]
                for (holder, _), text in zip(parts, _cut(parts, found), strict=True):
                    holder.put(text)
        return items if changed is None else changed


@dataclass(frozen=True, slots=True)
class _Marked:
    """Where a text was redacted before: nothing is looked for in there again."""

    starts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, text: str) -> _Marked:
        spans = [found.span() for found in _MARKER.finditer(text)] if "[REDACTED:" in text else []
        return cls([start for start, _ in spans], [end for _, end in spans])

    def touches(self, start: int, end: int) -> bool:
        at = bisect_right(self.ends, start)
        return at < len(self.starts) and self.starts[at] < end


@dataclass(frozen=True, slots=True)
class _Holder:
    """Where a piece of a text stands."""

    mapping: dict[str, Any]
    name: str

    def put(self, text: str) -> None:
        self.mapping[self.name] = text


_Place = tuple[Any, ...]


def _is_piece(item: Any) -> bool:
    """A content part, or an event of a stream; a message is whole in itself."""
    return isinstance(item, dict) and "role" not in item and bool({"type", "choices", "token"} & item.keys())


def _texts_of(items: Sequence[Any]) -> dict[_Place, list[tuple[_Holder, str]]]:
    """The texts that the items carry pieces of, each with its pieces in order."""
    texts: dict[_Place, list[tuple[_Holder, str]]] = {}
    for item in items:
        for place, holder, text in _pieces(item, (), 0):
            texts.setdefault(place, []).append((holder, text))
    return texts


def _pieces(value: Any, place: _Place, depth: int) -> Iterator[tuple[_Place, _Holder, str]]:
    if depth > 12:  # events are flat
        return
    if isinstance(value, dict):
        here = (*place, *(value.get(name) for name in _PLACES if isinstance(value.get(name), str | int)))
        for name, item in value.items():
            if isinstance(item, str) and name in PIECES:
                yield (*here, name), _Holder(value, name), item
            elif isinstance(item, dict | list):
                yield from _pieces(item, (*here, name), depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            told = isinstance(item, dict) and ("index" in item or "token" in item)
            yield from _pieces(item, place if told else (*place, number), depth + 1)


def _copied(value: Any, depth: int) -> Any:
    """A copy as far as anything of it is read."""
    if depth <= DEEPEST and isinstance(value, dict):
        return {name: _copied(item, depth + 1) for name, item in value.items()}
    if depth <= DEEPEST and isinstance(value, list):
        return [_copied(item, depth + 1) for item in value]
    return value


def _cut(parts: Sequence[tuple[_Holder, str]], found: Sequence[tuple[int, int, str]]) -> Iterator[str]:
    """The pieces again: what was found is gone from all of them, and its marker stands where it began."""
    start = 0
    for _, text in parts:
        end, out, at = start + len(text), "", start
        for begin, stop, name in found:
            if stop <= start or begin >= end:
                continue
            out += text[at - start : max(begin, start) - start]
            out += marker(name) if begin >= start else ""
            at = min(stop, end)
        yield out + text[at - start :]
        start = end


def _replaced(text: str, found: Iterable[tuple[int, int, str]]) -> str:
    out, at = [], 0
    for start, end, name in found:
        out += [text[at:start], marker(name)]
        at = end
    return "".join([*out, text[at:]]) if at else text


def _matches(pattern: re.Pattern[str]) -> Detector:
    def find(text: str) -> Iterator[Span]:
        return (found.span() for found in pattern.finditer(text))

    return find


def _applied(function: Callable[[str], str], text: str) -> str:
    """What a project's own function makes of a text. Where it fails nothing is kept: the text may be the secret."""
    try:
        kept: object = function(text)
    except Exception as error:  # noqa: BLE001 - a boundary: it is not ours, and its words may quote the text
        logger.error("the function of redact_with failed: %s", type(error).__name__)
        return FAILED
    if isinstance(kept, str):
        return kept
    logger.error("the function of redact_with returned %s instead of a text", type(kept).__name__)
    return FAILED


def _without_spelling(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: None if name in SPELLING and isinstance(item, dict | list) else _without_spelling(item)
            for name, item in value.items()
        }
    return [_without_spelling(item) for item in value] if isinstance(value, list) else value
