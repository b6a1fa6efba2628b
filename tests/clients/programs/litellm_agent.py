"""LiteLLM's completion(); `--anthropic` reaches the same agent through Anthropic's protocol."""

import json
import sys

import litellm

STREAM = "--stream" in sys.argv
deltas = 0
MODEL = "anthropic/claude-sonnet-4-5" if "--anthropic" in sys.argv else "openai/gpt-4o"


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


def ask(messages):
    options = {"model": MODEL, "messages": messages, "tools": TOOLS, "tool_choice": "auto"}
    if not STREAM:
        return litellm.completion(**options).choices[0].message
    global deltas
    chunks = list(litellm.completion(**options, stream=True))
    deltas += sum(bool(chunk.choices[0].delta.content) for chunk in chunks if chunk.choices)
    return litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message


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
        messages.append(
            {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": result}
        )

assert not STREAM or deltas > 10, f"{deltas} deltas"
print(json.dumps({"answer": message.content}))
