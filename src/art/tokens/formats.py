"""How a model writes tool calls and reasoning, chosen from its chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from art.errors import ConfigError
from art.tokens.parsers import deepseek, glm, harmony, hermes, llama3, mistral, pythonic, qwen3_coder
from art.tokens.parsers.base import CallParser, Form, Offered, OutputParser, PlainText
from art.tokens.parsers.gemma import Gemma
from art.tokens.parsers.plain_json import PlainJson
from art.tokens.parsers.reasoning import Marks, ReasoningParser
from art.tokens.renderer import Renderer
from art.tokens.tokenizer import Tokenizer
from art.types.messages import Tool

__all__ = ["CallEnvelope", "Formats", "OutputParser", "choose_formats"]

_PROMPT_END = 16
"""Tokens at a prompt's end among which an opening mark of reasoning is looked for."""


@dataclass(frozen=True, slots=True)
class CallEnvelope:
    """What a model writes around a call, for a grammar that makes it call.

    Style `json`: `begin`, then `{"name": ..., "arguments": ...}`, then `end`. Style `named`: `begin`, the name,
    `separator`, the arguments as a JSON object, `end`. The texts may hold special tokens by their names.
    """

    begin: str
    end: str
    separator: str = ""
    """Style `json`: what stands between two calls, each with its own begin and end. Style `named`: between name and arguments."""
    style: Literal["json", "named"] = "json"
    arguments: str = "arguments"
    """The key of the arguments in style `json`."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls."""

    name: str
    form: Callable[[], Form] | None
    """None for Harmony, which is a format of whole turns."""
    signs: tuple[tuple[str, ...], ...]
    """The template uses this format when it contains all texts of one of these."""
    marks: tuple[str, ...]
    """What the parser reads; those that are special tokens are kept in the text."""
    envelope: CallEnvelope | None
    end: str = ""
    """The mark behind a message's last call; empty where the end of the JSON is the end."""
    stops: tuple[str, ...] = ()
    """Marks with which a model ends its turn in order to be given the results."""


_FUNCTION_GEMMA = Gemma("<start_function_call>", "<end_function_call>", "<escape>")

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    # In the order in which a template is asked: the particular before the general.
    ToolFormat(
        "harmony",
        None,
        ((harmony.CHANNEL, harmony.MESSAGE),),
        harmony.MARKS,
        CallEnvelope(
            begin=f"{harmony.CHANNEL}commentary to=functions.",
            separator=f" {harmony.CONSTRAIN}json{harmony.MESSAGE}",
            end=harmony.CALL,
            style="named",
        ),
        end=harmony.CALL,
        stops=(harmony.RETURN, harmony.CALL),
    ),
    ToolFormat(
        "gemma",
        Gemma,
        (("<|tool_call>",),),
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
        None,
        end="<tool_call|>",
        stops=("<|tool_response>",),
    ),
    ToolFormat(
        "functiongemma",
        lambda: _FUNCTION_GEMMA,
        ((_FUNCTION_GEMMA.opening,),),
        (_FUNCTION_GEMMA.opening, _FUNCTION_GEMMA.closing, _FUNCTION_GEMMA.quote),
        None,
        end=_FUNCTION_GEMMA.closing,
        stops=("<start_function_response>",),
    ),
    ToolFormat(
        "mistral",
        mistral.Mistral,
        ((mistral.TAG, mistral.ARGS),),
        (mistral.TAG, mistral.ARGS, mistral.CALL_ID),
        CallEnvelope(begin=mistral.TAG, separator=mistral.ARGS, end="", style="named"),
    ),
    ToolFormat(
        "mistral_json",
        mistral.Mistral,
        ((mistral.TAG,),),
        (mistral.TAG, mistral.ARGS, mistral.CALL_ID),
        CallEnvelope(begin=f"{mistral.TAG}[", end="]"),
    ),
    ToolFormat(
        "deepseek",
        deepseek.DeepSeek,
        ((deepseek.BEGIN,),),
        deepseek.MARKS,
        None,
        end=deepseek.END,
    ),
    ToolFormat(
        "glm",
        glm.Glm,
        (("<arg_key>", glm.OPEN),),
        (glm.OPEN, glm.CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        None,
        end=glm.CLOSE,
    ),
    ToolFormat(
        "qwen3_coder",
        qwen3_coder.Qwen3Coder,
        (("<function=", "<parameter="),),
        (qwen3_coder.OPEN, qwen3_coder.CLOSE),
        None,
        end=qwen3_coder.CLOSE,
    ),
    ToolFormat(
        "hermes",
        hermes.Hermes,
        ((hermes.OPEN,),),
        (hermes.OPEN, hermes.CLOSE),
        CallEnvelope(begin=f"{hermes.OPEN}\n", end=f"\n{hermes.CLOSE}", separator="\n"),
        end=hermes.CLOSE,
    ),
    ToolFormat(
        "llama3",
        llama3.Llama3,
        ((llama3.TAG,), ("'\"parameters\": '",), ('"parameters": dictionary',)),
        (llama3.TAG,),
        CallEnvelope(begin="", end="", separator="; ", arguments="parameters"),
    ),
    ToolFormat(
        "pythonic",
        pythonic.Pythonic,
        ((pythonic.OPEN,), ("List of tools: [",), ("<|tool_list_start|>",)),
        (pythonic.OPEN, pythonic.CLOSE),
        None,
        end=pythonic.CLOSE,
    ),
    ToolFormat("json", PlainJson, (), (), CallEnvelope(begin="", end="")),
)

REASONING_FORMATS: dict[str, Marks | None] = {
    "none": None,
    "harmony": None,
    "gemma": Marks("<|channel>thought\n", "<channel|>"),
    "mistral": Marks("[THINK]", "[/THINK]"),
    "think": Marks("<think>", "</think>"),
    "think_implied": Marks("<think>", "</think>", implied=True),
}


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of one model."""

    tools: str
    """The tool format's name."""
    reasoning: str
    """The reasoning format's name; `none` where reasoning is text."""
    tokenizer: Tokenizer
    kept_token_ids: frozenset[int] = frozenset()
    """Special tokens that the parsers read; all others are no text."""

    def call_envelope(self) -> CallEnvelope | None:
        """How a call is written; None where the format cannot be forced."""
        return _tool_format(self.tools).envelope

    def call_marks(self) -> tuple[str, ...]:
        """Marks with which a call begins; none where a call has no mark, and in Harmony."""
        form = _tool_format(self.tools).form
        return form().opens if form is not None else ()

    def reasoning_marks(self) -> Marks | None:
        """What stands around reasoning; None where there is none, or where it is a channel of its own (Harmony)."""
        return REASONING_FORMATS[self.reasoning]

    def opened(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the prompt's end has opened the reasoning, so that the turn begins inside it."""
        marks = self.reasoning_marks()
        if marks is None:
            return False
        return marks.opened_by(self.tokenizer.decode(prompt_token_ids[-_PROMPT_END:], skip_special=False))

    def parser(self, tools: Sequence[Tool], *, prompt_token_ids: Sequence[int]) -> OutputParser:
        """A fresh parser for one choice. `tools` are those that may be called; the prompt's end tells whether a turn
        begins inside reasoning."""
        offered = Offered.of(tools)
        form = _tool_format(self.tools).form
        if form is None:
            return harmony.HarmonyParser(offered)
        inner: OutputParser = CallParser(form(), offered) if tools else PlainText()
        marks = self.reasoning_marks()
        if marks is None:
            return inner
        return ReasoningParser(marks, inner, inside=self.opened(prompt_token_ids))


def choose_formats(
    renderer: Renderer, *, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> Formats:
    """The formats for a template. ConfigError, naming the known ones, for a parser that does not exist.

    Tools that are described in the system message (a template without a tools section) are called as in Hermes.
    """
    tools = _known("tool_parser", tool_parser, [item.name for item in TOOL_FORMATS])
    reasoning = _known("reasoning_parser", reasoning_parser, list(REASONING_FORMATS))
    tools = tools or _tools_of(renderer)
    reasoning = reasoning or _reasoning_of(renderer.sources, tools)
    if (tools == "harmony") != (reasoning == "harmony"):
        raise ConfigError(
            f"tool_parser {tools!r} and reasoning_parser {reasoning!r} do not go together",
            cause="Harmony writes calls and reasoning in channels of one format",
            hint="give harmony for both, or for neither",
        )
    marks = REASONING_FORMATS[reasoning]
    texts = [*_tool_format(tools).marks, *([marks.open.strip(), marks.close] if marks else [])]
    return Formats(
        tools=tools,
        reasoning=reasoning,
        tokenizer=renderer.tokenizer,
        kept_token_ids=_special_ids(renderer.tokenizer, texts),
    )


def call_end(renderer: Renderer) -> str:
    """The mark that the template writes behind a message's last call; empty where there is none."""
    return _tool_format(_tools_of(renderer)).end


def stop_marks(renderer: Renderer) -> tuple[str, ...]:
    """The marks that end a turn beside the one that the template writes behind an answer."""
    return _tool_format(_tools_of(renderer)).stops


def ends_messages_only(renderer: Renderer) -> bool:
    """Whether what the template writes behind an answer ends a message of the turn, and not the turn."""
    return _tools_of(renderer) == "harmony"


def _known(option: str, value: str | None, names: Sequence[str]) -> str | None:
    if value is None or value in names:
        return value
    raise ConfigError(f"there is no {option} {value!r}", hint=f"known: {', '.join(sorted(names))}")


def _tool_format(name: str) -> ToolFormat:
    return next(item for item in TOOL_FORMATS if item.name == name)


def _tools_of(renderer: Renderer) -> str:
    source = renderer.sources
    found = [item.name for item in TOOL_FORMATS if any(all(t in source for t in sign) for sign in item.signs)]
    if found and (renderer.has_tools_section or found[0] == "harmony"):
        return found[0]
    return "json" if renderer.has_tools_section else "hermes"


def _reasoning_of(source: str, tools: str) -> str:
    if tools == "harmony":
        return "harmony"
    if "<|channel>" in source:
        return "gemma"
    if "[THINK]" in source:
        return "mistral"
    return "think" if "<think>" in source or "</think>" in source else "none"


def _special_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> frozenset[int]:
    """The special tokens that these texts contain: ordinary decoding leaves them out."""
    return frozenset(
        token
        for text in texts
        for token in tokenizer.encode(text)
        if not tokenizer.decode([token]) and tokenizer.decode([token], skip_special=False) in text
    )
