"""Tools that say what they would have done: dry runs, and answers recorded from the real thing."""

from __future__ import annotations

import copy
import functools
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.errors import ConfigError, InvalidInput, NotFound
from art.rollouts.recording import count
from art.rollouts.tool import (
    DEFINITION,
    Definition,
    ToolFunction,
    arguments_of,
    declared_arguments,
    is_async,
    name_of,
    openai_definition,
)
from art.utils.files import append_line

DONE = "done"
"""What a dry run answers unless it is told something else."""
DRY_RUNS = "tools/dry_run"
"""The trajectory's metric: calls that were answered without being done."""


@dataclass(frozen=True)
class Effect:
    """A call that was not made."""

    tool: str
    arguments: dict[str, Any]
    """By parameter name, defaults included."""
    answer: Any
    """What the agent was told."""


class Recorded:
    """Answers that `record` wrote, by tool and arguments; the last one where a call was recorded several times."""

    def __init__(self, path: str | Path, *, otherwise: Any = ...) -> None:
        """`otherwise` answers calls that were never recorded; without it they raise NotFound.

        InvalidInput for a file that `record` has not written.
        """
        self._path = Path(path)
        self._otherwise = otherwise
        self._answers: dict[str, Any] = {}
        for number, line in enumerate(self._path.read_text().splitlines(), 1):
            try:
                entry = json.loads(line)
                self._answers[_key(entry["tool"], entry["arguments"])] = entry["answer"]
            except (ValueError, TypeError, KeyError) as error:
                raise InvalidInput(
                    f"line {number} of {path} is no recorded call", cause=f"{type(error).__name__}: {error}"
                ) from error

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """What the tool answered to these arguments."""
        key = _key(tool, arguments)
        if key in self._answers:
            return self._answers[key]
        if self._otherwise is not ...:
            return self._otherwise
        raise NotFound(
            f"{self._path} has no answer of {tool} to {_shown(arguments)}",
            hint="record this call too, or give Recorded(path, otherwise=...) an answer for such calls",
        )


def dry_run(
    tool: ToolFunction | Definition, *, answer: Any = DONE, effects: list[Effect] | None = None
) -> ToolFunction:
    """A function like `tool` that does nothing: it notes the call in `effects` and gives `answer`.

    `tool`: a function, plain or async, or an OpenAI definition of one that need not exist. `answer`: a value, a
    function of the tool's own arguments, or `Recorded`. Arguments that the tool would not take raise TypeError, as
    they would in earnest. Each call counts in the trajectory's metric `tools/dry_run`.
    """
    definition = openai_definition(tool) if isinstance(tool, Mapping) else None
    name = definition["function"]["name"] if definition is not None else name_of(_function(tool))
    answers = callable(answer) and not isinstance(answer, Recorded)
    asynchronous = is_async(answer) if definition is not None and answers else _is_async(tool)
    if answers and is_async(answer) and not asynchronous:
        raise ConfigError(
            f"the answer of {name} is async and {name} is not",
            hint="give a plain function, or one that returns the answer at once",
        )

    def noted(positional: tuple[Any, ...], named: Mapping[str, Any], given: Any) -> Any:
        effect = Effect(name, copy.deepcopy(_bound(tool, definition, positional, named)), given)
        count(DRY_RUNS)
        if effects is not None:
            effects.append(effect)
        return given

    def answered(positional: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        arguments = _bound(tool, definition, positional, named)
        if isinstance(answer, Recorded):
            return copy.deepcopy(answer.answer(name, arguments))
        return answer(*positional, **named) if answers else copy.deepcopy(answer)

    async def later(*positional: Any, **named: Any) -> Any:
        given = answered(positional, named)
        return noted(positional, named, await given if inspect.isawaitable(given) else given)

    def at_once(*positional: Any, **named: Any) -> Any:
        return noted(positional, named, answered(positional, named))

    dry: ToolFunction = later if asynchronous else at_once
    if definition is None:
        return functools.wraps(_function(tool))(dry)
    dry.__name__ = dry.__qualname__ = name
    dry.__doc__ = definition["function"].get("description")
    setattr(dry, DEFINITION, definition)
    return dry


def record(tool: ToolFunction, path: str | Path) -> ToolFunction:
    """A function like `tool` that does what it does, and adds each call with its answer to `path` for `Recorded`.

    Answers that are no JSON are written as their text. A call that raises is not recorded.
    """
    file, name = Path(path), name_of(_function(tool))

    def kept(positional: tuple[Any, ...], named: Mapping[str, Any], answer: Any) -> Any:
        entry = {"tool": name, "arguments": arguments_of(tool, positional, named), "answer": answer}
        append_line(file, json.loads(json.dumps(entry, default=str)))
        return answer

    async def later(*positional: Any, **named: Any) -> Any:
        return kept(positional, named, await tool(*positional, **named))

    def at_once(*positional: Any, **named: Any) -> Any:
        return kept(positional, named, tool(*positional, **named))

    return functools.wraps(tool)(later if is_async(tool) else at_once)


def _bound(
    tool: Any, definition: Mapping[str, Any] | None, positional: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    if definition is None:
        return arguments_of(tool, positional, named)
    if positional:
        raise TypeError(f"{definition['function']['name']} takes its arguments by name")
    return declared_arguments(definition, named)


def _function(tool: Any) -> ToolFunction:
    if not callable(tool):
        raise ConfigError(
            f"a {type(tool).__name__} is no tool", hint="give a function, or an OpenAI tool definition"
        )
    return tool  # type: ignore[no-any-return]


def _is_async(tool: Any) -> bool:
    return not isinstance(tool, Mapping) and is_async(tool)


def _key(tool: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps([tool, dict(arguments)], sort_keys=True, default=str)


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}"[:80] for name, value in arguments.items())[:300] or "no arguments"
