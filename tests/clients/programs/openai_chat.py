"""An agent on OpenAI's SDK, chat completions: two tools, the usual loop."""

import json
import sys

from openai import OpenAI

STREAM = "--stream" in sys.argv
deltas = 0


def get_weather(city: str) -> str:
    return f"{city}: {({'Oslo': 21, 'Rome': 14})[city]} degrees"


def subtract(a: int, b: int) -> str:
    return f"the difference is {a - b}"


def tool(name, description, **types):
    properties = {key: {"type": value} for key, value in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("get_weather", "The temperature in a city.", city="string"),
    tool("subtract", "a minus b.", a="integer", b="integer"),
]
FUNCTIONS = {"get_weather": get_weather, "subtract": subtract}

client = OpenAI()


def ask(messages):
    options = {"model": "gpt-4o", "messages": messages, "tools": TOOLS, "temperature": 0, "seed": 42}
    if not STREAM:
        return client.chat.completions.create(**options).choices[0].message
    global deltas
    with client.chat.completions.stream(**options) as stream:
        deltas += sum(
            event.type in {"content.delta", "tool_calls.function.arguments.delta"} for event in stream
        )
        return stream.get_final_completion().choices[0].message


messages = [
    {"role": "system", "content": "You look things up before you answer."},
    {"role": "user", "content": "How much warmer is it in Oslo than in Rome?"},
]
while True:
    message = ask(messages)
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

assert not STREAM or deltas > 10, f"{deltas} deltas"
print(json.dumps({"answer": message.content}))
