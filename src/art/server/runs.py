"""What a completion said, run by run, with the tokens behind each: kept with the call, so that it can be told again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from art.types.messages import Message, Piece, Thought, ToolCall

Outline = list[tuple[str, int, int]]
"""Per run: `text`, `thought` or `call`; its characters (0 for a call); how many tokens were sampled when it ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring pieces of one kind as one. A call is always a run of its own."""

    piece: Piece
    start: int
    """The first of its tokens; those of its markup are counted to it."""
    end: int


def runs_of(pieces: Sequence[Piece], ends: Sequence[int]) -> list[Run]:
    """`ends[i]` tokens were sampled when `pieces[i]` was said."""
    out: list[Run] = []
    for piece, end in zip(pieces, ends, strict=True):
        last = out[-1] if out else None
        joined = None if last is None else _joined(last.piece, piece)
        if last is not None and joined is not None:
            out[-1] = Run(joined, last.start, end)
        else:
            out.append(Run(piece, 0 if last is None else last.end, end))
    return out


def _joined(first: Piece, second: Piece) -> Piece | None:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, Thought) and isinstance(second, Thought):
        return Thought(first.text + second.text)
    return None


def outline(runs: Sequence[Run]) -> Outline:
    """What is kept beside the message, which has the texts and calls themselves."""
    return [(_kind(run.piece), _length(run.piece), run.end) for run in runs]


def _kind(piece: Piece) -> str:
    return "call" if isinstance(piece, ToolCall) else "thought" if isinstance(piece, Thought) else "text"


def _length(piece: Piece) -> int:
    return 0 if isinstance(piece, ToolCall) else len(piece.text if isinstance(piece, Thought) else piece)


def told_again(message: Message, kept: Outline, tokens: int) -> list[Run]:
    """The runs of a recorded message of `tokens` tokens.

    A text that a redaction changed no longer has the lengths of its outline: then reasoning, text and calls
    follow one another, and the last of them has all the tokens.
    """
    texts = {"thought": message.reasoning or "", "text": message.text}
    lengths = {kind: sum(size for name, size, _ in kept if name == kind) for kind in texts}
    calls = list(message.tool_calls)
    if any(lengths[kind] != len(text) for kind, text in texts.items()) or len(calls) != sum(
        name == "call" for name, _, _ in kept
    ):
        pieces: list[Piece] = [Thought(texts["thought"])] if texts["thought"] else []
        pieces += [texts["text"]] if texts["text"] else []
        pieces += calls
        return runs_of(pieces, [0] * (len(pieces) - 1) + [tokens] if pieces else [])
    out: list[Run] = []
    at = {"thought": 0, "text": 0}
    for kind, size, end in kept:
        start = out[-1].end if out else 0
        if kind == "call":
            out.append(Run(calls.pop(0), start, end))
            continue
        text = texts[kind][at[kind] : at[kind] + size]
        at[kind] += size
        out.append(Run(Thought(text) if kind == "thought" else text, start, end))
    return out
