"""Rules on a tool's arguments. A call that breaks one is not made: the model is told so, and it is counted."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from art.errors import ConfigError
from art.rollouts.recording import count
from art.rollouts.tool import DEFINITION, arguments_of, is_async, name_of

log = logging.getLogger(__name__)

REFUSED = "tools/refused"
"""The trajectory's metric: calls that were refused. A call that was not sets it to 0 at least, so that means are true."""
_SHOWN = 200
"""Characters of an argument in a refusal."""

Rule: TypeAlias = "Callable[[Any], object] | re.Pattern[str] | Collection[Any]"
"""A predicate; a regular expression that a text must match as a whole; or the values that are possible."""
F = TypeVar("F", bound=Callable[..., Any])


class Refusal(str):
    """The answer of a call that was not made. A text, so that it reaches the model like any other answer."""

    __slots__ = ()


class Under:
    """A rule for paths: inside one of some folders, once links and `..` are followed."""

    def __init__(self, *folders: str | os.PathLike[str]) -> None:
        if not folders:
            raise ConfigError("under() was given no folder")
        self._folders = [Path(os.path.realpath(folder)) for folder in folders]

    def __call__(self, value: object) -> bool:
        """Whether `value` is such a path. A relative one starts from this process's working directory."""
        if not isinstance(value, str | os.PathLike):
            return False
        path = Path(os.path.realpath(os.fspath(value)))
        return any(path.is_relative_to(folder) for folder in self._folders)

    def __str__(self) -> str:
        return "under " + " or ".join(map(str, self._folders))


under = Under


def allow(tool: F, /, **rules: Rule) -> F:
    """A function like `tool` that is called only where every rule holds; otherwise it answers with a `Refusal`.

    Each rule is named like the parameter it is for, and holds for its default value too. Parameters without a rule take
    anything. A predicate that fails on a value refuses it. Refusals count in the trajectory's metric `tools/refused`.
    ConfigError for a rule that no parameter is named like.
    """
    name = name_of(tool)
    _check(tool, name, rules)

    def refusal(positional: tuple[Any, ...], named: Mapping[str, Any]) -> Refusal | None:
        arguments = arguments_of(tool, positional, named)
        for parameter, rule in rules.items():
            if parameter not in arguments or not _holds(rule, arguments[parameter]):
                return refused(name, parameter, arguments.get(parameter), rule)
        count(REFUSED, 0)
        return None

    async def later(*positional: Any, **named: Any) -> Any:
        no = refusal(positional, named)
        return no if no is not None else await tool(*positional, **named)

    def at_once(*positional: Any, **named: Any) -> Any:
        no = refusal(positional, named)
        return no if no is not None else tool(*positional, **named)

    return cast(F, functools.wraps(tool)(later if is_async(tool) else at_once))


def refused(tool: str, parameter: str = "", value: object = None, rule: Rule | None = None) -> Refusal:
    """The answer to a call that may not be made, counted and logged."""
    count(REFUSED)
    what = f"{tool} may not be called"
    if parameter:
        what += f" with {parameter}={value!r}"[:_SHOWN]
    possible = "" if rule is None else _described(rule)
    log.info("refused: %s", what)
    return Refusal(f"refused: {what}" + (f"; possible: {possible}" if possible else ""))


def _check(tool: Callable[..., Any], name: str, rules: Mapping[str, Rule]) -> None:
    if not rules:
        raise ConfigError(f"no rule was given for {name}", hint="allow(tool, parameter=rule)")
    for parameter, rule in rules.items():
        if isinstance(rule, str | bytes) or not (callable(rule) or isinstance(rule, re.Pattern | Collection)):
            raise ConfigError(
                f"the rule for {parameter} of {name} is a {type(rule).__name__}",
                hint="give a predicate, under(folder), re.compile(...), or a list of the values that are possible",
            )
    definition = getattr(tool, DEFINITION, None)
    known: Collection[str] | None
    if definition is not None:
        known = (definition["function"].get("parameters") or {}).get("properties")
    else:
        parameters = inspect.signature(tool).parameters.values()
        open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters)
        known = None if open_ended else [one.name for one in parameters]
    unknown = [parameter for parameter in rules if known is not None and parameter not in known]
    if unknown:
        raise ConfigError(
            f"{name} has no parameter {unknown[0]}",
            hint=f"its parameters: {', '.join(known or ()) or 'none'}",
        )


def _holds(rule: Rule, value: object) -> bool:
    if isinstance(rule, re.Pattern):
        return isinstance(value, str) and rule.fullmatch(value) is not None
    try:
        return bool(rule(value)) if callable(rule) else value in rule
    except Exception as error:  # noqa: BLE001 - the boundary to a user's rule: what it cannot judge is not allowed
        log.warning("a rule could not judge a value and refuses it: %s: %s", type(error).__name__, error)
        return False


def _described(rule: Rule) -> str:
    """What a rule allows, as far as it can be said."""
    if isinstance(rule, Under):
        return str(rule)
    if isinstance(rule, re.Pattern):
        return f"what matches {rule.pattern}"
    return "" if callable(rule) else ", ".join(repr(value) for value in rule)[:_SHOWN]
