"""An agent on OpenAI's SDK, Responses: it keeps the history itself and sends every item back."""

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
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(types),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": schema,
        "strict": True,
    }


TOOLS = [
    tool("get_weather", "The temperature in a city.", city="string"),
    tool("subtract", "a minus b.", a="integer", b="integer"),
]
FUNCTIONS = {"get_weather": get_weather, "subtract": subtract}

client = OpenAI()


def ask(items):
    options = {
        "model": "gpt-4o",
        "instructions": "You look things up before you answer.",
        "input": items,
        "tools": TOOLS,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    if not STREAM:
        return client.responses.create(**options)
    global deltas
    with client.responses.stream(**options) as stream:
        deltas += sum(event.type.endswith(".delta") for event in stream)
        return stream.get_final_response()


items = [{"role": "user", "content": "How much warmer is it in Oslo than in Rome?"}]
while True:
    response = ask(items)
    items += response.output
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        break
    for call in calls:
        result = FUNCTIONS[call.name](**json.loads(call.arguments))
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})

assert not STREAM or deltas > 10, f"{deltas} deltas"
print(json.dumps({"answer": response.output_text}))
