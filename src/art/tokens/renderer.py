"""Messages -> text -> token ids through the model's own chat template.

Equal to transformers' `apply_chat_template`: the same sandbox, filters, globals and block trimming. The
template is code of the model's author; it runs sandboxed and sees plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from art.errors import ConfigError, InvalidInput, boundary
from art.tokens import tools as tool_text
from art.tokens.tokenizer import Tokenizer, read_json
from art.types.messages import Message, Tool, template_messages


class Renderer:
    """One model's template and tokenizer.

    `has_tools_section` tells whether the template itself describes tools; where it does not, tools are
    described in the system message and earlier calls are written out as the model is asked to write them.
    `sources` is the template's text, with that of the tool template where there is one.
    """

    def __init__(self, tokenizer: Tokenizer, template: str, *, tool_template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.sources = template if tool_template is None else f"{template}\n{tool_template}"
        self._template = _compiled(template)
        self._tool_template = _compiled(tool_template) if tool_template else self._template
        names = _variables(tool_template or template)
        self.has_tools_section = "tools" in names
        self.variables = names | _variables(template)

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
        if not self.has_tools_section:
            messages = tool_text.without_section(messages, tools)
        template = self._tool_template if tools else self._template
        variables: dict[str, Any] = {**self.tokenizer.specials, **(options or {})}
        variables["messages"] = template_messages(messages)
        variables["tools"] = [tool.to_template() for tool in tools] or None
        variables["documents"] = None
        variables["add_generation_prompt"] = generation
        with boundary("rendering the chat template", InvalidInput, hint=_HINT):
            return template.render(**variables)

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


_HINT = "the model's chat template decides which roles may follow one another and which fields are needed"


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


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's tokens for other trainers; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """A namespace without underscore attributes, which lead to the interpreter's inside."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N805, RUF100  (`self` may be an attribute's name)
        for name in dict(*args[1:], **kwargs):
            _refuse_private(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template cannot set the attribute {name!r}")


class _TemplateDict:
    """`dict(...)` for templates, without the type's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which changes what the model reads.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _TemplateNamespace
    return environment


@lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    with boundary("compiling the chat template", ConfigError, hint="check the model's chat_template"):
        return _environment().from_string(source)


def _variables(source: str) -> frozenset[str]:
    return frozenset(find_undeclared_variables(_environment().parse(source)))
