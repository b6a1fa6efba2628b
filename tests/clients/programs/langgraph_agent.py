"""A LangGraph graph of a model and its tools: ChatOpenAI, with `--responses` on OpenAI's Responses, with `--anthropic`
ChatAnthropic."""

import json
import sys

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


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

tools = [get_weather, subtract]
thinker = model.bind_tools(tools)


def think(state: MessagesState):
    return {
        "messages": [
            thinker.invoke([("system", "You look things up before you answer."), *state["messages"]])
        ]
    }


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("tools", ToolNode(tools))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", tools_condition)
graph.add_edge("tools", "think")
agent = graph.compile()
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
