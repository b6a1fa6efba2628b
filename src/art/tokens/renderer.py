"""Messages -> text -> token ids through the model's own chat template, equal to transformers' `apply_chat_template`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from art.errors import ConfigError, InvalidInput
from art.tokens import tools as tool_text
from art.tokens.template import Template
from art.tokens.tokenizer import Tokenizer, read_json
from art.types.messages import FunctionCall, Message, Tool, ToolCall, template_messages

_THINKING = re.compile(r"\.thinking\b|['\"]thinking['\"]")
_NINE_LETTERS = re.compile(r"length\s*!=\s*9")
_MERGES_CONTENT = "Cannot pass both content and thinking"


class Renderer:
    """One model's template and tokenizer.

    `has_tools_section` tells whether the template itself describes tools; where it does not, tools are
    described in the system message and earlier calls are written out as the model is asked to write them.
    `sources` is the template's text, with that of the tool template where there is one.
    """

    def __init__(self, tokenizer: Tokenizer, template: str, *, tool_template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.sources = template if tool_template is None else f"{template}\n{tool_template}"
        self._template = Template(template)
        self._tool_template = Template(tool_template) if tool_template else self._template
        self.has_tools_section = "tools" in self._tool_template.variables
        self.variables = self._tool_template.variables | self._template.variables
        self._names_thinking = _THINKING.search(self.sources) is not None
        self._shortens_ids = _NINE_LETTERS.search(self.sources) is not None

    @classmethod
    def load(cls, folder: Path, *, chat_template: str | None = None) -> Renderer:
        """Read a model folder; `chat_template` replaces the model's own."""
        tokenizer = Tokenizer.load(folder)
        if chat_template is not None:
            return cls(tokenizer, chat_template)
        templates = read_templates(folder)
        if "default" not in templates:
            raise ConfigError(
                f"{folder} has no chat template",
                hint="use an instruct model, or give ModelConfig.chat_template",
            )
        return cls(tokenizer, templates["default"], tool_template=templates.get("tool_use"))

    def text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] | None = None,
        generation: bool = True,
    ) -> str:
        """The rendered conversation; `generation` opens the assistant's turn. InvalidInput with the template's reason.

        `options` are further template variables (`chat_template_kwargs`).
        """
        template = self._tool_template if tools else self._template
        return template.render(self._values(messages, tools, options, generation))

    def line_at(
        self,
        messages: Sequence[Message],
        offset: int,
        *,
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] | None = None,
    ) -> tuple[int, str]:
        """The template's line that writes the character at `offset` of `text(...)`: its number and its text."""
        template = self._tool_template if tools else self._template
        return template.line_at(self._values(messages, tools, options, True), offset)

    def tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] | None = None,
        at_most: int | None = None,
    ) -> list[int]:
        """Token ids of the conversation with the assistant's turn opened; `at_most` as in `Tokenizer.encode`."""
        return self.tokenizer.encode(self.text(messages, tools=tools, options=options), at_most=at_most)

    def messages(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[dict[str, Any]]:
        """The messages as the template gets them: its own names, its form of arguments and call ids, and the tools in
        the system message where it has no section for them."""
        if not self.has_tools_section:
            messages = tool_text.without_section(messages, tools, roles=self.roles)
        as_text = any(message.tool_calls for message in messages) and self.arguments_as_text
        return self._dicts(messages, as_text=as_text)

    @cached_property
    def roles(self) -> tool_text.Roles:
        """The roles that the template writes, where it describes no tools itself."""
        user, answer = Message(role="user", content="Question"), Message(role="assistant", content="Answer")
        system = Message(role="system", content="ART-PROBE")
        result = Message(role="tool", content="ART-PROBE", tool_call_id="call00001")
        return tool_text.Roles(system=self._writes([system, user]), tool=self._writes([user, answer, result]))

    def _writes(self, messages: Sequence[Message]) -> bool:
        try:
            return "ART-PROBE" in self._template.render(
                self._base(self._dicts(messages, as_text=False), (), {}, True)
            )
        except InvalidInput:
            return False

    @cached_property
    def content_as_parts(self) -> bool:
        """Whether the template reads content as a list of parts, as those of vision models do, and leaves out a text."""
        return not self._shows("ART-PROBE") and self._shows(_parts("ART-PROBE"))

    def _shows(self, content: object) -> bool:
        try:
            return "ART-PROBE" in self._template.render(
                self._base([{"role": "user", "content": content}], (), {}, True)
            )
        except InvalidInput:
            return False

    @cached_property
    def arguments_as_text(self) -> bool:
        """Whether the template pastes the arguments of calls, and so fails on JSON objects (DeepSeek V3)."""
        call = ToolCall(id="call_1", function=FunctionCall(name="f", arguments='{"a": 1}'))
        probe = [
            Message(role="user", content="a"),
            Message(role="assistant", content="", tool_calls=(call,)),
            Message(role="tool", content="b", tool_call_id="call_1", name="f"),
        ]
        fails = []
        for as_text in (False, True):
            try:
                self._tool_template.render(self._base(self._dicts(probe, as_text=as_text), (), {}, True))
            except InvalidInput:
                fails.append(as_text)
        return fails == [False]

    def _values(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        options: Mapping[str, Any] | None,
        generation: bool,
    ) -> dict[str, Any]:
        """The template's variables."""
        return self._base(self.messages(messages, tools), tools, options or {}, generation)

    def _base(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Tool],
        options: Mapping[str, Any],
        generation: bool,
    ) -> dict[str, Any]:
        return {
            **self.tokenizer.specials,
            **options,
            "messages": messages,
            "tools": [tool.to_template() for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": generation,
        }

    def _dicts(self, messages: Sequence[Message], *, as_text: bool) -> list[dict[str, Any]]:
        out = template_messages(messages, arguments_as_text=as_text)
        if self._names_thinking:
            for data in out:
                _name_thinking(data, merge=_MERGES_CONTENT in self.sources)
        if self._shortens_ids:
            for data in out:
                _shorten_ids(data)
        if self.content_as_parts:
            for data in out:
                data["content"] = _parts(data["content"])
        return out


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _name_thinking(data: dict[str, Any], *, merge: bool) -> None:
    """Reasoning under the name `thinking`, for templates that read that (GPT-OSS, LFM2).

    `merge`: a message with calls may hold one of both only, and content is written as reasoning anyway.
    """
    reasoning = data.get("reasoning_content")
    if reasoning is None:
        return
    data["thinking"] = reasoning
    if merge and data.get("tool_calls") and data["content"]:
        data["thinking"] = f"{reasoning}\n{data['content']}"
        data["content"] = ""


def _shorten_ids(data: dict[str, Any]) -> None:
    """Call ids of nine letters and digits, for templates that insist on them (Mistral). Equal ids stay equal."""
    for call in data.get("tool_calls", ()):
        call["id"] = _short(call["id"])
    if "tool_call_id" in data:
        data["tool_call_id"] = _short(data["tool_call_id"])


def _short(call_id: str) -> str:
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def read_templates(folder: Path) -> dict[str, str]:
    """The folder's chat templates by name: "default" and perhaps "tool_use"."""
    templates: dict[str, str] = {}
    for settings in (read_json(folder / "tokenizer_config.json"), read_json(folder / "chat_template.json")):
        found = settings.get("chat_template")
        if isinstance(found, str):
            templates["default"] = found
        elif isinstance(found, list):
            templates.update({str(item["name"]): str(item["template"]) for item in found})
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        templates["default"] = jinja.read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates
