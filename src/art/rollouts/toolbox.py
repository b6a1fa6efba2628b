"""The tools of an agent that runs its own loop: told to the model, and its calls answered."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from art.errors import ArtError, ConfigError, InvalidInput
from art.rollouts.allow import REFUSED, refused
from art.rollouts.failure import is_infrastructure
from art.rollouts.recording import count
from art.rollouts.tool import Definition, Tool, ToolFunction
from art.trajectories import as_dict
from art.utils.background import run_blocking

log = logging.getLogger(__name__)

FAILED = "tools/failed"
"""The trajectory's metric: calls that were not well formed, or whose tool raised."""
_Said = Mapping[str, Any]


class Toolbox:
    """Tools by name. `definitions` goes into a chat completion, `answers` takes what came of it.

    `tools`: functions, plain or async, or pairs of an OpenAI definition and its function. `allow`: the names that may be
    called (None: all); the model is told of the others too, and calls of them, as of names that are no tool, are refused.
    """

    def __init__(
        self,
        tools: Iterable[ToolFunction | tuple[Definition, ToolFunction]],
        *,
        allow: Collection[str] | None = None,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for given in tools:
            tool = Tool.of(given)
            if tool.name in self._tools:
                raise ConfigError(
                    f"two tools are named {tool.name}", hint="a model tells tools apart by their names"
                )
            self._tools[tool.name] = tool
        if isinstance(allow, str):
            raise ConfigError("allow is a text", hint="give a list of names")
        unknown = sorted(set(allow or ()) - self._tools.keys())
        if unknown:
            raise ConfigError(
                f"allow names {unknown[0]}, which is no tool", hint=f"the tools: {', '.join(self._tools)}"
            )
        self._allowed = self._tools.keys() if allow is None else frozenset(allow)

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """For `tools=` of a chat completion."""
        return [tool.definition for tool in self._tools.values()]

    async def answers(self, said: object) -> list[dict[str, Any]]:
        """The `tool` messages that answer a choice or an assistant message, in the order of its calls; [] without calls.

        What is wrong with a call, and what a tool raises, is an answer for the model (metric `tools/failed`). ART's own
        errors, and failures of the network, are raised: they say nothing about the agent.
        """
        return [
            {"role": "tool", "tool_call_id": str(call.get("id", "")), "content": await self._answer(call)}
            for call in _calls(said)
        ]

    def answers_sync(self, said: object) -> list[dict[str, Any]]:
        """`answers` for code that does not await."""
        return run_blocking(lambda: self.answers(said))

    async def _answer(self, call: _Said) -> str:
        count(REFUSED, 0)
        count(FAILED, 0)
        function = call.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            return _failed("this is no call of a function")
        if name not in self._allowed:
            return refused(name)
        tool = self._tools[name]
        try:
            arguments = tool.arguments(function.get("arguments"))
        except InvalidInput as error:
            return _failed(f"{error.message}: {error.cause}" if error.cause else error.message)
        try:
            return _text(await tool.call(arguments))
        except ArtError:
            raise
        except Exception as error:  # the boundary to a tool: what it raises is the model's to deal with
            if is_infrastructure(error):
                raise
            log.info("the tool %s raised", name, exc_info=error)
            return _failed(f"{type(error).__name__}: {error}")


def _calls(said: object) -> Sequence[_Said]:
    data = as_dict(said)
    if "choices" in data:
        raise InvalidInput("answers() was given a whole completion", hint="give completion.choices[0]")
    message = data.get("message", data)
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return [call for call in calls or () if isinstance(call, Mapping)]


def _failed(why: str) -> str:
    count(FAILED)
    return f"error: {why}"


def _text(answer: object) -> str:
    """An answer as a message's content: text as it is, everything else as JSON."""
    if isinstance(answer, str):
        return str(answer)
    return json.dumps(answer, ensure_ascii=False, default=str)
