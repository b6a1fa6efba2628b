"""An agent whose tools come from an MCP server: it starts the server, offers what that has, and passes calls on.

ART fills in `client`: an OpenAI client that talks to the model in training. The model's name is of no importance.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from openai import AsyncOpenAI

TURNS = 3
INSTRUCTION = "Look the book up with the tools. Then answer with one word, yes or no."
LIBRARY = StdioServerParameters(command=sys.executable, args=[str(Path(__file__).parent / "server.py")])


@dataclass
class Result:
    """What the reward looks at."""

    answer: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """(tool, arguments) of each call that the server answered."""


async def run(client: AsyncOpenAI, scenario: dict[str, str]) -> Result:
    """One run with a server of its own, so that no run sees what another one did."""
    async with Client(LIBRARY) as library:
        return await converse(client, library, scenario)


async def converse(client: AsyncOpenAI, library: Client, scenario: dict[str, str]) -> Result:
    """Ask, pass the model's tool calls on to the server, and ask again until it answers."""
    result = Result()
    offered = await library.list_tools()
    tools: list[Any] = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            },
        }
        for tool in offered.tools
    ]
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": f"Can I borrow {scenario['title']} today?"},
    ]
    for _ in range(TURNS):
        answer = await client.chat.completions.create(
            model="agent", messages=messages, tools=tools, max_tokens=96
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            result.answer = message.content or ""
            break
        messages.append(message)
        for call in message.tool_calls:
            assert call.type == "function", "no other tools were offered"
            text = await _call(library, call.function.name, call.function.arguments, result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return result


async def _call(library: Client, name: str, arguments: str, result: Result) -> str:
    """What the server says; the model reads its own mistakes."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return "error: the arguments are no JSON"
    if not isinstance(given, dict):
        return "error: the arguments must be an object"
    said = await library.call_tool(name, given)
    text = "\n".join(part.text for part in said.content if part.type == "text")
    if said.is_error:
        return f"error: {text}"
    result.calls.append((name, given))
    return text
