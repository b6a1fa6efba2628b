"""A smolagents ToolCallingAgent; `--code` takes the CodeAgent, whose actions are Python."""

import json
import os
import sys

from smolagents import ChatMessageStreamDelta, CodeAgent, FinalAnswerStep, OpenAIModel, ToolCallingAgent, tool


@tool
def get_weather(city: str) -> str:
    """The temperature in a city.

    Args:
        city: The city's name.
    """
    return f"{city}: {({'Oslo': 21, 'Rome': 14})[city]} degrees"


@tool
def subtract(a: int, b: int) -> str:
    """a minus b.

    Args:
        a: The first number.
        b: The second number.
    """
    return f"the difference is {a - b}"


model = OpenAIModel(model_id="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"])
kind = CodeAgent if "--code" in sys.argv else ToolCallingAgent
stream = "--stream" in sys.argv
agent = kind(tools=[get_weather, subtract], model=model, verbosity_level=0, stream_outputs=stream)
question = "How much warmer is it in Oslo than in Rome?"

if stream:
    deltas = 0
    for event in agent.run(question, stream=True):
        deltas += isinstance(event, ChatMessageStreamDelta)
        if isinstance(event, FinalAnswerStep):
            answer = event.output
    assert deltas > 10, f"{deltas} deltas"
    print()  # its live display leaves the line open
else:
    answer = agent.run(question)

print(json.dumps({"answer": answer}))
