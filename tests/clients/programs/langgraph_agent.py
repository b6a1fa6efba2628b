"""LangGraph's prebuilt ReAct agent; `--anthropic` takes langchain-anthropic instead of langchain-openai, `--responses`
OpenAI's Responses."""

import json
import sys

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def get_weather(city: str) -> str:
    """The temperature in a city."""
    return f"{city}: {({'Oslo': 21, 'Rome': 14})[city]} degrees"


@tool
def subtract(a: int, b: int) -> str:
    """a minus b."""
    return f"the difference is {a - b}"


if "--anthropic" in sys.argv:
    model = ChatAnthropic(model="claude-sonnet-4-5", max_tokens=1024)
elif "--responses" in sys.argv:
    model = ChatOpenAI(model="gpt-4o", use_responses_api=True)
else:
    model = ChatOpenAI(model="gpt-4o", temperature=0)

agent = create_react_agent(model, [get_weather, subtract], prompt="You look things up before you answer.")
task = {"messages": [("user", "How much warmer is it in Oslo than in Rome?")]}

if "--stream" in sys.argv:
    deltas, answer = 0, ""
    for chunk, _ in agent.stream(task, stream_mode="messages"):
        if isinstance(chunk, AIMessageChunk):
            deltas += 1
            # The text since the last tool call.
            answer = "" if chunk.tool_call_chunks else answer + chunk.text
    assert deltas > 10, f"{deltas} deltas"
else:
    answer = agent.invoke(task)["messages"][-1].text

print(json.dumps({"answer": answer}))
