"""An agent with a tool: it looks the weather up before it answers.

ART fills in `client`: an OpenAI client that talks to the model in training. The model's name is of no importance.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI

from weather import forecast

TURNS = 3
INSTRUCTION = "Look the weather up with the tool. Then answer with one word, yes or no."
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of tomorrow in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


@dataclass
class Result:
    """What the reward looks at."""

    answer: str = ""
    cities: list[str] = field(default_factory=list)
    """Looked up, in this order."""


async def run(client: AsyncOpenAI, scenario: dict[str, str]) -> Result:
    """Ask, run the tools that the model calls, and ask again until it answers."""
    result = Result()
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": f"Do I need an umbrella in {scenario['city']} tomorrow?"},
    ]
    for _ in range(TURNS):
        answer = await client.chat.completions.create(
            model="agent", messages=messages, tools=TOOLS, max_tokens=96
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            result.answer = message.content or ""
            break
        messages.append(message)
        for call in message.tool_calls:
            assert call.type == "function", "no other tools were offered"
            text = _call(call.function.name, call.function.arguments, result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return result


def _call(name: str, arguments: str, result: Result) -> str:
    """What a tool says; the model reads its own mistakes."""
    try:
        city = json.loads(arguments)["city"]
    except (ValueError, KeyError, TypeError):
        return 'error: the arguments must be {"city": "..."}'
    if name != "get_weather" or not isinstance(city, str):
        return f"error: there is no tool {name}"
    result.cities.append(city)
    return forecast(city)
