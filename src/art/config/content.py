"""What a server keeps of what agents and models say: all of it, all but secrets, or nothing.

[server]
redact = ["standard"]

[server.redact_patterns]
badge = "EMP-[0-9]{6}"

[server.projects.clinic]
content = "none"
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

PATTERNS = (
    "private_key",
    "api_key",
    "aws",
    "jwt",
    "bearer",
    "password",
    "email",
    "card",
    "iban",
    "phone",
)
"""The built-in patterns. Where two find the same text, the earlier one names it."""
STANDARD, OFF = "standard", "off"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

Content = Literal["full", "none"]
"""`full` keeps texts and tokens. `none` keeps counts, rewards, ids, times and fates; tokens stay encrypted until
they were trained."""


def _list(value: object) -> object:
    """`standard`, `email,card` and `off`, as a flag or an environment variable gives them."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    known = (*PATTERNS, STANDARD, OFF)
    for name in value:
        if name not in known:
            raise ValueError(f"{name!r} is no built-in pattern; there are {', '.join(known)}")
    if OFF in value:
        if len(value) > 1:
            raise ValueError(f"{OFF!r} stands alone")
        return ()
    return PATTERNS if STANDARD in value else tuple(name for name in PATTERNS if name in value)


def _table(value: object) -> object:
    """The environment gives JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"it must be a JSON object: {error}") from error


def _compiles(value: dict[str, str]) -> dict[str, str]:
    for name, pattern in value.items():
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} cannot name a pattern: small letters, digits and _, at most 40")
        if name in PATTERNS:
            raise ValueError(f"{name!r} is a built-in pattern: choose another name")
        try:
            empty = re.compile(pattern).match("") is not None
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"the pattern {name} is no regular expression: {error}") from error
        if empty:
            raise ValueError(f"the pattern {name} fits nothing at all, so it would be found everywhere")
    return value


def _import_path(value: str) -> str:
    module, colon, name = value.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError("it must be an import path, package.module:function")
    return value


Redact = Annotated[tuple[str, ...], BeforeValidator(_list), AfterValidator(_patterns)]
"""Names of built-in patterns; `standard` is all of them, `off` none."""
RedactPatterns = Annotated[dict[str, str], BeforeValidator(_table), AfterValidator(_compiles)]
"""Own regular expressions, by the name that stands in the place of what they find."""
RedactWith = Annotated[str, AfterValidator(_import_path)]
"""An own function from text to text, by import path; it gets every text after the patterns."""


class ContentRule(BaseModel):
    """The rule of one project, every value known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    content: Content = "full"
    redact: Redact = ()
    redact_patterns: RedactPatterns = Field(default_factory=dict)
    redact_with: RedactWith | None = None

    @property
    def changes(self) -> bool:
        """Whether anything that is said is kept otherwise than it was said."""
        return self.content == "none" or bool(self.redact or self.redact_patterns or self.redact_with)


class ProjectRule(BaseModel):
    """What a project has otherwise than the server; None is as the server has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    content: Content | None = None
    redact: Redact | None = None
    redact_patterns: RedactPatterns | None = None
    """In place of the server's, not beside them."""
    redact_with: RedactWith | None = None

    def over(self, rule: ContentRule) -> ContentRule:
        """The project's own rule where `rule` is the server's."""
        given: dict[str, Any] = self.model_dump(exclude_none=True)
        return rule.model_copy(update=given)


Projects = Annotated[dict[str, ProjectRule], BeforeValidator(_table)]
"""By project."""
