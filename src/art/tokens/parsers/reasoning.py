"""Reasoning between two marks: `<think>...</think>`, Mistral's `[THINK]...[/THINK]`, Gemma's thought channel.

A turn may begin inside reasoning, where the prompt ended with the opening mark. Reasoning is looked for at the
beginning of a turn only, so that an answer may speak about the marks. White space between reasoning and marks,
and between the closing mark and the answer, belongs to the format; reasoning without words is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from art.tokens.parsers.base import OutputParser, begun
from art.types.messages import Piece, Thought


@dataclass(frozen=True, slots=True)
class Marks:
    """How one format marks reasoning."""

    open: str
    close: str
    implied: bool = False
    """The model reasons without an opening mark: all is reasoning up to the closing one."""

    def opened_by(self, prompt_end: str) -> bool:
        """Whether a turn behind a prompt that ends so begins inside reasoning."""
        if self.implied:
            return not prompt_end.rstrip().endswith(self.close)
        at = prompt_end.rfind(self.open.strip())
        return at >= 0 and not prompt_end[at + len(self.open.strip()) :].strip()


@dataclass(slots=True)
class ReasoningParser:
    """Thoughts and what follows them, which goes on to `inner`."""

    marks: Marks
    inner: OutputParser
    inside: bool = False
    """Whether the turn begins inside reasoning."""
    _pending: str = ""
    _space: str = ""
    """White space that belongs to the reasoning if more of it follows."""
    _said: bool = False
    """Whether the reasoning has had a word."""
    _begun: bool = False
    """Whether it is known if the reasoning starts with a mark of its own."""
    _start: bool = True
    """Whether only white space and reasoning have come so far."""
    _thought: bool = field(default=False)
    """Whether there was a mark, so that white space before the answer belongs to the format."""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that have become certain."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> list[Piece]:
        """What was held back."""
        return [*self._advance(final=True), *self.inner.finish()]

    def _advance(self, *, final: bool) -> list[Piece]:
        out: list[Piece] = []
        while self._pending:
            if not self._start:
                out += self.inner.feed(self._pending)
                self._pending = ""
            elif self.inside:
                if not self._think(out, final=final):
                    break
            elif not self._begin(out, final=final):
                break
        return out

    def _begin(self, out: list[Piece], *, final: bool) -> bool:
        """At the beginning of the turn, or behind reasoning: is there a mark? False where more text is needed."""
        text = self._pending.lstrip()
        open_mark = self.marks.open.strip()
        for mark in (open_mark, self.marks.close):
            # A closing mark without reasoning before it says that there was none.
            if text.startswith(mark):
                self._pending = text[len(mark) :]
                self.inside, self._thought = mark == open_mark, True
                self._begun = True
                return True
            if not final and mark.startswith(text):
                return False
        self._start = False
        self._pending = text if self._thought else self._pending
        return True

    def _think(self, out: list[Piece], *, final: bool) -> bool:
        if not self._begun:
            # A model may repeat the mark with which its prompt ended.
            start, again = self._pending.lstrip(), self.marks.open.strip()
            if not final and len(start) < len(again) and again.startswith(start):
                return False
            self._pending, self._begun = start.removeprefix(again), True
        before, mark, after = self._pending.partition(self.marks.close)
        if mark:
            self._give(out, before)
            self._pending, self._space = after, "\n" if self._said else ""
            self.inside, self._thought = False, True
            return True
        held = 0 if final else begun(before, (self.marks.close,))
        self._give(out, before[: len(before) - held])
        self._pending = before[len(before) - held :]
        return False

    def _give(self, out: list[Piece], text: str) -> None:
        """Reasoning without the white space around it."""
        text = self._space + text
        if not self._said:
            text = text.lstrip()
        words = text.rstrip()
        self._space = text[len(words) :]
        if words:
            out.append(Thought(words))
            self._said = True
