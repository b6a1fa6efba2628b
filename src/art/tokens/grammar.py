"""Grammars for the llguidance package: what a completion must be, for `response_format` and `tool_choice`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art.errors import InvalidInput
from art.tokens.formats import Formats
from art.tokens.grammar_calls import forced_calls, possible_calls
from art.tokens.grammar_schema import answer_schema, check_grammar
from art.tokens.grammar_writer import Writer
from art.tokens.parsers import harmony
from art.types.messages import Tool


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must be."""

    schema: Mapping[str, Any] | None = None
    """The JSON schema of the answer's text; {} is any object. None is free text."""
    tools: Sequence[Tool] = ()
    """Those that may be called."""
    must_call: bool = False
    """At least one call and no text."""
    parallel: bool = True
    """More than one call is possible."""

    @property
    def free(self) -> bool:
        """Nothing to constrain."""
        return self.schema is None and not self.must_call


def grammar_for(form: Form, formats: Formats, prompt_token_ids: Sequence[int]) -> str:
    """The grammar of a completion, "" where it is free. The prompt's end tells whether it begins inside reasoning.

    InvalidInput for a schema that is none, with the keyword; UnsupportedOption where the model's format has no
    calls that could be forced. Takes up to seconds for a large schema: not for an event loop.
    """
    if form.free:
        return ""
    if form.must_call and not form.tools:
        raise InvalidInput("a call is asked for, but there are no `tools`")
    writer = Writer(formats.tokenizer)
    bodies: list[str] = []
    if form.must_call:
        bodies.append(forced_calls(writer, form.tools, formats, parallel=form.parallel))
    elif form.tools:
        bodies.append(possible_calls(writer, form.tools, formats, parallel=form.parallel))
    if form.schema is not None and not form.must_call:
        answer = writer.json(answer_schema(form.schema), "answer")
        bodies.append(f"{writer.text(_FINAL)} {answer}" if formats.tools == "harmony" else answer)
    thought = _thought(writer, formats, prompt_token_ids)
    body = f"({' | '.join(bodies)})"
    grammar = writer.grammar(f"{thought} {body}" if thought else body)
    check_grammar(grammar)
    return grammar


_FINAL = f"{harmony.CHANNEL}final{harmony.MESSAGE}"
_ANALYSIS = (f"{harmony.CHANNEL}analysis{harmony.MESSAGE}", harmony.END)
_NEXT = f"{harmony.START}assistant"


def _thought(writer: Writer, formats: Formats, prompt_token_ids: Sequence[int]) -> str:
    """The reasoning in front of the answer, "" where the model has none. It may be left out unless the prompt opened it."""
    if formats.tools == "harmony":
        return writer.rule(
            "thought", f"({writer.text(_ANALYSIS[0])} {writer.until(_ANALYSIS[1])} {writer.text(_NEXT)})?"
        )
    marks = formats.reasoning_marks()
    if marks is None:
        return ""
    rest = f"{writer.until(marks.close)} GAP?"
    if formats.opened(prompt_token_ids):
        return rest
    return writer.rule("thought", f"({writer.text(marks.open)} {rest})?")
