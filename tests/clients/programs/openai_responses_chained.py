"""An agent on OpenAI's SDK, Responses: the server keeps the history, each request names the response before."""

import json
import sys

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

STREAM = "--stream" in sys.argv
deltas = 0


class GetWeather(BaseModel):
    """The temperature in a city."""

    city: str

    def run(self) -> str:
        return f"{self.city}: {({'Oslo': 21, 'Rome': 14})[self.city]} degrees"


class Subtract(BaseModel):
    """a minus b."""

    a: int
    b: int

    def run(self) -> str:
        return f"the difference is {self.a - self.b}"


NAMES = {"get_weather": GetWeather, "subtract": Subtract}
TOOLS = [
    {"type": "function", **pydantic_function_tool(tool, name=name)["function"]}
    for name, tool in NAMES.items()
]

client = OpenAI()


def ask(items, previous):
    options = {"model": "gpt-4o", "input": items, "previous_response_id": previous, "tools": TOOLS}
    if not STREAM:
        return client.responses.create(**options)
    global deltas
    for event in client.responses.create(**options, stream=True):
        deltas += event.type.endswith(".delta")
        if event.type == "response.completed":
            response = event.response
    return response


items, previous = "How much warmer is it in Oslo than in Rome?", None
while items:
    response = ask(items, previous)
    previous = response.id
    items = [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": NAMES[call.name].model_validate_json(call.arguments).run(),
        }
        for call in response.output
        if call.type == "function_call"
    ]

assert not STREAM or deltas > 10, f"{deltas} deltas"
print(json.dumps({"answer": response.output_text}))
