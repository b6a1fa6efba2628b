"""A chat template: compiled, sandboxed, rendered, and asked which of its lines wrote what.

The same sandbox, filters, globals and block trimming as transformers' `apply_chat_template`. The template is
code of the model's author; it runs sandboxed and sees plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from art.errors import ConfigError, InvalidInput, boundary

_HINT = "the model's chat template decides which roles may follow one another and which fields are needed"


class Template:
    """One template. `variables` are the names that it expects from outside."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._compiled = _compiled(source)
        self.variables = frozenset(find_undeclared_variables(_environment().parse(source)))

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. InvalidInput with the template's reason."""
        with boundary("rendering the chat template", InvalidInput, hint=_HINT):
            return self._compiled.render(**variables)

    def line_at(self, variables: Mapping[str, Any], offset: int) -> tuple[int, str]:
        """The number and the text of the line that writes the character at `offset` (or the last one before it).

        What a macro writes counts for the line that calls it.
        """
        line, written = 1, 0
        with boundary("rendering the chat template", InvalidInput, hint=_HINT):
            rendering = self._compiled.root_render_func(self._compiled.new_context(dict(variables)))
            for chunk in rendering:
                # The generator stands at the statement that gave this chunk.
                frame = cast(FrameType, cast(Any, rendering).gi_frame)
                line = self._compiled.get_corresponding_lineno(frame.f_lineno)
                written += len(chunk)
                if written > offset:
                    break
        lines = self.source.splitlines()
        return line, lines[line - 1].strip() if line <= len(lines) else ""


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
