"""An agent on Anthropic's SDK: tool_use and tool_result, the usual loop."""

import json
import sys

from anthropic import Anthropic

STREAM = "--stream" in sys.argv
deltas = 0


def get_weather(city: str) -> str:
    return f"{city}: {({'Oslo': 21, 'Rome': 14})[city]} degrees"


def subtract(a: int, b: int) -> str:
    return f"the difference is {a - b}"


def tool(name, description, **types):
    properties = {key: {"type": value} for key, value in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types)}
    return {"name": name, "description": description, "input_schema": schema}


TOOLS = [
    tool("get_weather", "The temperature in a city.", city="string"),
    tool("subtract", "a minus b.", a="integer", b="integer"),
]
TOOLS[-1]["cache_control"] = {"type": "ephemeral"}
FUNCTIONS = {"get_weather": get_weather, "subtract": subtract}

client = Anthropic()


def ask(messages):
    options = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 1024,
        "system": [
            {
                "type": "text",
                "text": "You look things up before you answer.",
                "cache_control": {"type": "ephemeral"},
            }
        ],
        "messages": messages,
        "tools": TOOLS,
    }
    if not STREAM:
        return client.messages.create(**options)
    global deltas
    with client.messages.stream(**options) as stream:
        deltas += sum(event.type == "content_block_delta" for event in stream)
        return stream.get_final_message()


messages = [{"role": "user", "content": "How much warmer is it in Oslo than in Rome?"}]
while True:
    message = ask(messages)
    messages.append({"role": "assistant", "content": message.content})
    if message.stop_reason != "tool_use":
        break
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": FUNCTIONS[block.name](**block.input),
        }
        for block in message.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})

assert not STREAM or deltas > 10, f"{deltas} deltas"
print(json.dumps({"answer": "".join(block.text for block in message.content if block.type == "text")}))
